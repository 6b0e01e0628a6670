"""Cases of kind *lifecycle*: wakes, last moments, readers, errors, hooks.

BC-56 needs real signals: tests/agent/test_ctrl_c.py.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from tests.agent.kit import check, codes, ending_kinds, endings, pending, played, results, settled
from tests.agent.rig import one
from tests.cases.kit import HANG, calls, case, plays, says, served, text

import terzetto
from terzetto import ProviderError, TurnFailed, UserCause, tool
from terzetto.llm.loopback import serve_openai
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Delay, Gate, answer, refuse, say
from terzetto.vocabulary import (
    Aborted,
    AssistantChunk,
    AssistantMessageEvent,
    Completed,
    DisposedCause,
    Failed,
    TextDelta,
    TurnEnd,
    TurnStart,
    texts,
)

STOPPED = Aborted(UserCause())
GONE = Aborted(DisposedCause())


# --- BC-07 ----------------------------------------------------------------------------------


class SlowToClose:
    """A stream whose end takes a third of a second, under a shield."""

    def __init__(self, stream: Any, closing: trio.Event) -> None:
        self.stream, self.closing = stream, closing

    async def __aenter__(self) -> AsyncIterator[Any]:
        chunks: AsyncIterator[Any] = await self.stream.__aenter__()
        return chunks

    async def __aexit__(self, *error: Any) -> None:
        self.closing.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(0.3)
        await self.stream.__aexit__(*error)


@case(7, "sent", "removed", "two-queued-before")
def test_a_wake_while_a_cancel_converges_is_not_stranded(variant: str) -> None:
    """BC-07: it runs without a further stimulus, strictly after the end of the cancelled turn;
    a removed one opens no turn; what was queued keeps its order, each once."""

    @played
    async def main() -> None:
        async with one([answer(say("x"), Gate("never")), "1", "2", "3"]) as life:
            closing = trio.Event()

            async def slowly(value: Any, proceed: Any) -> Any:
                stream = await proceed()
                return SlowToClose(stream, closing) if value.turn == 1 else stream

            life.hooks.stream.listen(slowly)
            life.agent.followup("go")
            await settled()
            queued = ["queued 1", "queued 2"] if variant == "two-queued-before" else []
            for message in queued:
                life.agent.followup(message)
            life.agent.cancel(keep_inbox=True)
            await closing.wait()
            await trio.sleep(0.05)
            message_id = life.agent.followup("next")
            if variant == "removed":
                assert life.agent.inbox.remove(message_id)
            await life.agent.wait_idle()
            entered = [] if variant == "removed" else [*queued, "next"]
            assert endings(life.session) == [STOPPED, *[Completed()] * len(entered)]
            assert [r.messages[-1].text for r in life.model.requests[1:]] == entered  # type: ignore[union-attr]
            assert pending(life.agent) == []
            open_turns = 0
            for event in life.session.events:
                open_turns += isinstance(event.data, TurnStart) - isinstance(event.data, TurnEnd)
                assert open_turns in (0, 1), "turns never overlap"
            check(life.session)

    main()


# --- BC-08 ----------------------------------------------------------------------------------


@case(8, "last-delta", "finish", "before-the-turn-ends", "turn-end", "a-checkpoint-later")
async def test_steering_at_the_last_moment_is_never_lost(variant: str) -> None:
    """BC-08: in exactly one later request, behind `done`, in this turn or in the next."""
    async with served([says("done"), says("then")]) as life:
        sent: list[str] = []

        def steer() -> None:
            if not sent:
                sent.append("wait")
                life.agent.steer("wait")

        async def stopping(value: Any) -> None:
            steer()

        async def follow() -> None:
            async for event in life.session.follow():
                match event.data:
                    case AssistantChunk(chunk=TextDelta()) if variant == "last-delta":
                        steer()
                    case AssistantMessageEvent() if variant == "finish":
                        steer()
                    case TurnEnd() if variant == "turn-end":
                        steer()
                    case TurnEnd() if variant == "a-checkpoint-later":
                        await trio.lowlevel.checkpoint()
                        steer()

        if variant == "before-the-turn-ends":
            life.agent.scope.hooks.turn_stopping.listen(stopping)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            life.agent.followup("go")
            await life.asked(2)
            await life.agent.wait_idle()
            nursery.cancel_scope.cancel()
        assert sent == ["wait"]
        assert [m["content"] for m in life.sent()] == ["go", "done", "wait"]
        assert len(life.server.requests) == 2
        assert set(ending_kinds(life.session)) == {"Completed"}
        check(life.session)


# --- BC-11 ----------------------------------------------------------------------------------


@case(11, "a-break", "b-raise", "c-cancel", "d-elsewhere", "e-dropped")
async def test_leaving_a_stream_early_corrupts_nothing(variant: str) -> None:
    """BC-11: the caller's exception is the caller's, nothing complains when it is collected, the
    model's connection is closed and the turn is closed in the log."""
    mine = ValueError("mine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        script = [plays(text("a"), Delay(0.02), text("b"), ending=HANG)]
        async with served(script) as life:
            life.agent.followup("go")
            if variant == "a-break":
                async for _ in life.session.follow():
                    break
            elif variant == "b-raise":
                with pytest.raises(ValueError, match="mine") as caught:
                    async for _ in life.session.follow():
                        raise mine
                assert caught.value is mine
            elif variant == "c-cancel":
                with trio.CancelScope() as scope:
                    async for event in life.session.follow():
                        if isinstance(event.data, AssistantChunk):
                            scope.cancel()
                assert scope.cancelled_caught
            elif variant == "d-elsewhere":
                follower = life.session.follow()
                await follower.__anext__()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(follower.__anext__)
            else:
                follower = life.session.follow()
                await follower.__anext__()
                del follower
                gc.collect()
            await life.delivered(2)
            assert life.server.connections == 1
            life.agent.cancel()
            await life.agent.wait_idle()
            await life.server.wait_connections(0)
            assert endings(life.session) == [STOPPED]
            gc.collect()
            check(life.session)


# --- BC-12 ----------------------------------------------------------------------------------


@case(12, "a-401")
async def test_a_providers_error_arrives_as_itself(variant: str) -> None:
    """BC-12 (a): typed, with its status, in no group; as `__cause__` of the turn's failure."""
    async with served([refuse(401, "who are you?")]) as life:
        with pytest.raises(TurnFailed) as caught:
            await life.agent.ask("go")
        cause = caught.value.__cause__
        assert isinstance(cause, ProviderError)
        assert (cause.failure.code, cause.failure.status) == ("AUTH", 401)
        assert "who are you?" in str(caught.value)
        assert len(life.server.requests) == 1


@case(12, "b-beside-siblings")
async def test_a_tools_error_keeps_its_message(variant: str) -> None:
    """BC-12 (b): not "unhandled errors in a TaskGroup"."""

    @tool(parallel=True)
    async def boom() -> str:
        """Fail."""
        await trio.lowlevel.checkpoint()
        raise ValueError("no such column")

    @tool(parallel=True)
    async def slow() -> str:
        """Sleep."""
        await trio.sleep(0.1)
        return "slept"

    batch = calls(*((f"c{n}", name, "{}") for n, name in enumerate(("slow", "boom", "slow"))))
    async with served([batch, says("ok")], [boom, slow]) as life:
        turn = await life.agent.ask("go")
        assert turn.ending == Completed()
        assert life.results() == {"c0": "slept", "c1": "Error: no such column", "c2": "slept"}
        check(life.session)


@case(12, "c-cleanup-fails")
async def test_a_failing_cleanup_does_not_replace_the_cancel(variant: str) -> None:
    """BC-12 (c): the outcome is cancelled, the error is the result of its call."""
    running = trio.Event()

    @tool
    async def messy() -> str:
        """Fail while giving way."""
        try:
            running.set()
            await trio.sleep_forever()
        finally:
            raise RuntimeError("cleanup failed")
        return "never"

    async with served([calls(("c1", "messy", "{}")), says("ok")], [messy]) as life:
        life.agent.followup("go")
        await running.wait()
        life.agent.cancel()
        await life.agent.wait_idle()
        assert endings(life.session) == [STOPPED]
        assert results(life.session) == {"c1": "Error: cleanup failed"}
        await life.say("more")
        assert not any("Cancelled" in str(e.data) for e in life.session.events)
        check(life.session)


@case(12, "d-cancel-beside-a-500")
async def test_the_hosts_cancel_wins_over_an_error_of_the_same_tick(variant: str) -> None:
    """BC-12 (d): it propagates; the turn is disposed, not failed; nothing is retried."""
    asked: list[str] = []
    agents: list[terzetto.Agent] = []
    with trio.fail_after(60):
        async with serve_openai([refuse(500), says("never")]) as server:
            adapter = OpenAIChat(api_key="k", base_url=server.base_url)
            with trio.CancelScope() as host:
                async with terzetto.open_engine(adapters=[adapter]) as engine:

                    async def retry(failed: Any, proceed: Any) -> Any:
                        asked.append(failed.failure.code)
                        return terzetto.Retry()

                    async def strike(value: Any, proceed: Any) -> Any:
                        return Struck(await proceed(), host)

                    engine.scope.hooks.request_error.listen(retry)
                    engine.scope.hooks.stream.listen(strike)
                    async with engine.open_agent(provider="openai", model="m") as agent:
                        agents.append(agent)
                        await agent.ask("go")
            assert host.cancelled_caught
            assert len(server.requests) == 1
    assert asked == []
    assert endings(agents[0].session) == [GONE]
    check(agents[0].session)


class Struck:
    """A stream during whose last chunk the host cancels."""

    def __init__(self, stream: Any, host: trio.CancelScope) -> None:
        self.stream, self.host = stream, host

    async def __aenter__(self) -> Any:
        self.chunks = await self.stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.stream.__aexit__(*error)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        chunk = await self.chunks.__anext__()
        self.host.cancel()
        return chunk


# --- BC-50 ----------------------------------------------------------------------------------

POINTS = ("before-step", "before-tool", "after-tool", "turn-end")
HOOKS = {
    "before-step": "pre_step",
    "before-tool": "tool_pre_execute",
    "after-tool": "tool_post_execute",
    "turn-end": "turn_stopping",
}


def listener(point: str, act: Any) -> Any:
    """A listener of the right kind that does *act*, and then proceeds."""
    if point == "turn-end":
        return act

    async def around(value: Any, proceed: Any) -> Any:
        await act(value)
        return await proceed()

    return around


@case(50, *(f"{point}-{act}" for point in POINTS for act in ("sleeps", "raises", "times-out")))
async def test_a_hook_cannot_hang_or_disable_the_loop(variant: str) -> None:
    """BC-50: a cancel works at every point; a failing guard lets nothing through; a hook bounds
    itself with a scope of its own. History stays valid, and the next turn runs."""
    point = next(point for point in POINTS if variant.startswith(point))
    what = variant.removeprefix(f"{point}-")
    entered = trio.Event()
    ran: list[str] = []

    @tool
    async def mark() -> str:
        """Leave a mark."""
        ran.append("mark")
        return "marked"

    async def act(value: object) -> None:
        if entered.is_set():
            return
        entered.set()
        if what == "raises":
            raise ValueError("a defect of the hook")
        with trio.move_on_after(0.05 if what == "times-out" else 3000):
            await trio.sleep(3000)

    script = [calls(("c1", "mark", "{}")), *[says("ok")] * 3]
    if point == "before-step" and what != "times-out":
        script.pop(0)  # the first turn sends nothing
    async with served(script, [mark]) as life:
        getattr(life.agent.scope.hooks, HOOKS[point]).listen(listener(point, act))
        life.agent.followup("go")
        await entered.wait()
        if what == "sleeps":
            life.agent.cancel()
        await life.agent.wait_idle()
        [first] = endings(life.session)
        if what == "sleeps":
            assert first == STOPPED
        elif what == "times-out":
            assert first == Completed()
        elif point in ("before-tool", "after-tool"):
            assert first == Completed()
            assert "a defect of the hook" in results(life.session)["c1"]
        else:
            assert isinstance(first, Failed)
            assert "a defect of the hook" in first.error.message
        if point == "before-tool" and what != "times-out":
            assert ran == [], "never unguarded"
        if point == "before-tool" and what == "sleeps":
            assert codes(life.session) == {"c1": texts.ABORTED_BEFORE_DISPATCH}
        await life.say("more")
        assert endings(life.session)[1:] == [Completed()]
        check(life.session)


@case(50, "observer-raises")
async def test_an_observer_that_raises_changes_nothing(variant: str) -> None:
    """BC-50: neither the turn nor the other observers."""
    heard: list[str] = []

    def fail(value: object) -> None:
        heard.append("failing")
        raise ValueError("a defect of the observer")

    @tool
    async def mark() -> str:
        """Leave a mark."""
        return "marked"

    async with served([calls(("c1", "mark", "{}")), says("ok")], [mark]) as life:
        hooks = life.agent.scope.hooks
        for hook in (hooks.tool_result, hooks.status, hooks.inbox_claimed):
            hook.listen(fail)
            hook.listen(lambda value: heard.append("next"))
        life.session.observe(fail)
        turn = await life.agent.ask("go")
        assert (turn.ending, turn.text) == (Completed(), "ok")
        await life.agent.wait_idle()
        assert heard.count("next") >= 3
        check(life.session)
