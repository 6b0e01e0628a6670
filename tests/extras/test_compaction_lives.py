"""Compaction and what surrounds it: prompts, snapshots, forks, crashes at every record."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from tests.agent.kit import ROUTE, check, engine_on, pending, played
from tests.agent.rig import Life, headers, one, shown
from tests.extras.test_compaction import (
    SUMMARY,
    WINDOW,
    answers,
    bracket,
    compacting_model,
    fill,
    is_summary,
    read,
)
from tests.whole import whole

import terzetto
from terzetto import ModelInfo, evolve
from terzetto.extras.budget import Budget
from terzetto.extras.compaction import Compaction, estimate_tokens
from terzetto.llm.scripted import Gate, ScriptedModel, answer, call, say
from terzetto.testing import history_is_valid
from terzetto.vocabulary import CompactionEnd, CompactionStart, Request


@played
async def test_a_snapshot_that_the_cut_took_away_is_restored() -> None:
    """C102 C103: the runtime context is owed again, in the very step that compacted."""
    model = ScriptedModel(answers("a" * 1600, "b" * 1600), info=WINDOW)
    async with one(model) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        life.agent.scope.add_context("place", "here")
        await fill(life)
        assert bracket(life)[-1] == "end completed"
        assert [line for line in life.request() if line.startswith("context")] == ["context: here"]
        check(life.session)


@played
async def test_a_newer_prompt_that_the_cut_took_away_is_at_the_head() -> None:
    """C93 C96 C98: on a route that takes new prompts in history."""
    info = evolve(WINDOW, system_prompt_update="in-history")
    model = ScriptedModel(answers("a" * 1600, "b" * 1600), info=info)
    async with one(model) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        section = life.agent.scope.add_section("s", "first")
        await life.say("one")
        section.remove()
        life.agent.scope.add_section("s", "second")
        await life.say("two")
        assert [m for m in life.request() if m.startswith("system")] == [
            "system: first",
            "system: second",
        ]
        await life.say("three")
        assert bracket(life)[:1] == ["start"]
        assert [m for m in life.request() if m.startswith("system")] == ["system: second"]
        assert life.request()[0] == "system: second"
        assert headers(life.session)[-1] == "request/header series"
        check(life.session)


@played
async def test_a_fork_and_a_resume_go_on_with_the_summary() -> None:
    """C154: what is seeded or stored is the compacted history."""
    store = terzetto.MemoryStore()
    model = ScriptedModel(answers(*["a" * 400] * 4))
    async with engine_on(model, store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="s") as agent:
            for number in range(4):
                await agent.ask(f"question {number}")
            await Compaction(keep_rounds=1).compact(agent)
            expected = shown(agent.history())
            seed = whole(agent.session)
        async with engine.open_agent(**ROUTE, seed=seed) as fork:
            assert shown(fork.history()) == expected
        async with engine.open_agent(resume="s") as again:
            assert shown(again.history()) == expected
            await again.ask("and on")
            assert shown(model.requests[-1].messages) == [*expected, "user: and on"]
            assert expected[0].startswith(f"user: {SUMMARY}SUM")


@played
async def test_input_that_comes_during_a_summary_waits_for_the_next_step() -> None:
    """C50: the step that is being prepared was decided without it."""

    def script(request: Request) -> Any:
        if is_summary(request):
            return answer(say("SUM"), Gate("summary"))
        return "a" * 1600 if len(model.requests) < 3 else "ok"

    model = ScriptedModel(script, info=WINDOW)
    async with one(model) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        await fill(life, 2)
        life.agent.followup("three")
        await model.gates.wait_reached("summary")
        life.agent.steer("and this")
        assert pending(life.agent) == ["and this"]
        model.gates.open("summary")
        await life.agent.wait_idle()
        users = [line for line in life.request() if line.startswith("user")]
        assert users[-2:] == ["user: three", "user: and this"]
        check(life.session)


@played
async def test_a_budget_and_a_compaction_in_one_turn() -> None:
    """Both listen before a step; the summary is no step."""
    sizes = iter([700, 700, 700, 700])

    def script(request: Request) -> Any:
        if is_summary(request):
            return "SUM"
        return answer(say("a" * 900), call("read", size=next(sizes)))

    model = ScriptedModel(script, info=WINDOW)
    async with one(model, [read]) as life:
        Budget(steps=4).attach(life.agent.scope)
        Compaction(keep_rounds=1).attach(life.agent.scope)
        turn = await life.agent.ask("go")
        assert turn.reason == "aborted"
        assert "start" in bracket(life)
        assert len([r for r in model.requests if not is_summary(r)]) == 4
        check(life.session)


@played
async def test_a_giant_message_is_summarized_once_a_newer_one_comes() -> None:
    """BC-46: "one giant message"."""
    model = ScriptedModel(answers("ok", "ok"), info=WINDOW)
    async with one(model) as life:
        Compaction(keep_rounds=1).attach(life.agent.scope)
        await life.say("g" * 3600)
        await life.say("two")
        assert life.request() == [f"user: {SUMMARY}SUM", "assistant: ok", "user: two"]
        check(life.session)


@pytest.mark.parametrize("seed", range(4))
def test_a_turn_of_a_hundred_rounds_stays_inside_the_window(seed: int) -> None:
    """C164 C166 BC-45: no request is larger than the window, each has what the user asked for,
    word for word, and most steps ask for no summary."""
    window, random = 3000, Random(seed)
    left = [100]

    def script(request: Request) -> Any:
        if is_summary(request):
            return "s" * random.randint(1, 600)
        if not left[0]:
            return "done"
        left[0] -= 1
        reads = [call("read", size=random.randint(1, 900)) for _ in range(random.randint(1, 3))]
        return answer(say("t" * random.randint(1, 200)), *reads)

    @played
    async def main() -> None:
        model = ScriptedModel(script, info=ModelInfo(context_window=window))
        async with one(model, [read], system="be brief") as life:
            Compaction(keep_rounds=1, prune_over=100).attach(life.agent.scope)
            turn = await life.agent.ask("Read a hundred things: {exactly} é")
            assert turn.text == "done"
            asked = [r for r in model.requests if not is_summary(r)]
            assert len(asked) == 101
            for request in model.requests:
                assert history_is_valid(request.messages) == []
                assert sum(map(estimate_tokens, request.messages)) <= window
                assert sum("{exactly} é" in line for line in shown(request.messages)) == 1
                assert shown(request.messages)[0] == "system: be brief"
            assert 1 <= len(model.requests) - len(asked) <= 30
            check(life.session)

    main()


# --- crashes -------------------------------------------------------------------------------


async def written(folder: Path) -> list[bytes]:
    """The lines of a log with three compactions."""

    def now_ms(ticks: list[int] = [0]) -> int:  # noqa: B006
        ticks[0] += 1
        return ticks[0]

    compaction = Compaction(keep_rounds=1, prune_over=100)
    async with terzetto.open_engine(
        adapters=[compacting_model()],
        tools=[read],
        store=terzetto.JsonlStore(folder),
        now_ms=now_ms,
    ) as engine:
        compaction.attach(engine.scope)
        async with engine.open_agent(**ROUTE, session_id="s") as agent:
            for text in ("one", "two", "three"):
                await agent.ask(text)
            await compaction.compact(agent)
            life = Life(engine, agent, None)  # type: ignore[arg-type]
            assert bracket(life).count("end completed") == 3
    [log] = folder.glob("*.jsonl")
    return log.read_bytes().splitlines(keepends=True)


async def test_a_crash_after_every_record_of_a_compaction_resumes(tmp_path: Path) -> None:
    """C145 C165 C166: each prefix of the log opens; its next request is valid; an orphan is
    closed when the next compaction begins, and only then."""
    lines = await written(tmp_path / "whole")
    orphans = 0
    first = next(i for i, line in enumerate(lines) if b"compaction/start" in line)
    with trio.fail_after(120):
        for count in range(first, len(lines)):
            folder = tmp_path / str(count)
            folder.mkdir()
            [log] = (tmp_path / "whole").glob("*.jsonl")
            (folder / log.name).write_bytes(b"".join(lines[:count]))
            model = ScriptedModel(lambda request: "SUM" if is_summary(request) else "fine")
            async with terzetto.open_engine(
                adapters=[model], tools=[read], store=terzetto.JsonlStore(folder)
            ) as engine:
                async with engine.open_agent(resume="s") as agent:
                    open_id = agent.session.compaction.open_id
                    orphans += open_id is not None
                    assert not agent.session.compaction.live
                    turn = await agent.ask("and now?")
                    assert turn.text == "fine"
                    assert agent.session.compaction.open_id == open_id
                    await Compaction(keep_rounds=1).compact(agent)
                    await agent.ask("and then?")
                    for request in model.requests:
                        assert history_is_valid(request.messages) == []
                    starts, ends = (
                        [e.data.id for e in agent.session.events if isinstance(e.data, kind)]
                        for kind in (CompactionStart, CompactionEnd)
                    )
                    assert starts == ends
                    check(agent.session)
    assert orphans >= 3


@pytest.mark.parametrize("window", [0, -5, True])
def test_a_window_that_cannot_be_is_refused(window: Any) -> None:
    with pytest.raises(terzetto.InvalidValue, match="window: expected"):
        Compaction(window=window)


@pytest.mark.parametrize(
    "options",
    [
        {"at": 0},
        {"at": 1.5},
        {"at": float("nan")},
        {"keep": -1},
        {"keep_rounds": 0},
        {"keep_rounds": 1.5},
        {"attempts": 0},
        {"attempts": True},
        {"prune_over": 99},
        {"instructions": "  "},
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(options: Any) -> None:
    with pytest.raises(terzetto.InvalidValue, match=f"{next(iter(options))}: expected"):
        Compaction(**options)
