"""A store that fails: what stands, who is told, and that work goes on when it is back (BC-47)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from tests.agent.kit import Faults, check, ending_kinds, played, settled
from tests.agent.rig import Life, one
from tests.whole import whole

import terzetto
from terzetto import AgentErrorNotice, StoreError, TurnFailed, tool
from terzetto.llm.scripted import ScriptedModel, answer, call

RAN: list[str] = []


@tool
async def mark(name: str) -> str:
    """Leave a mark."""
    RAN.append(name)
    return "marked"


def failing(error: Exception) -> Callable[[], Awaitable[None]]:
    async def fail() -> None:
        raise error

    return fail


ERRORS = [
    pytest.param(StoreError("no space left"), id="the store's own"),
    pytest.param(OSError(28, "no space left"), id="one of the system"),
]


def errors_heard(life: Life) -> list[AgentErrorNotice]:
    heard: list[AgentErrorNotice] = []
    life.hooks.agent_error.listen(heard.append)
    return heard


@pytest.mark.parametrize("error", ERRORS)
def test_an_ending_that_is_not_saved_stands_and_is_told(error: Exception) -> None:
    """The turn was completed; that it is not on disk is another fact (C139)."""

    @played
    async def run() -> None:
        store = Faults()
        async with one(["fine", "again"], engine={"store": store}) as life:
            heard = errors_heard(life)
            answered = trio.Event()

            async def fail_the_last() -> None:
                if life.session.place.open_turn is None:
                    answered.set()
                    raise error

            assert life.agent.health is None
            store.at["flush"] = fail_the_last
            turn = await life.agent.ask("go")
            assert answered.is_set()
            assert turn.reason == "completed"
            assert ending_kinds(life.session) == ["Completed"]
            assert [(n.turn, n.step, n.failure.code) for n in heard] == [(1, 1, "STORE")]
            assert "no space left" in heard[0].failure.message
            assert life.agent.health == heard[0].failure
            assert life.session.durable_seq < len(life.session.events) - 1

            del store.at["flush"]
            assert (await life.agent.ask("more")).text == "again"
            assert life.agent.health is None
            assert life.session.durable_seq == len(life.session.events) - 1
            assert list(store.stored(life.agent.id)) == whole(life.session)
            assert len(heard) == 1
            check(life.session)

    run()


@pytest.mark.parametrize("error", ERRORS)
def test_no_request_is_sent_before_a_flush_succeeds(error: Exception) -> None:
    @played
    async def run() -> None:
        store = Faults()
        async with one(["fine"], engine={"store": store}) as life:
            store.at["flush"] = failing(error)
            for _ in range(2):
                with pytest.raises(TurnFailed) as failed:
                    await life.agent.ask("go")
                assert failed.value.failure.code == "STORE"
            assert life.model.requests == []
            assert life.agent.health is not None
            del store.at["flush"]
            assert (await life.agent.ask("go")).text == "fine"
            assert list(store.stored(life.agent.id)) == whole(life.session)
            check(life.session)

    run()


@played
async def test_no_body_starts_before_its_call_is_saved() -> None:
    RAN.clear()
    store = Faults()
    script = [answer(call("mark", name="a"), call("mark", name="b")), "fine"]
    async with one(script, [mark], engine={"store": store}) as life:

        async def fail_with_calls() -> None:
            if life.session.place.owed():
                raise StoreError("no space left")

        store.at["flush"] = fail_with_calls
        with pytest.raises(TurnFailed) as failed:
            await life.agent.ask("go")
        assert failed.value.failure.code == "STORE"
        assert RAN == []
        assert ending_kinds(life.session) == ["Failed"]
        check(life.session)


@played
async def test_the_trouble_of_one_agent_is_not_that_of_another() -> None:
    store = Faults()
    model = ScriptedModel(lambda request: "fine")
    async with one(model, engine={"store": store}) as life:
        route = {"provider": model.provider, "model": "m"}
        async with life.engine.open_agent(**route) as other:
            store.at["flush"] = failing(StoreError("gone"))
            life.agent.followup("go")
            await life.agent.wait_idle()
            del store.at["flush"]
            await other.ask("go")
            assert life.agent.health is not None
            assert other.health is None
            life.agent.followup("go")
            await life.agent.wait_idle()
            assert life.agent.health is None


@played
async def test_a_disposed_agent_still_tells() -> None:
    store = Faults()
    with pytest.raises(StoreError, match="not saved"):
        async with one(["fine"], engine={"store": store}) as life:
            store.at["flush"] = failing(StoreError("gone"))
            store.at["close"] = failing(StoreError("gone"))
            life.agent.followup("go")
            await settled()
    assert life.agent.health is not None
    assert list(life.engine.unsaved) == [life.agent.id]


@played
async def test_an_engine_that_does_not_open_closes_its_adapters() -> None:
    """They were handed over; a tool that cannot be registered must not leak their pools."""

    class Closing(ScriptedModel):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1
            await super().aclose()

    first, second = Closing(provider="one"), Closing(provider="two")
    with pytest.raises(terzetto.TerzettoError, match="mark"):
        async with terzetto.open_engine(adapters=[first, second], tools=[mark, mark]):
            raise AssertionError("it must not open")
    assert (first.closed, second.closed) == (1, 1)
    third = Closing(provider="one")
    with pytest.raises(terzetto.TerzettoError, match="one"):
        async with terzetto.open_engine(adapters=[first, third]):
            raise AssertionError("it must not open")
    assert third.closed == 1
