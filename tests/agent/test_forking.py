"""Forks: of live and stored sources, at every boundary, and what cannot be forked (C154)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.lowlevel
from hypothesis import given, settings, strategies as st
from tests.agent.kit import ROUTE, Faults, check, engine_on, pending, play, played, texts_of
from tests.session.oracle import Log, recorded
from tests.strategies_logs import legal_logs, open_logs, recorded_logs
from tests.whole import whole

from terzetto import (
    Agent,
    JsonlStore,
    MemoryStore,
    Session,
    StoreError,
    ToolRun,
    TurnFailed,
    UserMessage,
    tool,
)
from terzetto.agent import _past
from terzetto.llm.scripted import ScriptedModel, answer, call
from terzetto.session import fork_point, replay, unfinished_seed
from terzetto.session._codec import encode_request
from terzetto.stores._memory import MemoryReader
from terzetto.testing import Stage, explore
from terzetto.vocabulary import (
    AgentDisposed,
    CorruptLog,
    EndSeed,
    Event,
    ForkError,
    InvalidValue,
    MessageId,
    ModelSelected,
    ModelSelection,
    Request,
    SessionHeader,
    SessionId,
    StepStart,
    TurnEnd,
    TurnStart,
)


@tool
async def weigh(what: str) -> str:
    """Weigh something."""
    return f"{what}: 200 g"


def talking(sent: list[Request] | None = None) -> ScriptedModel:
    def reply(request: Request) -> Any:
        if sent is not None:
            sent.append(request)
        asked = request.messages[-1]
        if isinstance(asked, UserMessage) and asked.text.startswith("weigh"):
            return answer("Let me see.", call("weigh", what="flour"))
        return f"reply {len(request.messages)}"

    return ScriptedModel(reply)


async def stored(store: Any, session_id: str, events: Sequence[Event], **header: Any) -> None:
    """Put a log into *store*, nobody owning it."""
    handle = await store.create(SessionHeader(id=SessionId(session_id), created_ms=1, **header))
    for event in events:
        handle.append(event)
    await handle.close()


def ends(events: Sequence[Event]) -> list[int]:
    """The boundary at the end of each turn."""
    return [event.seq + 1 for event in events if isinstance(event.data, TurnEnd)]


def plain(request: Request) -> dict[str, Any]:
    """All of *request* but whose it is."""
    encoded: dict[str, Any] = encode_request(request)
    del encoded["sessionId"]
    return encoded


# --- where ----------------------------------------------------------------------------------


def boundaries(log: Sequence[Event]) -> set[int]:
    """Where no turn is open, counted by hand."""
    found, inside = {0}, False
    for index, event in enumerate(log, 1):
        inside = {TurnStart: True, TurnEnd: False}.get(type(event.data), inside)
        if not inside:
            found.add(index)
    return found


@given(legal_logs() | open_logs() | recorded_logs())
def test_a_fork_begins_exactly_between_turns(log: Log) -> None:
    """C154: every boundary of every log, by seq and by turn, and the default."""
    good = boundaries(log)
    for boundary in range(len(log) + 1):
        if boundary in good:
            assert fork_point(log, boundary=boundary) == boundary
        else:
            with pytest.raises(ForkError) as caught:
                fork_point(log, boundary=boundary)
            assert caught.value.code == "OPEN_TURN"
            assert f"boundary={max(b for b in good if b < boundary)}" in str(caught.value)
    assert fork_point(log) == max(b for b in good if b >= max(ends(log), default=0))
    for number, end in enumerate(ends(log), 1):
        assert fork_point(log, turn=number) == end


@given(legal_logs() | recorded_logs(), st.data())
def test_the_history_of_a_fork_is_the_derived_history_there(log: Log, data: st.DataObject) -> None:
    """C152 C154: whatever came after the boundary has no effect, not even on what is pending."""
    header = SessionHeader(id=SessionId("s"), created_ms=0)
    boundary = data.draw(st.sampled_from(sorted(boundaries(log))))
    there, fork = Session(header, lambda: 0), Session(header, lambda: 0)
    replay(there, log[:boundary])
    replay(fork, log[: fork_point(log, boundary=boundary)])
    fork.append(EndSeed(inherited=True))
    assert list(fork.history()) == list(there.history())
    assert fork.folds.selection == there.folds.selection
    assert not fork.pending


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"boundary": -1}, "expected 0 to "),
        ({"boundary": 10_000}, "the seq of the first event that is not inherited"),
        ({"boundary": "3"}, "got '3'"),
        ({"boundary": True}, "got True"),
        ({"boundary": 1.0}, "got 1.0"),
        ({"turn": 0}, "turn: expected 1 to 1, got 0"),
        ({"turn": 2}, "turn: expected 1 to 1, got 2"),
        ({"turn": True}, "got True"),
        ({"turn": "1"}, "got '1'"),
    ],
)
def test_a_place_that_is_not_in_the_log_is_refused(asked: dict[str, Any], said: str) -> None:
    """C154 ``INVALID_BOUNDARY``."""
    with pytest.raises(ForkError) as caught:
        fork_point(_one_turn(), **asked)
    assert caught.value.code == "INVALID_BOUNDARY"
    assert said in str(caught.value)


def _one_turn() -> list[Event]:
    async def main() -> list[Event]:
        async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as agent:
            await agent.ask("one")
            return whole(agent.session)

    return play(main)


def test_a_log_without_turns_has_no_turn_to_fork_at() -> None:
    with pytest.raises(ForkError, match="the log has no turn") as caught:
        fork_point([], turn=1)
    assert caught.value.code == "INVALID_BOUNDARY"
    assert fork_point([]) == 0
    with pytest.raises(InvalidValue, match="give one of them"):
        fork_point([], turn=1, boundary=1)


# --- what a fork is -------------------------------------------------------------------------


@played
async def test_a_fork_goes_on_from_its_source_and_both_go_their_ways() -> None:
    """C17 C154: lineage, the marker, turn numbers; the source does not notice."""
    store = MemoryStore()
    async with engine_on(talking(), store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a", cwd="/x", meta={"u": 1}) as source:
            await source.ask("one")
            await source.ask("two")
            before = whole(source.session)
            async with engine.open_agent(fork=source, turn=1, session_id="b") as fork:
                header = fork.session.header
                inherited = ends(before)[0]
                assert (header.parent_id, header.seed_length) == ("a", inherited)
                assert (header.cwd, dict(header.meta)) == ("/x", {"u": 1})
                assert whole(fork.session) == [
                    *before[:inherited],
                    fork.session.events[inherited],
                ]
                assert fork.session.events[inherited].data == EndSeed(inherited=True)
                turn = await fork.ask("other two")
                assert turn.number == 2
                assert "two" not in texts_of(fork.history())
                check(fork.session)
            assert whole(source.session) == before
            assert (await source.ask("three")).number == 3
    _, events = await store.read("b")
    assert events[:inherited] == before[:inherited]


def compose(agent: Agent) -> None:
    agent.scope.add_context("place", lambda view: "in the kitchen")


COMPOSED: dict[str, Any] = {"system": "Be brief.", "tools": [weigh], "setup": compose}
ASKED = ("one", "weigh it", "weigh again", "four", "five")
CHOSEN = {2: ("scripted", "other", "high"), 4: ("scripted", "third", None)}
"""Before which turn, counted from 0, which model is selected."""


async def asked(agent: Agent, index: int) -> None:
    """Turn *index*, counted from 0: the choice of a model, and a message that is the same."""
    if index in CHOSEN:
        agent.model.select(*CHOSEN[index])
    await agent.ask(UserMessage(ASKED[index], id=MessageId(f"asked-{index}")))


@pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])
def test_the_first_request_is_what_the_source_sent(live: bool) -> None:
    """C172 C154: to the byte, at every turn: prompt, tools, snapshots, options and model."""

    @played
    async def run() -> None:
        sent: list[Request] = []
        store = MemoryStore()
        async with engine_on(talking(sent), store=store) as engine:
            firsts: list[int] = []

            async def compare(source: str | Agent) -> None:
                original = [plain(request) for request in sent]
                for turn in range(1, len(ASKED)):
                    sent.clear()
                    async with engine.open_agent(fork=source, turn=turn, **COMPOSED) as fork:
                        await asked(fork, turn)
                        check(fork.session)
                    assert plain(sent[0]) == original[firsts[turn]]

            async with engine.open_agent(
                **ROUTE, **COMPOSED, session_id="a", max_tokens=99
            ) as source:
                for index in range(len(ASKED)):
                    firsts.append(len(sent))
                    await asked(source, index)
                assert [r.config.model for r in sent] == ["m"] * 3 + ["other"] * 3 + ["third"]
                assert all(r.config.max_tokens == 99 for r in sent)
                if live:
                    await compare(source)
            if not live:
                await compare("a")

    run()


@played
async def test_a_fork_of_now_sends_what_its_source_sends_next() -> None:
    """C172: with the choice of a model that no step has used yet."""
    sent: list[Request] = []
    async with engine_on(talking(sent)) as engine:
        async with engine.open_agent(**ROUTE, **COMPOSED) as source:
            await source.ask("weigh it")
            source.model.select("scripted", "later", "low")
            async with engine.open_agent(fork=source.id, **COMPOSED) as fork:
                sent.clear()
                for agent in (fork, source):
                    await agent.ask(UserMessage("next", id=MessageId("next")))
    ours, theirs = map(plain, sent)
    assert ours == theirs
    assert (ours["model"], ours["reasoningEffort"]) == ("later", "low")


@played
async def test_a_source_that_never_asked_gives_its_model() -> None:
    async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as source:
        async with engine.open_agent(fork=source) as fork:
            assert fork.session.header.parent_id == source.id
            assert fork.session.header.seed_length == 0
            assert (await fork.ask("one")).number == 1


@played
async def test_a_route_that_is_given_is_chosen_and_recorded() -> None:
    """The source's past on another model; the choice outlives the agent."""
    store, other = MemoryStore(), ScriptedModel(["an other's"], provider="other")
    async with engine_on(talking(), store=store) as engine:
        engine.agents.services.runtime.register(other)
        async with engine.open_agent(**ROUTE, session_id="a") as source:
            await source.ask("one")
            async with engine.open_agent(
                fork=source, provider="other", model="x", effort="high", session_id="b"
            ) as fork:
                chosen = ModelSelection("other", "x", "high")
                assert fork.session.events[-1].data == ModelSelected(chosen)
                assert fork.model.current() == chosen
                assert source.model.current() == ModelSelection("scripted", "m")
        async with engine.open_agent(resume="b") as again:
            assert again.model.current() == chosen
        async with engine.open_agent(fork="b", **ROUTE) as back:
            assert back.model.current() == ModelSelection("scripted", "m")


@played
async def test_pending_input_stays_behind_and_stays_with_its_source() -> None:
    """C58 C154."""
    async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as source:
        await source.ask("one")
        source.inject("for the source")
        async with engine.open_agent(fork=source) as fork:
            assert pending(fork) == []
            assert (await fork.ask("two")).number == 2
            assert "for the source" not in texts_of(fork.history())
        assert pending(source) == ["for the source"]


@played
async def test_a_fork_from_inside_a_turn_leaves_that_turn_out() -> None:
    """C154: of an agent at work, what was before its turn, with the claimed input left out."""
    seen: list[Any] = []

    @tool
    async def branch(run: ToolRun) -> str:
        """Fork the agent that calls this."""
        me = run.agent.id
        open_at = max(e.seq for e in run.agent.session.events if isinstance(e.data, TurnStart))
        async with engine.open_agent(fork=me) as fork:
            seen.append((fork.session.header.seed_length == open_at, pending(fork)))
            seen.append((await fork.ask("other")).number)
        for asked in ({"turn": 2}, {"boundary": open_at + 2}):
            with pytest.raises(ForkError) as caught:
                await engine.agents.fork(me, **asked)
            seen.append((caught.value.code, f"boundary={open_at} or turn=1" in str(caught.value)))
        return "done"

    model = ScriptedModel(["first", answer("", call("branch")), "from the fork", "second"])
    async with engine_on(model, [branch]) as engine, engine.open_agent(**ROUTE) as agent:
        await agent.ask("one")
        turn = await agent.ask("two")
        assert turn.text == "second"
        check(agent.session)
    assert seen == [(True, []), 2, ("OPEN_TURN", True), ("OPEN_TURN", True)]


@played
async def test_a_fork_of_a_fork() -> None:
    """C154: its lineage is the fork; its boundary may lie in what the fork inherited."""
    async with engine_on(talking(), store=MemoryStore()) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as source:
            await source.ask("one")
            await source.ask("two")
            async with engine.open_agent(fork=source, session_id="b") as first:
                await first.ask("three")
                async with engine.open_agent(fork=first, session_id="c") as second:
                    assert second.session.header.parent_id == "b"
                    assert second.session.header.seed_length == len(first.session.events)
                    assert list(second.history()) == list(first.history())
                    assert (await second.ask("four")).number == 4
                    check(second.session)
                async with engine.open_agent(fork="b", turn=1) as early:
                    assert early.session.header.parent_id == "b"
                    assert (await early.ask("other")).number == 2
        async with engine.open_agent(resume="c") as again:
            assert (await again.ask("five")).number == 5
            check(again.session)


@played
async def test_meta_and_folder_can_be_others() -> None:
    async with engine_on(talking()) as engine:
        async with engine.open_agent(**ROUTE, cwd="/x", meta={"title": "A"}) as source:
            async with engine.open_agent(fork=source, cwd="/y", meta={}) as fork:
                assert (fork.session.header.cwd, dict(fork.session.header.meta)) == ("/y", {})
            with pytest.raises(InvalidValue, match="absolute"):
                await engine.agents.fork(source, cwd="y")
            with pytest.raises(InvalidValue):
                await engine.agents.fork(source, meta={"x": float("nan")})
            assert engine.agents.list() == [source]


# --- stored sources -------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(recorded()))
def test_every_recorded_log_forks_at_every_turn(name: str) -> None:
    """C154: through the store, as it was left, finished or not; the source stays as it is."""

    @played
    async def run() -> None:
        store, log = MemoryStore(), recorded()[name]
        await stored(store, "a", log)
        places = [{"turn": number} for number in range(1, len(ends(log)) + 1)]
        async with engine_on(talking(), store=store) as engine:
            for place in ({}, {"boundary": 0}, *places):
                async with engine.open_agent(**ROUTE, fork="a", **place) as fork:
                    inherited = fork.session.header.seed_length
                    assert inherited == fork_point(log, **place)
                    assert list(fork.session.events[:inherited]) == list(log[:inherited])
                    expected = Session(fork.session.header, lambda: 0)
                    replay(expected, log[:inherited])
                    assert list(fork.history()) == list(expected.history())
                    assert pending(fork) == []
        header, events = await store.read("a")
        assert (header.id, events) == ("a", list(log))

    run()


@played
async def test_a_crashed_log_forks_before_its_open_turn() -> None:
    """C154 C145: and the source is not repaired by it."""
    events = await _two_turns()
    cut = max(e.seq for e in events if isinstance(e.data, StepStart)) + 1
    store = MemoryStore()
    await stored(store, "a", events[:cut])
    async with engine_on(talking(), store=store) as engine:
        with pytest.raises(ForkError, match=r"the log ends inside turn 2; .* or turn=1") as caught:
            await engine.agents.fork("a", turn=2)
        assert caught.value.code == "OPEN_TURN"
        async with engine.open_agent(fork="a") as fork:
            assert (await fork.ask("two again")).number == 2
            check(fork.session)
    assert (await store.read("a"))[1] == events[:cut]


async def _two_turns() -> list[Event]:
    async with engine_on(talking()) as engine, engine.open_agent(**ROUTE) as agent:
        await agent.ask("one")
        await agent.ask("two")
        return whole(agent.session)


async def test_a_session_that_another_engine_uses_can_be_forked(tmp_path: Any) -> None:
    """C154: forking takes no ownership; what is stored by now is what there is."""
    async with (
        engine_on(talking(), store=JsonlStore(tmp_path)) as theirs,
        engine_on(talking(), store=JsonlStore(tmp_path)) as ours,
        theirs.open_agent(**ROUTE, session_id="a") as source,
    ):
        await source.ask("one")
        async with ours.open_agent(fork="a", session_id="b") as fork:
            assert (await fork.ask("two")).number == 2
        assert (await source.ask("two")).number == 2
        async with ours.open_agent(resume="b") as again:
            assert len(texts_of(again.history())) == 4


# --- what cannot be -------------------------------------------------------------------------


@played
async def test_each_refusal_has_its_code_and_leaves_nothing() -> None:
    """C154 C23."""
    store = MemoryStore()
    async with engine_on(talking(), store=store) as engine, engine_on(talking()) as memory_only:
        async with engine.open_agent(**ROUTE, session_id="a") as source:
            await source.ask("one")
            await stored(store, "stored", [])
            refusals: list[tuple[Any, dict[str, Any], str]] = [
                (engine, {"source": "nobody"}, "SESSION_NOT_FOUND"),
                (memory_only, {"source": "a"}, "SESSION_NOT_LIVE"),
                (engine, {"source": "a", "turn": 7}, "INVALID_BOUNDARY"),
                (engine, {"source": "a", "boundary": 3}, "OPEN_TURN"),
                (engine, {"source": "a", "session_id": "a"}, "SESSION_ALREADY_EXISTS"),
                (engine, {"source": "a", "session_id": "stored"}, "SESSION_ALREADY_EXISTS"),
            ]
            for where, asked, code in refusals:
                with pytest.raises(ForkError) as caught:
                    await where.agents.fork(asked.pop("source"), **asked)
                assert caught.value.code == code
            with pytest.raises(InvalidValue, match="expected an agent or a session id"):
                await engine.agents.fork(3)  # type: ignore[arg-type]
            assert engine.agents.list() == [source]
            assert [header.id for header in await store.list()] == ["a", "stored"]
            assert not engine.agents.taken(SessionId("stored"))


@pytest.mark.parametrize("gives", ["the same page again", "more than was asked for", "None"])
def test_a_stored_source_with_a_store_that_pages_wrongly_is_refused(
    gives: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C154 C23: it is not asked for ever, and nothing is left of the fork."""

    @played
    async def run() -> None:
        store = MemoryStore()
        async with engine_on(talking(), store=store) as engine:
            async with engine.open_agent(**ROUTE, session_id="a") as source:
                await source.ask("one")
            _, events = await store.read("a")
            monkeypatch.setattr(_past, "PAGE", 3)

            async def read(self: object, start: int, stop: int | None) -> Any:
                await trio.lowlevel.checkpoint()
                whole_log = gives.startswith("more")
                return None if gives == "None" else events if whole_log else events[:3]

            monkeypatch.setattr(MemoryReader, "_stored", read)
            with pytest.raises(StoreError, match=r"'a': reading events \d to \d back failed"):
                await engine.agents.fork("a", session_id="b")
            assert engine.agents.list() == []
            assert [header.id for header in await store.list()] == ["a"]

    run()


@pytest.mark.parametrize(
    "given",
    [
        {"turn": 1},
        {"boundary": 0},
        {"fork": "a", "resume": "a"},
        {"fork": "a", "seed": [Event(0, 0, TurnStart(1))]},
        {"fork": "a", "turn": 1, "boundary": 1},
    ],
)
def test_arguments_that_contradict_each_other(given: dict[str, Any]) -> None:
    @played
    async def run() -> None:
        store = MemoryStore()
        await stored(store, "a", [])
        async with engine_on(talking(), store=store) as engine:
            with pytest.raises(InvalidValue):
                async with engine.open_agent(**given):
                    pass

    run()


@played
async def test_a_fork_is_whole_in_its_store_before_anybody_has_it() -> None:
    """C143 C154: the seed and its marker are durable when the fork is made."""
    store = Faults()
    async with engine_on(talking(), store=store) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as source:
            await source.ask("one")
            at_setup: list[int] = []

            def setup(agent: Agent) -> None:
                at_setup.append(len(store.stored("b")))

            async with engine.open_agent(fork=source, session_id="b", setup=setup) as fork:
                assert at_setup == [fork.session.header.seed_length + 1]


@pytest.mark.parametrize("kept", ["nothing", "half", "all but the marker"])
def test_a_fork_that_was_never_finished_is_not_taken_up(kept: str) -> None:
    """C148: half a past is none: its pending input would wake, and its history lacks an end."""

    @played
    async def run() -> None:
        events = await _two_turns()
        count = {"nothing": 0, "half": len(events) // 2, "all but the marker": len(events)}[kept]
        store = MemoryStore()
        await stored(store, "b", events[:count], parent_id=SessionId("a"), seed_length=len(events))
        header, _ = await store.read("b")
        assert unfinished_seed(header, count) is not None
        assert unfinished_seed(header, len(events) + 1) is None
        async with engine_on(talking(), store=store) as engine:
            with pytest.raises(CorruptLog, match=rf"{count} of {len(events)} inherited"):
                await engine.agents.resume("b")
            with pytest.raises(CorruptLog, match="inherited"):
                await engine.agents.fork("b")
            await store.delete("b")  # nobody owns it

    run()


@pytest.mark.parametrize("point", ["create", "created", "flush"])
@pytest.mark.parametrize("fault", ["fails", "cancelled"])
def test_a_fork_that_fails_halfway_is_rolled_back(point: str, fault: str) -> None:
    """C23 C25: no agent, no announcement, no lock; the source goes on."""

    @played
    async def run() -> None:
        store = Faults()

        async def strike() -> None:
            if fault == "fails":
                raise StoreError("no space left")
            scope.cancel(reason="the user")
            await trio.lowlevel.checkpoint()

        async with engine_on(talking(), store=store) as engine:
            async with engine.open_agent(**ROUTE, session_id="a") as source:
                await source.ask("one")
                heard: list[object] = []
                engine.scope.hooks.session_created.listen(heard.append)
                store.at[point] = strike
                with trio.CancelScope() as scope:
                    if fault == "fails":
                        with pytest.raises(StoreError, match="no space left"):
                            await engine.agents.fork(source, session_id="b")
                    else:
                        await engine.agents.fork(source, session_id="b")
                assert scope.cancelled_caught == (fault == "cancelled")
                del store.at[point]
                assert heard == []
                assert engine.agents.list() == [source]
                if SessionId("b") in store.inner._sessions:
                    assert not store.owned("b")
                await source.ask("two")
                async with engine.open_agent(fork=source, session_id="c") as fork:
                    assert (await fork.ask("three")).number == 3

    run()


@settings(max_examples=25)
@given(st.integers(0, 60))
def test_a_fork_can_be_cancelled_at_any_time(ticks: int) -> None:
    """C25: whenever the cancel comes, there is a whole fork or none."""

    async def main() -> None:
        store = Faults()

        async def wait() -> None:
            await trio.sleep(0.01)

        store.at = dict.fromkeys(("create", "created", "flush", "close"), wait)
        async with engine_on(talking(), store=store) as engine:
            async with engine.open_agent(**ROUTE, session_id="a") as source:
                await source.ask("one")
                with trio.move_on_after(ticks / 1000):
                    async with engine.open_agent(fork=source, session_id="b") as fork:
                        await fork.ask("two")
                assert engine.agents.list() == [source]
            if SessionId("b") in store.inner._sessions:
                assert not store.owned("b")
                header, events = await store.inner.read("b")
                if unfinished_seed(header, len(events)) is None:
                    async with engine.open_agent(resume="b") as again:
                        await again.ask("three")
                        check(again.session)

    play(main)


@played
async def test_a_fork_that_is_there_already_can_be_resumed() -> None:
    """``if_stored="resume"`` beside ``fork=``: made the first time, found the second."""
    async with engine_on(talking(), store=MemoryStore()) as engine:
        async with engine.open_agent(**ROUTE, session_id="a") as source:
            await source.ask("one")
        for number in (2, 3):
            async with engine.open_agent(fork="a", session_id="b", if_stored="resume") as fork:
                assert (await fork.ask("go on")).number == number
                assert fork.session.header.parent_id == "a"


async def forking(stage: Stage) -> None:
    """An agent, and a fork of it beside it, which is asked for something else."""
    async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
        stage.send("followup", "one")
        await agent.wait_idle()
        with suppress(AgentDisposed, TurnFailed):
            async with engine.open_agent(fork=agent, session_id="fork") as fork:
                turn = await fork.ask("two")
                if turn.reason == "completed":
                    assert turn.number == 1 + sum(
                        isinstance(e.data, TurnStart) for e in agent.session.events
                    )


def test_forking_is_cancel_safe() -> None:
    """C154: struck at every step from every source; each log is balanced and can be resumed."""
    report = explore(forking, ["first", "second"])
    assert [str(violation) for violation in report.violations] == []
    assert report.points > 200
