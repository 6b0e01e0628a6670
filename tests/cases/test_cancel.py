"""Cases of kind *cancel*: what a stop keeps, ends and leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio
from tests.agent.kit import check, endings, played, results, tasks
from tests.agent.rig import one
from tests.cases.kit import HANG, calls, case, plays, says, served, text

from terzetto import RequestFailed, Retry, ToolRun, UserCause, tool
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Delay, Hang, answer, call, refuse
from terzetto.vocabulary import Aborted, AssistantMessageEvent, Completed, LlmRetryStarted

STOPPED = Aborted(UserCause())


@case(1, "live", "resumed", "zero-deltas", "zero-deltas-resumed")
async def test_the_prefix_that_the_user_read_survives(variant: str, tmp_path: Path) -> None:
    """BC-01: byte-equal to what was delivered, marked interrupted, in the next request."""
    pieces = ["One. ", "Two. ", "Thr"] if "zero" not in variant else []
    parts: list[Any] = []
    for piece in pieces:
        parts += [text(piece), Delay(0.02)]
    script = [plays(*parts, ending=HANG), says("resumed"), says("live")]
    if "resumed" not in variant:
        script.pop(1)
    async with served(script, folder=tmp_path / "live") as life:
        life.agent.followup("go")
        delivered = await life.delivered(3) if pieces else []
        await life.asked()
        life.agent.cancel()
        await life.agent.wait_idle()
        assert endings(life.session) == [STOPPED]
        anchors = [e.data for e in life.session.events if isinstance(e.data, AssistantMessageEvent)]
        kept = "".join(delivered)
        assert [(a.message.text, a.interrupted) for a in anchors] == (
            [(kept, True)] if pieces else []
        )
        assert all(a.message.tool_calls == () for a in anchors)
        body = None
        if "resumed" in variant:
            body = await life.resumed("continue", copy=tmp_path / "copy")
        await life.say("continue")
        expected = [{"role": "user", "content": "go"}]
        if pieces:
            expected.append({"role": "assistant", "content": "One. Two. Thr"})
        assert life.sent() == [*expected, {"role": "user", "content": "continue"}]
        if body is not None:
            assert body == life.server.requests[-1].body
        check(life.session)


@case(3, "returns", "retries-5-times")
async def test_a_tool_that_absorbs_the_cancel_does_not_make_a_success_of_it(variant: str) -> None:
    """BC-03: no second request, one result, outcome cancelled, and the next message runs."""
    entered = trio.Event()
    attempts: list[int] = []

    @tool
    async def absorb(s: float) -> str:
        """Take a cancel for an error."""
        for attempt in range(5 if variant != "returns" else 1):
            attempts.append(attempt)
            try:
                entered.set()
                await trio.sleep(s)
            except BaseException:
                continue
        return "ok"

    script = [calls(("c1", "absorb", '{"s": 3000}')), says("fine")]
    async with served(script, [absorb]) as life:
        life.agent.followup("go")
        await entered.wait()
        life.agent.cancel()
        await life.agent.wait_idle()
        assert len(life.server.requests) == 1
        assert endings(life.session) == [STOPPED]
        # It returned: its effect happened, so what it said is kept.
        assert results(life.session) == {"c1": "ok"}
        await life.say("next")
        assert endings(life.session) == [STOPPED, Completed()]
        check(life.session)
    assert len(attempts) == (5 if variant != "returns" else 1)


@case(4, "idle-waits", "sent-at-once")
def test_no_work_survives_a_cancel(variant: str) -> None:
    """BC-04: both clean-ups have ended before idle, nothing ticks after it, and a message sent
    straight after the cancel does not overlap the old tools."""
    ticks: list[float] = []
    cleaned: list[str] = []
    overlaps: list[int] = []

    @tool(parallel=True)
    async def ticking(run: ToolRun) -> str:
        """Tick until stopped, then clean up."""
        try:
            while True:
                ticks.append(trio.current_time())
                await trio.sleep(0.01)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.2)
            cleaned.append(run.call_id)

    @played
    async def main() -> None:
        script: list[Any] = [answer(call("ticking", id="c1"), call("ticking", id="c2")), "again"]
        async with one(script, [ticking]) as life:
            before = tasks()

            async def note(value: Any, proceed: Any) -> Any:
                overlaps.append(len(cleaned))
                return await proceed()

            life.hooks.stream.listen(note)
            life.agent.followup("go")
            await trio.sleep(0.1)
            life.agent.cancel()
            if variant == "sent-at-once":
                life.agent.followup("next")
            await life.agent.wait_idle()
            assert sorted(cleaned) == ["c1", "c2"]
            count = len(ticks)
            assert tasks() == before
            await trio.sleep(1)
            assert len(ticks) == count
            kinds = [STOPPED, Completed()] if variant == "sent-at-once" else [STOPPED]
            assert endings(life.session) == kinds
            assert overlaps == ([0, 2] if variant == "sent-at-once" else [0])
            check(life.session)

    main()


@case(5, "in-the-wait", "same-tick", "connection-refused")
async def test_a_cancel_interrupts_the_wait_for_a_retry(variant: str, tmp_path: Path) -> None:
    """BC-05: a provider asks for an hour of patience; the user does not have it."""
    waiting = trio.Event()
    attempts: list[int] = []
    script: list[Any] = [refuse(429, retry_after=3600), refuse(429), says("fine")]
    if variant == "connection-refused":
        script = script[2:]
    async with served(script, folder=tmp_path) as life:

        async def patient(failed: RequestFailed, proceed: Any) -> Retry:
            attempts.append(failed.attempt)
            if waiting.is_set():
                return Retry()  # in the second turn, at once
            waiting.set()
            if variant == "same-tick":
                life.agent.cancel()
            await trio.sleep(3600)
            return Retry()

        if variant == "connection-refused":
            listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
            port = listener.socket.getsockname()[1]
            await listener.aclose()
            nobody = OpenAIChat(
                provider="nobody", api_key="k", base_url=f"http://127.0.0.1:{port}/v1"
            )
            life.engine.agents.services.runtime.register(nobody)
            life.agent.model.select("nobody", "m")
        life.agent.scope.hooks.request_error.listen(patient)
        life.agent.followup("go")
        await waiting.wait()
        if variant != "same-tick":
            life.agent.cancel()
        await life.agent.wait_idle()
        assert endings(life.session) == [STOPPED]
        assert len(life.server.requests) == (0 if variant == "connection-refused" else 1)
        assert not any(isinstance(e.data, LlmRetryStarted) for e in life.session.events)
        if variant == "connection-refused":
            life.agent.model.select("openai", "m")
        await life.say("next")
        assert endings(life.session) == [STOPPED, Completed()]
        # The next message counts its attempts afresh.
        assert attempts == ([1] if variant == "connection-refused" else [1, 1])
        check(life.session)


@case(6, "idle", "twice", "from-the-end-of-the-turn")
async def test_a_cancel_belongs_to_one_turn(variant: str) -> None:
    """BC-06: the follow-up runs to its completion, with one request."""
    script = (
        [plays(text("x"), ending=Hang()), says("b")] if variant == "twice" else [says("ok")] * 2
    )
    async with served(script) as life:
        if variant == "idle":
            life.agent.cancel()
            life.agent.cancel()
        elif variant == "twice":
            life.agent.followup("a")
            await life.delivered(1)
            life.agent.cancel()
            life.agent.cancel()
        else:

            def stop(event: Any) -> None:
                if type(event.data).__name__ == "TurnEnd" and event.data.turn == 1:
                    life.agent.cancel()

            life.session.observe(stop)
            await life.say("a")
        before = len(life.server.requests)
        await life.say("then")
        assert len(life.server.requests) == before + 1
        first = {"idle": [], "twice": [STOPPED]}.get(variant, [Completed()])
        assert endings(life.session) == [*first, Completed()]
        check(life.session)
