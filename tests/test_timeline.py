"""The timeline: what a log says about when, and the table that people see of it."""

import unicodedata
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest
import trio
from hypothesis import given

import terzetto
from terzetto import vocabulary as v
from terzetto.commands._table import Row, duration, rows, table
from terzetto.commands._terminal import columns
from terzetto.llm.scripted import ScriptedModel, answer, call, finish_error, say
from terzetto.timeline import Mark, Timeline, read_timeline
from tests.strategies import logs
from tests.whole import whole


def log(*entries: tuple[int, v.EventData]) -> list[v.Event]:
    """Events from pairs of time and payload."""
    return [v.Event(seq, at, data) for seq, (at, data) in enumerate(entries)]


def chunk(text: str) -> v.AssistantChunk:
    return v.AssistantChunk(1, 1, v.TextDelta(0, text))


def said(*blocks: v.AssistantBlock, interrupted: bool = False) -> v.AssistantMessageEvent:
    message = v.AssistantMessage(blocks, v.ModelSource("p", "m"), v.MessageId("a"))
    return v.AssistantMessageEvent(1, 1, message, interrupted=interrupted)


def asked(text: str, source: v.MessageSource = v.USER) -> v.UserMessageEvent:
    return v.UserMessageEvent(v.UserMessage(text, source, v.MessageId(text)))


def tool_call(name: str) -> v.ToolCallBlock:
    return v.ToolCallBlock(v.CallId(name), name, "{}")


def started(name: str) -> v.ToolCallEvent:
    return v.ToolCallEvent(1, 1, v.CallId(name), name, "{}")


def result(name: str, code: str | None = None) -> v.ToolResultEvent:
    block = v.ToolResultBlock(v.CallId(name), (v.TextBlock("x"),), code is not None)
    message = v.UserMessage((block,), v.ToolSource(v.CallId(name)), v.MessageId(f"r-{name}"))
    return v.ToolResultEvent(1, 1, message, v.ToolErrorInfo("E", code) if code else None)


TURN, STEP = v.TurnStart(1), v.StepStart(1, 1)
STEP_END, COMPLETED = v.StepEnd(1, 1), v.TurnEnd(1, v.Completed())

BATCH = log(
    (1000, TURN),
    (1000, STEP),
    (1001, asked("go")),
    (1100, chunk("Let ")),
    (1150, chunk("me.")),
    (1200, said(v.TextBlock("Let me."), *map(tool_call, "abc"))),
    (1210, started("a")),
    (1210, started("b")),
    (1400, result("a")),
    (1401, result("b", "BROKEN")),
    (1410, started("c")),
    (1500, result("c")),
    (1500, STEP_END),
    (1500, COMPLETED),
)


def test_turn_step_and_calls_have_their_times() -> None:
    [turn] = read_timeline(BATCH).turns
    [step] = turn.steps
    assert (turn.number, turn.started_ms, turn.ended_ms, turn.reason) == (
        1,
        1000,
        1500,
        "completed",
    )
    assert (step.started_ms, step.first_ms, step.answered_ms, step.ended_ms) == (
        1000,
        1100,
        1200,
        1500,
    )
    assert (step.text, step.pieces, step.interrupted) == ("Let me.", 2, False)
    assert [(one.text, one.at_ms, one.plugin) for one in step.inputs] == [("go", 1001, None)]
    times = [(c.name, c.waited_ms, c.running_ms, c.committed_ms, c.code) for c in step.calls]
    assert times == [
        ("a", 10, 190, 1400, None),
        ("b", 10, 191, 1401, "BROKEN"),
        ("c", 210, 90, 1500, None),
    ]


@pytest.mark.parametrize("length", range(len(BATCH) + 1))
def test_prefix_of_a_log_has_what_happened_so_far(length: int) -> None:
    """Nothing that a longer log adds changes what was known, only what was None."""
    whole, part = read_timeline(BATCH), read_timeline(BATCH[:length])
    assert len(part.turns) == min(length, 1)
    for turn in part.turns:
        assert turn.started_ms == whole.turns[0].started_ms
        assert turn.ended_ms is None or length == len(BATCH)
        for step in turn.steps:
            for name in ("started_ms", "first_ms", "answered_ms", "ended_ms"):
                assert getattr(step, name) in (None, getattr(whole.turns[0].steps[0], name))
    assert len(table(part)) == len(rows(part)) + 1


@pytest.mark.parametrize("code", ["ABORTED_BEFORE_DISPATCH", "TOOL_NOT_STARTED"])
def test_call_that_never_started_has_no_running_time(code: str) -> None:
    events = log(
        (0, TURN), (0, STEP), (5, said(tool_call("a"))), (9, started("a")), (9, result("a", code))
    )
    [one] = read_timeline(events).turns[0].steps[0].calls
    assert not one.ran
    assert (one.waited_ms, one.running_ms, one.committed_ms) == (None, None, 9)
    assert rows(read_timeline(events))[-1].note == "never started"


def test_result_without_its_call_is_no_run() -> None:
    """Recovery answers calls that were never recorded."""
    events = log((0, TURN), (0, STEP), (5, said(tool_call("a"))), (9, result("a", "X")))
    [one] = read_timeline(events).turns[0].steps[0].calls
    assert (one.ran, one.started_ms, one.committed_ms) == (False, None, 9)


def test_same_id_twice_in_a_step_is_two_calls() -> None:
    events = log(
        (0, TURN),
        (0, STEP),
        (1, said(tool_call("a"), tool_call("a"))),
        (2, started("a")),
        (3, started("a")),
        (4, result("a")),
        (6, result("a")),
    )
    calls = read_timeline(events).turns[0].steps[0].calls
    assert [(c.started_ms, c.committed_ms) for c in calls] == [(2, 4), (3, 6)]


def test_failed_attempt_is_not_the_answer() -> None:
    events = log(
        (0, TURN),
        (0, STEP),
        (10, chunk("half")),
        (20, v.AssistantChunk(1, 1, finish_error("SERVER"))),
        (500, chunk("whole")),
        (510, said(v.TextBlock("whole"))),
    )
    [step] = read_timeline(events).turns[0].steps
    assert (step.failures, step.first_ms, step.pieces, step.text) == (("SERVER",), 500, 1, "whole")
    assert rows(read_timeline(events))[1].note == "failed: SERVER; 1 piece, first after 0.50 s"


def test_answer_that_is_still_coming_has_what_came_so_far() -> None:
    """Of the attempt that goes on, and of no other."""
    thought = v.AssistantChunk(1, 1, v.ReasoningDelta(1, "Hm."))
    failed = v.AssistantChunk(1, 1, finish_error("SERVER"))
    events = log(
        (0, TURN), (0, STEP), (1, chunk("ha")), (2, failed), (3, chunk("who")), (4, thought)
    )
    events += [v.Event(6, 5, chunk("le"))]
    found = [read_timeline(events[:n]).turns[0].steps[0] for n in range(3, len(events) + 1)]
    assert [step.text for step in found] == ["ha", "", "who", "who", "whole"]
    assert [step.reasoning for step in found] == ["", "", "", "Hm.", "Hm."]
    assert {step.answered_ms for step in found} == {None}
    events += [v.Event(7, 6, said(v.TextBlock("whole, in the end")))]
    assert read_timeline(events).turns[0].steps[0].text == "whole, in the end"


def test_interrupted_answer_says_what_is_kept() -> None:
    events = log(
        (0, TURN),
        (0, STEP),
        (3, chunk("once u")),
        (4, said(v.TextBlock("once u"), interrupted=True)),
        (4, STEP_END),
        (4, v.TurnEnd(1, v.Aborted(v.UserCause()))),
    )
    turn, step = rows(read_timeline(events))
    assert turn.note == "aborted by the user"
    assert step.note == "interrupted, 6 characters kept; 1 piece, first after 0.00 s"


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (v.Completed(), "completed"),
        (v.Blocked(), "blocked"),
        (v.EndedAtMaxTokens(), "cut at the output limit"),
        (v.Interrupted(), "crashed, closed later"),
        (v.Failed(v.Failure(message="no", code="AUTH")), "failed: AUTH"),
        (v.Aborted(v.UserCause()), "aborted by the user"),
        (v.Aborted(v.ParentCause()), "aborted with its parent"),
        (v.Aborted(v.DisposedCause()), "aborted: agent or engine closed"),
        (v.Aborted(v.HookCause("too dear")), "aborted by a policy: too dear"),
        (v.Aborted(v.LegacyCause()), "aborted"),
    ],
)
def test_every_ending_has_words(ending: v.TurnEnding, words: str) -> None:
    [turn] = read_timeline(log((0, TURN), (1, v.TurnEnd(1, ending)))).turns
    assert turn.reason == words


def test_open_turn_is_open() -> None:
    [turn] = read_timeline(log((7, TURN))).turns
    assert (turn.reason, turn.ended_ms, turn.ending) == ("open", None, None)


def test_marks_stand_where_they_happened() -> None:
    events = log(
        (0, TURN),
        (10, COMPLETED),
        (20, v.EndSeed()),
        (30, v.ModelSelected(v.ModelSelection("p", "better"))),
        (40, v.TurnStart(2)),
        (50, v.TurnEnd(2, v.Completed())),
        (50, v.CompactionStart("c")),
        (60, v.CompactionEnd("c", "failed")),
        (70, v.EndSeed(inherited=True)),
    )
    timeline = read_timeline(events)
    assert timeline.marks == (
        Mark(20, "resumed", "", 2),
        Mark(30, "model", "p better", 3),
        Mark(50, "compaction", "started", 6),
        Mark(60, "compaction", "failed", 7),
        Mark(70, "forked", "", 8),
    )
    whats = [row.what for row in rows(timeline)]
    assert whats == [
        "turn 1",
        "resumed",
        "model",
        "turn 2",
        "compaction",
        "compaction",
        "forked",
    ]


def test_snapshots_and_replacements_are_no_input() -> None:
    snapshot = v.PluginSource(v.texts.SYSTEM_PROMPT_PLUGIN, "snapshot")
    plugin = v.PluginSource("my-policy")
    events = log((0, TURN), (0, STEP), (1, asked("context", snapshot)), (2, asked("note", plugin)))
    events.append(v.Event(4, 3, asked("shorter"), v.Replace(2, 2)))
    [step] = read_timeline(events).turns[0].steps
    assert [(one.text, one.plugin) for one in step.inputs] == [("note", "my-policy")]
    assert rows(read_timeline(events))[-1] == Row(at_ms=2, depth=2, what="my-policy:", note="note")


def test_times_count_from_the_first_event_even_at_zero() -> None:
    assert read_timeline([]) == Timeline()
    assert read_timeline(log((0, TURN))).began_ms == 0
    assert [row.at_ms for row in rows(read_timeline(BATCH))] == [0, 0, 1, 210, 210, 410]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.00 s"),
        (99_994, "99.99 s"),
        (100_000, "1:40"),
        (3_599_999, "59:59"),
        (3_600_000, "1:00:00"),
        (90_061_000, "1 d 01:01:01"),
    ],
)
def test_durations_are_for_people(ms: int, text: str) -> None:
    assert duration(ms) == text


@given(logs())
def test_any_events_give_a_table(events: list[v.Event]) -> None:
    """Whatever a log holds: no failure, no control characters, no line too wide."""
    timeline = read_timeline(events)
    for line in table(timeline, 60):
        assert columns(line) <= 60
        assert not [char for char in line if unicodedata.category(char) == "Cc"]


def test_table_hides_what_a_terminal_would_obey() -> None:
    events = log((0, TURN), (0, STEP), (0, asked("\x1b[2J evil\u202e\nand \x07more")))
    text = "\n".join(table(read_timeline(events), 120))
    assert r"user:  \x1b[2J evil\u202e and \x07more" in text
    assert "\x1b" not in text


def test_narrow_table_keeps_its_times() -> None:
    lines = table(read_timeline(BATCH), 40)
    assert max(map(columns, lines)) <= 40
    assert [line.split()[0] for line in lines[1:]] == [
        f"{row.at_ms / 1000:.2f}" for row in rows(read_timeline(BATCH))
    ]


# A real engine's log.


@asynccontextmanager
async def agent_on(model: ScriptedModel, *tools: terzetto.Tool) -> AsyncIterator[terzetto.Agent]:
    clock: Iterator[int] = count(1_000, 7)
    async with (
        terzetto.open_engine(adapters=[model], tools=tools, now_ms=lambda: next(clock)) as engine,
        engine.open_agent(provider="scripted", model="m") as agent,
    ):
        yield agent


async def test_every_prefix_of_a_real_log_can_be_read() -> None:
    @terzetto.tool(parallel=True)
    async def look(at: str) -> str:
        await trio.lowlevel.checkpoint()
        return at

    model = ScriptedModel(
        [
            answer(say("Two."), call("look", at="a"), call("look", at="b"), call("nothing")),
            "Done.",
            finish_error("AUTH"),
        ]
    )
    async with agent_on(model, look) as agent:
        await agent.ask("go")
        with pytest.raises(terzetto.TurnFailed):
            await agent.ask("again")
    events = whole(agent.session)
    first, second = read_timeline(events).turns
    assert [c.name for c in first.steps[0].calls] == ["look", "look", "nothing"]
    assert first.steps[1].calls == ()
    assert [c.code for c in first.steps[0].calls] == [None, None, "UNKNOWN_TOOL"]
    assert (first.reason, second.reason) == ("completed", "failed: AUTH")
    assert second.steps[0].failures == ("AUTH",)
    for length in range(len(events)):
        timeline = read_timeline(events[:length])
        assert len(table(timeline)) == len(rows(timeline)) + 1
        for turn in timeline.turns:
            for step in turn.steps:
                for one in step.calls:
                    assert one.running_ms is None or one.running_ms > 0
                    assert one.waited_ms is None or one.waited_ms > 0
