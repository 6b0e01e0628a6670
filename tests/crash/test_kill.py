"""SIGKILL in the middle of effects: no crash makes the engine say that one did not happen.

More of it: ``python -m tests.crash.kill``, 300 kills for each store and level, and with
``--power`` as many power cuts. Those here are few, and the same ones each time as far as a
process that is killed from outside can be.
"""

from __future__ import annotations

import re

import pytest
from attrs import evolve
from tests.crash.commands import run
from tests.crash.defects import SEEDED
from tests.crash.ledger import Effect
from tests.crash.verdicts import Fate, of_a_log, of_the_effects
from tests.whole import whole

from terzetto import open_engine, tool
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.testing._virtual import play
from terzetto.vocabulary import (
    CallId,
    Event,
    Interrupted,
    StepEnd,
    ToolCallEvent,
    ToolErrorInfo,
    ToolResultEvent,
    TurnEnd,
    texts,
)

LAST = re.compile(r"(\d+) kills, ([\d,]+) effects, (\d+) violations")


@pytest.mark.parametrize(
    ("files", "power"), [("jsonl", []), ("packed", ["--power"])], ids=["kill", "power cut"]
)
def test_no_effect_is_denied_or_invited_twice(files: str, power: list[str]) -> None:
    """BC-44, C145, C148: the ledger of what happened agrees with the log, whenever it ends;
    in files as in a database, and at every level of durability."""
    stores = ["--store", files, "--store", "sqlite"]
    code, lines = run("kill", *stores, "--kills", "4", *power)
    assert code == 0, "\n".join(lines)
    found = LAST.fullmatch(lines[-1])
    assert found is not None
    assert (int(found[1]), int(found[3])) == (24, 0)
    assert int(found[2].replace(",", "")) > 50
    assert [line.partition(":")[0] for line in lines[:-1]] == [
        f"{store} {level}" for store in (files, "sqlite") for level in ("step", "lazy", "each")
    ]
    # They died where it matters: effects had begun, and calls had not.
    assert re.search(r"\d+ TOOL_OUTCOME_UNKNOWN", "".join(lines))
    assert re.search(r"\d+ TOOL_NOT_STARTED", "".join(lines))
    if power:
        assert re.search(r"[1-9][\d,]* bytes lost", "".join(lines))


def test_defects_are_seen() -> None:
    """A store that acknowledges without writing, or without syncing; an engine that starts
    bodies before the flush; a recovery that takes what was started for what was not."""
    code, lines = run("kill", "--break")
    assert code == 0, "\n".join(lines)
    assert lines[-1] == f"{len(SEEDED)} defects, 0 not seen"
    assert sum(": seen: " in line for line in lines) == len(SEEDED)


# --- the verdict itself -------------------------------------------------------------------


@tool(parallel=True)
async def act(effect: str) -> str:
    return effect


def fate(level: str = "step") -> Fate:
    """A turn of two calls, "a" and "b", that nobody disturbed."""
    calls = (call("act", {"effect": name}, id=f"call-{name}") for name in "ab")
    model = ScriptedModel([answer(*calls), "Done."])

    async def main() -> Fate:
        async with (
            open_engine(adapters=[model], tools=[act]) as engine,
            engine.open_agent(provider="scripted", model="m") as agent,
        ):
            await agent.ask("act")
            events, header = whole(agent.session), agent.session.header
        return Fate(evolve(header, durability=level), events)

    return play(main)


EFFECTS = tuple(Effect("s", CallId(f"call-{name}"), name, "act") for name in "ab")
ENDED = {("s", f"call-{name}") for name in "ab"}


def said(
    fate: Fate,
    effects: tuple[Effect, ...] = EFFECTS,
    ended: set[tuple[str, str]] = ENDED,
    level: str = "step",
) -> list[str]:
    return list(of_the_effects({"s": fate}, effects, ended, level))


def refused(fate: Fate, code: str) -> Fate:
    """The second call's result says *code* instead."""
    at = max(e.seq for e in fate.events if isinstance(e.data, ToolResultEvent))
    data = fate.events[at].data
    assert isinstance(data, ToolResultEvent)
    changed = evolve(fate.events[at], data=evolve(data, error=ToolErrorInfo("x", code)))
    return evolve(fate, events=[*fate.events[:at], changed, *fate.events[at + 1 :]])


def test_an_undisturbed_life_is_in_order() -> None:
    assert list(of_a_log(fate())) == []
    assert said(fate()) == []


@pytest.mark.parametrize("code", [texts.TOOL_NOT_STARTED, texts.ABORTED_BEFORE_DISPATCH])
def test_an_effect_that_began_must_not_be_denied(code: str) -> None:
    (problem,) = said(refused(fate(), code))
    assert problem.endswith(f"call call-b, began, and its result says {code}")
    assert said(refused(fate(), code), EFFECTS[:1]) == []
    assert said(refused(fate(), texts.TOOL_OUTCOME_UNKNOWN)) == []


def test_an_effect_without_a_call_is_seen() -> None:
    lost = Effect("s", CallId("call-c"), "c", "act")
    assert said(fate(), (*EFFECTS, lost)) == ["the effect c of s, call call-c, is in no log"]
    # A lazy store may lose the whole answer, and a tool without effects does not wait.
    assert said(fate("lazy"), (*EFFECTS, lost), level="lazy") == []
    assert said(fate(), (*EFFECTS, evolve(lost, tool="look"))) == []
    assert len(said(fate("each"), (*EFFECTS, evolve(lost, tool="look")), level="each")) == 1


def test_a_result_that_nobody_made_is_seen() -> None:
    (problem,) = said(fate(), ended={("s", "call-a")})
    assert problem == "call call-b of s has a result, and never ended"
    exchanged = tuple(evolve(one, name="a") for one in EFFECTS)
    assert "call call-b, has the result of another: 'b'" in said(fate(), exchanged)[0]


def test_an_effect_that_is_invited_twice_is_seen() -> None:
    twice = Effect("s", CallId("call-b"), "b", "act")
    assert said(fate(), (*EFFECTS, twice)) == [
        "call call-b ran 2 times",
        "the effect b was invited again, and happened 2 times",
    ]


def test_the_repair_of_each_death_is_judged() -> None:
    """C145: what was recorded is unknown, what was not never started; with lazy, all unknown."""
    whole = fate()
    starts = [e.seq for e in whole.events if isinstance(e.data, ToolCallEvent)]
    for death, wanted in ((starts[0], 2), (starts[0] + 1, 1), (starts[1] + 1, 0)):
        closed = repaired(whole.events, death, texts.TOOL_NOT_STARTED)
        found = list(of_a_log(Fate(whole.header, closed, [death])))
        assert sum("TOOL_OUTCOME_UNKNOWN" in line for line in found) == 2 - wanted, found
        closed = repaired(whole.events, death, texts.TOOL_OUTCOME_UNKNOWN)
        found = list(of_a_log(Fate(evolve(whole.header, durability="lazy"), closed, [death])))
        assert found == []
        found = list(of_a_log(Fate(whole.header, closed, [death])))
        assert len(found) == wanted, found


def repaired(events: object, death: int, code: str) -> list[Event]:
    """*events* up to *death*, closed by hand with *code* for each call without a result."""
    assert isinstance(events, list)
    kept = events[:death]
    last = kept[-1].time_ms
    results = [e for e in events if isinstance(e.data, ToolResultEvent)]
    data = [
        (
            evolve(e.data, error=ToolErrorInfo("x", code)),
            e.surface_op,
            # What was not recorded has no tool/call to cite.
            tuple(s for s in e.sources or () if s < death) or None,
        )
        for e in results
    ]
    step = next(e.data for e in events if isinstance(e.data, StepEnd))
    turn = next(e.data for e in events if isinstance(e.data, TurnEnd))
    for each, op, sources in data:
        kept.append(Event(len(kept), last, each, op, sources))
    kept.append(Event(len(kept), last, step))
    kept.append(Event(len(kept), last, evolve(turn, ending=Interrupted())))
    return kept
