"""``terzetto explain``: what it says of every request, in a terminal, a pipe, and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

import terzetto
from terzetto import Request, Retry, vocabulary as v
from terzetto.commands._explain import document, explain, lines
from terzetto.commands._terminal import Look, Terminal
from terzetto.llm.scripted import Gate, ScriptedModel, answer, call, finish_error, say
from terzetto.session import canonical
from tests.commands import in_process, linux_like
from tests.stored import KINDS, digest, look, place, store_at

pytestmark = linux_like
Capture = pytest.CaptureFixture[str]


async def live(
    path: Path,
    script: Any,
    play: Callable[[terzetto.Engine, terzetto.Agent, ScriptedModel], Any],
    **options: Any,
) -> list[Request]:
    """Play a session called "Tea"; the requests that were sent."""
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 10))
    model = ScriptedModel(script)
    async with (
        terzetto.open_engine(
            adapters=[model], tools=[look], store=store_at(path), now_ms=lambda: next(clock)
        ) as engine,
        engine.open_agent(provider="scripted", model="m", session_id="Tea", **options) as agent,
    ):
        await play(engine, agent, model)
    return model.requests


SCRIPT = [
    answer(say("I sha"), finish_error("SERVER", "overloaded")),
    answer(say("Let me see."), call("look", at="here")),
    "Seen.",
    "Yes.",
    answer(Gate("held")),
    "Still there.",
]


async def eventful(engine: terzetto.Engine, agent: terzetto.Agent, model: ScriptedModel) -> None:
    """A retry, a tool, another prompt, another model, an answer that never comes, a fork."""

    async def again(value: Any, proceed: Any) -> Any:
        return Retry()

    agent.scope.hooks.request_error.listen(again)
    await agent.ask("Go.")
    agent.scope.add_section("more", "Be \x1b[2J brief.")
    agent.model.select("scripted", "other \x1b[2J", "high")
    await agent.ask("Again?")
    agent.followup("Hello?")
    await model.gates.wait_reached("held")
    agent.cancel()
    await agent.wait_idle()
    async with engine.open_agent(fork=agent, session_id="Fork") as fork:
        await fork.ask("And now?")


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    places = {kind: place(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}
    for path in places.values():
        trio.run(lambda path=path: live(path, SCRIPT, eventful, system="Be nice."))
    return places


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_for_each_request_and_the_sums(
    kind: str, sessions: dict[str, Path], capsys: Capture
) -> None:
    before = digest(sessions[kind])
    code, out, err = in_process(capsys, "explain", "Tea", "--log", str(sessions[kind]))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "   #  turn  step  try        bytes       reused          new",
        "scripted, m",
        "   1     1     1    1          288            0          288",
        "   2     1     1    2          288          288            0",
        "   3     1     2    1          607          288          319",
        "scripted, other \\x1b[2J, effort high",
        "   4     2     1    1          754          226          528",
        "          broken by system/message 40: the prompt was rewritten",
        "   5     3     1    1          877          754          123  no answer came",
        "4 requests, 1,937 bytes, 41.4% reused, 0 unexplained breaks",
    ]
    assert digest(sessions[kind]) == before  # it only reads


def test_a_fork_shows_what_it_inherited(sessions: dict[str, Path], capsys: Capture) -> None:
    code, out, _ = in_process(capsys, "explain", "Fork", "--log", str(sessions["folder"]))
    assert code == 0
    rows = [line for line in out.splitlines() if line[:4].strip().isdecimal()]
    assert [row[62:] for row in rows] == ["inherited"] * 5 + [""]
    assert out.splitlines()[-1].startswith("1 request, ")


def test_one_turn_is_shown_and_everything_counted(
    sessions: dict[str, Path], capsys: Capture
) -> None:
    arguments = ("explain", "Tea", "--log", str(sessions["folder"]))
    _, whole, _ = in_process(capsys, *arguments)
    _, part, _ = in_process(capsys, *arguments, "--turn", "2")
    assert [line[:4] for line in part.splitlines()] == ["   #", "scri", "   4", "    ", "4 re"]
    assert part.splitlines()[-1] == whole.splitlines()[-1]


def test_the_document_has_every_number(sessions: dict[str, Path], capsys: Capture) -> None:
    code, out, _ = in_process(
        capsys, "explain", "Tea", "--json", "--log", str(sessions["database"])
    )
    assert code == 0
    assert out.isascii()
    found = json.loads(out)
    assert found["explainVersion"] == 1
    assert found["session"] == {"id": "Tea", "parentId": None, "seedLength": 0}
    assert found["total"] == {
        "requests": 4,
        "bytes": 1937,
        "reusedBytes": 802,
        "newBytes": 1135,
        "unexplainedBreaks": 0,
    }
    fourth = found["requests"][3]
    assert fourth.pop("seq") > fourth.pop("headerSeq") - 1
    assert fourth == {
        "number": 4,
        "turn": 2,
        "step": 1,
        "attempt": 1,
        "route": {"provider": "scripted", "model": "other \x1b[2J", "effort": "high"},
        "answered": True,
        "inherited": False,
        "bytes": 754,
        "reusedBytes": 226,
        "newBytes": 528,
        "broken": True,
        "causes": [{"type": "system/message", "seq": 40, "what": "the prompt was rewritten"}],
        "unexplained": False,
    }
    assert [one["answered"] for one in found["requests"]] == [True] * 4 + [False]


def test_a_hundred_steps_each_say_all_that_was_said_before(tmp_path: Path, capsys: Capture) -> None:
    """C84 C94: one turn of a hundred requests, ninety-nine of them after a tool."""
    steps = [answer(say(f"Step {n}."), call("look", at=f"place {n}")) for n in range(99)]
    path = place(tmp_path, "folder")
    requests = trio.run(
        lambda: live(path, [*steps, "Done."], lambda engine, agent, model: agent.ask("Go."))
    )
    sizes = [len(canonical(request)) for request in requests]
    code, out, _ = in_process(capsys, "explain", "Tea", "--log", str(path))
    assert code == 0
    assert "broken" not in out.replace("unexplained breaks", "")
    *rows, sums = out.splitlines()[2:]
    said = [[int(cell.replace(",", "")) for cell in row.split()] for row in rows]
    assert [row[4] for row in said] == sizes
    assert [row[5] for row in said] == [0, *sizes[:-1]]
    reused = 100 * sum(sizes[:-1]) / sum(sizes)
    assert sums == (
        f"100 requests, {sum(sizes):,} bytes, {reused:.1f}% reused, 0 unexplained breaks"
    )
    assert reused > 97


def test_a_break_without_an_explanation_is_marked_and_fails(
    sessions: dict[str, Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No log can hold one, so one is put in."""
    from terzetto.commands import _explain

    real = _explain.growths

    def broken(*arguments: Any) -> Any:
        for growth in real(*arguments):
            unexplained = growth.broken
            yield evolve(growth, causes=(), unexplained=unexplained)

    monkeypatch.setattr(_explain, "growths", broken)
    code, out, err = in_process(capsys, "explain", "Tea", "--log", str(sessions["folder"]))
    assert (code, err) == (1, "")
    assert "          broken, and no event explains it\n" in out
    assert out.endswith(", 1 unexplained break\n")
    code, out, _ = in_process(capsys, "explain", "Tea", "--json", "--log", str(sessions["folder"]))
    assert code == 1
    assert json.loads(out)["total"]["unexplainedBreaks"] == 1


def test_colours_are_for_terminals_and_lines_are_no_wider(sessions: dict[str, Path]) -> None:
    header, events = trio.run(store_at(sessions["folder"]).read, "Tea")
    found = list(lines(explain(header, events)))
    terminal = Terminal(io.StringIO(), Look(color=True))
    painted = [line.painted(terminal.style) for line in found]
    assert painted[0].startswith("\x1b[2m   #")
    assert painted[7].startswith("\x1b[33m          broken by")
    assert all("\x1b[2J" not in line for line in painted)
    assert max(len(line.within(30).text) for line in found) == 30


def test_a_session_that_asked_nothing(tmp_path: Path, capsys: Capture) -> None:
    async def nothing(engine: terzetto.Engine, agent: terzetto.Agent, model: ScriptedModel) -> None:
        await trio.lowlevel.checkpoint()

    path = place(tmp_path, "folder")
    trio.run(lambda: live(path, [], nothing))
    code, out, _ = in_process(capsys, "explain", "Tea", "--log", str(path))
    assert (code, out) == (0, "0 requests, 0 bytes, 0.0% reused, 0 unexplained breaks\n")


def test_what_cannot_be_explained_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    code, out, err = in_process(capsys, "explain", "Tea", "--log", str(tmp_path))
    assert (code, out) == (1, "")
    assert err == f"terzetto: there is no session 'Tea' in {str(tmp_path)!r}, nor any other\n"


def test_a_log_that_no_engine_wrote_is_refused() -> None:
    header = v.SessionHeader(id=v.SessionId("a"), created_ms=1)
    events = [terzetto.Event(1, 0, v.TurnStart(1))]
    with pytest.raises(Exception, match=r"cannot be told: event 1: .* see terzetto verify"):
        explain(header, events)
    assert document(explain(header, []))["requests"] == []
