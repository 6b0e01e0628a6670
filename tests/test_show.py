"""What ``terzetto show`` makes of a log: values in, lines or a document out."""

import json
import os
import re
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, strategies as st

from terzetto import vocabulary as v
from terzetto.commands._bars import ASCII, UNICODE, chart
from terzetto.commands._lines import beginning, line, spread, wrapped
from terzetto.commands._show_json import document
from terzetto.commands._show_lines import Shown, render
from terzetto.commands._terminal import Look, Terminal, columns
from terzetto.session import is_snapshot
from terzetto.timeline import ToolSpan, read_timeline
from tests import shown as sessions
from tests.strategies import logs
from tests.strategies_logs import open_logs, recorded_logs
from tests.test_timeline import (
    BATCH,
    COMPLETED,
    STEP,
    STEP_END,
    TURN,
    asked,
    chunk,
    log,
    result,
    said,
    started,
    tool_call,
)

GOLDEN = Path(__file__).parent / "golden"
HEADER = v.SessionHeader(id=v.SessionId("s"), created_ms=0)
PLAIN = Look(width=80)


def of(events: Sequence[v.Event], **more: object) -> Shown:
    return Shown(header=HEADER, timeline=read_timeline(events), **more)


def doc(shown: Shown) -> Any:
    return document(shown)


def text(shown: Shown, look: Look = PLAIN) -> str:
    return "".join(f"{one.text.rstrip()}\n" for one in render(shown, look))


def rows(events: Sequence[v.Event], look: Look = PLAIN) -> list[str]:
    """The lines of the calls, without the axis."""
    return re.findall(r"^(?:  tools?   | {10})(\d .*)$", text(of(events), look), re.MULTILINE)


def spans(events: Sequence[v.Event]) -> list[ToolSpan]:
    return [call for step in read_timeline(events).steps for call in step.calls]


# --- whole sessions ---------------------------------------------------------------------------


@pytest.mark.parametrize("session", [sessions.busy_session, sessions.cut_session])
@pytest.mark.parametrize("look", [Look(width=92, unicode=True), Look(width=50)])
async def test_session_looks_as_it_did(
    session: Callable[[], Awaitable[Shown]], look: Look, autojump_clock: object
) -> None:
    """Read by people before they were kept; ``GOLDEN=write pytest`` writes them anew."""
    shown = await session()
    path = GOLDEN / f"{session.__name__}-{look.width}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text(shown, look), "utf-8")
    assert text(shown, look) == path.read_text("utf-8")


async def test_document_of_a_session_has_all_of_it(autojump_clock: object) -> None:
    found = doc(await sessions.busy_session())
    [turn] = found["turns"]
    first, second = turn["steps"]
    assert found["counts"] == {"turns": 1, "steps": 2, "calls": 7}
    assert found["usage"] == {
        "inputTokens": 1200,
        "outputTokens": 34,
        "cacheReadTokens": 1000,
        "cacheWriteTokens": None,
        "reasoningTokens": 12,
    }
    assert (turn["ending"], turn["cause"], turn["error"]) == ("completed", None, None)
    assert [one["failure"] and one["failure"]["code"] for one in first["attempts"]] == [
        "SERVER",
        None,
    ]
    assert first["route"] == {"provider": "scripted", "model": "m-1", "effort": None}
    calls = [(c["name"], c["outcome"], c["held"], c["alone"]) for c in first["calls"]]
    assert calls == [
        ("read_file", "ok", False, False),
        ("read_file", "ok", True, False),
        ("read_file", "error", True, False),
        ("read_file", "ok", False, False),
        ("write_file", "ok", False, True),
        ("read_file", "ok", False, True),
        ("sing", "error", False, True),
    ]
    [policy, steer] = second["inputs"]
    assert (policy["plugin"], policy["via"]) == ("my-policy", "next-step")
    assert (steer["plugin"], steer["via"], steer["text"]) == (None, "next-step", "And hurry!")
    assert steer["sentMs"] == sessions.BEGAN_MS + 1000
    assert json.loads(json.dumps(found)) == found


async def test_document_of_a_cut_session_says_what_was_cut(autojump_clock: object) -> None:
    found = doc(await sessions.cut_session())
    assert [(t["ending"], t["cause"], t["reason"]) for t in found["turns"]] == [
        ("aborted", "user", "aborted by the user"),
        ("aborted", "user", "aborted by the user"),
        ("error", None, "failed: AUTH"),
        (None, None, "open"),
    ]
    assert found["turns"][2]["error"] == {"code": "AUTH", "message": "no such key"}
    told, batch, *_ = (turn["steps"][0] for turn in found["turns"])
    assert (told["text"], told["interrupted"]) == ("Once upon a time ", True)
    assert [call["outcome"] for call in batch["calls"]] == ["ok", "aborted", "not-started"]
    assert [(m["kind"], m["text"]) for m in found["marks"]] == [
        ("discarded", "Never mind this."),
        ("model", "scripted m-2"),
        ("resumed", ""),
    ]
    assert [(m["via"], m["text"]) for m in found["pending"]] == [
        ("next-step", "A note \x1b[2Jfor\u202e later."),
        ("next-turn", "Hello?"),
    ]
    assert found["log"]["tornBytes"] == 37


# --- laws -------------------------------------------------------------------------------------


LOOKS = st.builds(
    Look,
    width=st.sampled_from([30, 31, 47, 60, 92, 200]),
    unicode=st.booleans(),
    color=st.just(True),
)


def check_lines(shown: Shown, look: Look) -> None:
    paint = Terminal(None, evolve(look, color=False)).style
    for one in render(shown, look):
        assert columns(one.text) <= look.width
        assert not [char for char in one.text if unicodedata.category(char) in ("Cc", "Cs")]
        assert one.painted(paint) == one.text


def appended(events: Sequence[v.Event]) -> list[v.EventData]:
    return [e.data for e in events if not isinstance(e.surface_op, v.Replace)]


def check_counts(shown: Shown, events: Sequence[v.Event]) -> None:
    """What is in the log is in the document, however it is counted."""
    found = doc(shown)
    data = appended(events)
    turns = found["turns"]
    steps = [step for turn in turns for step in turn["steps"]]
    calls = [call for step in steps for call in step["calls"]]
    assert len(turns) == found["counts"]["turns"] == sum(isinstance(d, v.TurnStart) for d in data)
    assert len(steps) == found["counts"]["steps"] == sum(isinstance(d, v.StepStart) for d in data)
    asked_for = [
        call.id
        for d in data
        if isinstance(d, v.AssistantMessageEvent)
        for call in d.message.tool_calls
    ]
    assert [call["id"] for call in calls] == asked_for
    assert len(calls) == found["counts"]["calls"]
    endings = [turn["ending"] for turn in turns if turn["ending"] is not None]
    assert len(endings) == sum(isinstance(d, v.TurnEnd) for d in data)
    for key, kind in (("startedMs", v.ToolCallEvent), ("resultMs", v.ToolResultEvent)):
        assert sum(call[key] is not None for call in calls) == sum(
            isinstance(d, kind) for d in data
        )
    failed = [one for step in steps for one in step["attempts"] if one["failure"] is not None]
    assert len(failed) == sum(
        isinstance(d, v.AssistantChunk)
        and isinstance(d.chunk, v.Finish)
        and isinstance(d.chunk.reason, (v.ErrorFinish, v.AbortedFinish))
        for d in data
    )
    entered = [one["id"] for step in steps for one in step["inputs"]]
    assert entered == [
        d.message.id
        for d in data
        if isinstance(d, v.UserMessageEvent) and not is_snapshot(d.message)
    ]
    assert found["log"]["events"] == len(events)


@given(open_logs(splitting=True) | recorded_logs(), LOOKS, st.integers(0, 400))
def test_any_prefix_of_any_log_can_be_shown(
    events: Sequence[v.Event], look: Look, length: int
) -> None:
    """No failure, no line too wide, and nothing that was in the log is missing."""
    shown = of(events[:length])
    check_lines(shown, look)
    check_counts(shown, events[:length])


@given(logs(), LOOKS, st.integers(0, 5))
def test_events_that_no_session_would_accept_can_be_shown(
    events: list[v.Event], look: Look, torn: int
) -> None:
    shown = of(events, torn=torn)
    check_lines(shown, look)
    assert json.loads(json.dumps(doc(shown)))["log"]["events"] == len(events)


# --- bars -------------------------------------------------------------------------------------


def test_bars_share_one_time() -> None:
    assert rows(BATCH) == [
        "1 a .=============================|:             :   0.19 s  ok",
        "2 b .-----------------------------|:             : <=0.19 s  BROKEN",
        "3 c ...............................==============|    90 ms  ok, alone",
    ]


def test_terminal_without_unicode_gets_none() -> None:
    assert text(of(BATCH)).isascii()
    assert not text(of(BATCH), Look(unicode=True)).isascii()


def test_barrier_stands_alone_between_walls() -> None:
    """Whoever ran alone overlaps nobody, even where a column is longer than its body."""
    events = log(
        (0, TURN),
        (0, STEP),
        (0, said(*map(tool_call, "abc"))),
        (0, started("a")),
        (1000, result("a")),
        (1000, started("b")),
        (1000, result("b")),
        (1000, started("c")),
        (1001, result("c")),
    )
    assert [call.alone for call in spans(events)] == [True, True, True]
    bars = [row.split("s  ok")[0] for row in rows(events)]
    bodies = [{n for n, char in enumerate(bar) if char == "="} for bar in bars]
    assert all(bodies)
    assert max(bodies[0]) < min(bodies[1])
    assert max(bodies[1]) < min(bodies[2])
    assert all("alone" in row for row in rows(events))


@given(st.data())
def test_columns_keep_the_order_of_the_log(data: st.DataObject) -> None:
    """Bodies one after the other never share a column, if there is one for each."""
    size = data.draw(st.integers(1, 12))
    width = data.draw(st.integers(90, 140))
    at = 0
    entries: list[tuple[int, v.EventData]] = [
        (0, TURN),
        (0, STEP),
        (0, said(*(tool_call(f"t{n}") for n in range(size)))),
    ]
    for n in range(size):
        at += data.draw(st.sampled_from([0, 1, 5, 10_000]))
        entries.append((at, started(f"t{n}")))
        at += data.draw(st.sampled_from([0, 1, 5, 10_000]))
        entries.append((at, result(f"t{n}")))
    calls = spans(log(*entries))
    rows = [one.text for one in chart(calls, at, width, ASCII)][:size]
    end = 0
    for row in rows:
        body = row.index("=") if "=" in row else -1
        assert body >= end
        end = row.index("|", body)


def test_result_that_came_with_an_earlier_one_is_not_called_running() -> None:
    """When a body ended is not in the log; nothing is made up about it."""
    first, second, third = spans(BATCH)
    assert (first.held, second.held, third.held) == (False, True, False)
    shown = text(of(BATCH), Look(width=80, unicode=True)).splitlines()
    assert ["╍" in row for row in shown if " ┃" in row or "┃" in row][:3] == [False, True, False]


@pytest.mark.parametrize(
    ("first", "second", "held"),
    [
        (100, 100, True),
        (100, 125, True),
        (100, 126, False),
        (9000, 9999, True),
        (9000, 10_001, False),
    ],
)
def test_result_that_came_much_later_than_the_one_before_was_not_held(
    first: int, second: int, held: bool
) -> None:
    events = log(
        (0, TURN),
        (0, STEP),
        (0, said(*map(tool_call, "ab"))),
        (0, started("a")),
        (0, started("b")),
        (first, result("a")),
        (second, result("b")),
    )
    assert [call.held for call in spans(events)] == [False, held]


def test_call_that_started_after_a_result_did_not_wait_for_it() -> None:
    events = log(
        (0, TURN),
        (0, STEP),
        (0, said(*map(tool_call, "ab"))),
        (0, started("a")),
        (5, result("a")),
        (5, started("b")),
        (6, result("b")),
    )
    assert [call.held for call in spans(events)] == [False, False]


def test_call_that_never_started_has_no_body() -> None:
    events = log(
        (0, TURN),
        (0, STEP),
        (0, said(*map(tool_call, "ab"))),
        (0, started("a")),
        (50, result("a", "ABORTED")),
        (50, started("b")),
        (50, result("b", "ABORTED_BEFORE_DISPATCH")),
        (50, STEP_END),
    )
    first, second = rows(events)
    assert first.endswith("aborted, alone")
    assert "=" not in second
    assert second.endswith("not started")


def test_call_without_result_goes_on_to_the_end_of_the_log() -> None:
    events = log(
        (0, TURN),
        (0, STEP),
        (0, said(*map(tool_call, "abc"))),
        (0, started("a")),
        (10, started("b")),
        (400, v.Extension("app/note")),
    )
    first, second, third = rows(events)
    assert first.count(">") == second.count(">") == 1
    assert first.index(">") == second.index(">")
    assert first.endswith("running")
    assert third.endswith("waiting")
    assert ">" not in third
    assert doc(of(events))["turns"][0]["steps"][0]["calls"][0]["resultMs"] is None


def test_call_that_a_crash_left_is_unknown() -> None:
    events = log(
        (0, TURN),
        (0, STEP),
        (0, said(tool_call("a"))),
        (5, started("a")),
        (9, result("a", "TOOL_OUTCOME_UNKNOWN")),
        (9, STEP_END),
        (9, v.TurnEnd(1, v.Interrupted())),
    )
    assert [call.outcome for call in spans(events)] == ["unknown"]
    assert "Turn 1  crashed, closed later" in text(of(events))
    assert "1 call (1 unknown)" in text(of(events))


@pytest.mark.parametrize("width", [30, 40, 50, 60, 80, 200])
def test_wide_characters_stay_in_line(width: int) -> None:
    """Bars begin and end in the same columns, whatever the names are made of."""
    names = ("日本語の道具", "🎻🎺", "e\u0301te\u0301", "plain")
    calls = [
        ToolSpan(
            call_id=v.CallId(name),
            name=name,
            arguments='{"path": "日本語.txt"}',
            asked_ms=0,
            started_ms=0,
            started_seq=n,
            committed_ms=100,
            committed_seq=9,
        )
        for n, name in enumerate(names)
    ]
    bars = [one.text for one in chart(calls, 100, width, UNICODE)][: len(names)]
    ends = {columns(bar[: bar.rindex("0.10 s")]) for bar in bars}
    assert len(ends) == 1
    assert len({columns(bar[: bar.index("┃")]) for bar in bars if "┃" in bar}) <= 1
    assert max(map(columns, bars)) <= width


# --- what is said -----------------------------------------------------------------------------


def test_retries_say_what_failed_and_how_long_was_waited() -> None:
    failure = v.Failure(message="slow\ndown", code="RATE_LIMIT", status=429)
    events = log(
        (0, TURN),
        (0, STEP),
        (20, v.AssistantChunk(1, 1, v.Finish(v.ErrorFinish(failure)))),
        (20, v.LlmRetry(turn=1, step=1, retry_id="r", attempt=1, delay_ms=500, failure=failure)),
        (520, v.LlmRetryStarted(turn=1, step=1, retry_id="r")),
        (540, chunk("hi")),
        (560, said(v.TextBlock("hi"))),
        (560, STEP_END),
        (560, COMPLETED),
    )
    found = text(of(events))
    assert "failed  Attempt 1 after 20 ms: RATE_LIMIT. slow down Tried again after 0.50 s." in found
    assert "step 1  0.56 s; first after 20 ms; 1 piece" in found
    first, second = doc(of(events))["turns"][0]["steps"][0]["attempts"]
    assert (first["retryDelayMs"], second["startedMs"], second["firstMs"]) == (500, 520, 540)


def test_set_aside_input_is_shown_with_its_turn() -> None:
    """C46: claimed, and neither entered nor given back: consumed by the turn that was blocked."""
    message = v.UserMessage("let me in", id=v.MessageId("m"))
    events = log(
        (0, v.InboxSpliced("next-turn", 0, 0, (message,))),
        (1, TURN),
        (1, v.InboxSpliced("next-turn", 0, 1)),
        (2, v.TurnEnd(1, v.Blocked())),
    )
    assert "user    (set aside, never entered a step) let me in" in text(of(events))
    assert "(taken up) let me in" in text(of(events[:3]))
    assert "user    (for the next turn) let me in" in text(of(events[:1]))
    put_back = log(
        *((e.time_ms, e.data) for e in events[:3]),
        (2, v.InboxSpliced("next-turn", 0, 0, (message,))),
    )
    assert read_timeline(put_back).turns[0].unentered == ()
    assert [one.text for one in read_timeline(put_back).pending] == ["let me in"]


def test_edited_input_is_not_called_discarded() -> None:
    old, new = (v.UserMessage(said, id=v.MessageId("m")) for said in ("old", "new"))
    events = log(
        (0, v.InboxSpliced("next-turn", 0, 0, (old,))),
        (1, v.InboxSpliced("next-turn", 0, 1, (new,), "canceled")),
    )
    assert read_timeline(events).marks == ()
    events += [v.Event(2, 2, v.InboxSpliced("next-turn", 0, 1, (), "canceled"))]
    assert [mark.text for mark in read_timeline(events).marks] == ["new"]
    assert "- input discarded  new" in text(of(events))


def test_header_tells_the_lineage_the_folder_and_foreign_events() -> None:
    header = v.SessionHeader(
        id=v.SessionId("child\x1b[31m"),
        created_ms=1_767_225_600_000,
        cwd="/home/me",
        parent_id=v.SessionId("mother"),
        seed_length=12,
        durability="each",
    )
    events = log((0, v.Extension("app/note")), (1, v.EndSeed(inherited=True)))
    shown = Shown(header=header, timeline=read_timeline(events))
    assert text(shown) == (
        "Session child\\x1b[31m\n"
        "  created 2026-01-01 00:00:00 UTC\n"
        "  folder  /home/me\n"
        "  from    mother, 12 events of it\n"
        "  turns   0 turns, 0 steps, 0 calls\n"
        "  log     2 events over 1 ms, durability each\n"
        "  also    app/note (1)\n"
        "\n"
        "- forked: what is above is inherited                                     at 1 ms\n"
    )


def test_empty_log_is_a_header() -> None:
    assert text(of([])) == (
        "Session s\n"
        "  created 1970-01-01 00:00:00 UTC\n"
        "  turns   0 turns, 0 steps, 0 calls\n"
        "  log     0 events, durability step\n"
    )


def test_year_beyond_the_calendar_is_a_number() -> None:
    header = evolve(HEADER, created_ms=10**30)
    assert f"created {10**30} ms after the epoch" in text(
        Shown(header=header, timeline=read_timeline([]))
    )


def test_torn_end_is_told_and_counted() -> None:
    shown = of(BATCH, torn=1)
    assert "The log ends in 1 byte of an unfinished record, left as they are." in text(shown)
    assert doc(shown)["log"]["tornBytes"] == 1


def test_only_the_wanted_turns_are_shown() -> None:
    events = log(
        *((n, data) for n in range(1, 5) for data in (v.TurnStart(n), v.TurnEnd(n, v.Completed())))
    )
    shown = of(events, turns=range(2, 4))
    assert re.findall(r"^Turn \d", text(shown), re.MULTILINE) == ["Turn 2", "Turn 3"]
    assert [turn["number"] for turn in doc(shown)["turns"]] == [2, 3]
    assert doc(shown)["counts"]["turns"] == 4


def test_model_and_tools_cannot_reach_the_terminal() -> None:
    """What they write is shown, not obeyed."""
    evil = "\x1b]0;evil\x07 \x9b31m \u202eabc\r\n\x00"
    events = log(
        (0, TURN),
        (0, STEP),
        (0, asked(evil)),
        (
            1,
            said(
                v.TextBlock(evil),
                v.ReasoningBlock(evil),
                v.ToolCallBlock(v.CallId("c"), evil, evil),
            ),
        ),
        (2, started("c")),
        (
            3,
            v.ToolResultEvent(
                1,
                1,
                v.UserMessage(
                    (v.ToolResultBlock(v.CallId("c"), (v.TextBlock(evil),), True),),
                    v.ToolSource(v.CallId("c")),
                ),
                v.ToolErrorInfo(evil, evil),
            ),
        ),
        (4, v.TurnEnd(1, v.Failed(v.Failure(message=evil, code=evil)))),
    )
    found = text(of(events), Look(width=120))
    assert r"\x1b]0;evil\x07" in found
    assert not {*found} & {*"\x1b\x07\x9b\u202e\r\x00"}


# --- lines ------------------------------------------------------------------------------------


@given(st.text(max_size=200), st.integers(4, 30), st.integers(1, 5))
def test_wrapped_text_is_its_beginning(text: str, width: int, limit: int) -> None:
    rows, cut = wrapped(text, width, limit)
    assert len(rows) <= limit
    assert all(columns(row) <= width for row in rows)
    whole, shown = "".join(beginning(text, 10_000).split()), "".join("".join(rows).split())
    assert whole.startswith(shown) if cut else whole == shown


def test_long_texts_cost_only_what_is_shown() -> None:
    rows, cut = wrapped("word " * 10_000_000, 20, 2)
    assert rows == ["word word word word", "word word word word"]
    assert cut


@pytest.mark.parametrize("width", range(1, 30))
def test_line_is_cut_where_its_width_ends(width: int) -> None:
    whole = line(("ab日本", ("bold",)), "cd", ("語語語語語語", ("dim",)))
    cut = whole.within(width)
    assert columns(cut.text) <= width
    assert cut is whole or cut.text.endswith("..."[:width])


def test_right_side_stands_at_the_right() -> None:
    assert spread([("left", ())], ["right"], 20).text == "left           right"
    assert spread([("left", ())], ["too much right", "right"], 12).text == "left   right"
    assert spread([("left", ())], ["right"], 10).text == "left"
