"""The explorer's checks can fail: one thing is broken at a time, and the right number is told.

A mutant is a monkeypatch of the engine. What no mutant can make fail, nobody is checking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import trio
from attrs import evolve

import terzetto.agent._activity as activity_module
import terzetto.agent._driver as driver_module
import terzetto.agent._lifetime as lifetime_module
import terzetto.agent._request as request_module
import terzetto.agent._run_state as run_state_module
import terzetto.agent._step as step_module
import terzetto.engine as engine_module
import terzetto.session._recovery as recovery_module
import terzetto.tools._batch as batch_module
import terzetto.tools._pipeline as pipeline_module
from terzetto import ToolRun, tool
from terzetto.llm.scripted import Delay, ScriptedModel, answer, call, say
from terzetto.session import PendingInput, Place, Session
from terzetto.stores._memory import MemoryHandle
from terzetto.testing import SOURCES, Report, Source, Stage, explore
from terzetto.tools import PoolExecutor
from terzetto.tools._outcome import aborted, aborted_before_dispatch, success
from terzetto.vocabulary import (
    AssistantMessageEvent,
    Draft,
    EndSeed,
    Finish,
    InboxSpliced,
    LegacyCause,
    StepEnd,
    TextBlock,
    ToolCallEvent,
    ToolErrorInfo,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    UserCause,
    texts,
)


def make_model() -> ScriptedModel:
    return ScriptedModel(
        [
            answer(
                Delay(0.1),
                say("I will look. "),
                Delay(0.1),
                call("look", id="c1"),
                call("look", id="c2"),
                call("alone", id="c3"),
            ),
            answer(Delay(0.1), say("Both are short.")),
            answer(say("more")),
            answer(say("more")),
            answer(say("more")),
        ]
    )


async def scene(stage: Stage) -> None:
    """One turn with a note, text, two calls at once and one alone, and a prompt behind it."""

    @tool(parallel=True)
    async def look(run: ToolRun) -> str:
        """Look."""
        async with stage.body(run):
            await trio.sleep(0.1)
        return "seen"

    @tool
    async def alone(run: ToolRun) -> str:
        """Alone."""
        async with stage.body(run):
            await trio.sleep(0.1)
        return "seen"

    async def review(value: object, proceed: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return await proceed()

    async with stage.open_engine([look, alone]) as engine:
        engine.scope.hooks.pre_step.listen(review)
        engine.scope.hooks.request.listen(review)
        async with stage.open_agent(engine) as agent:
            stage.send("inject", "a note")
            stage.send("followup", "look")
            stage.send("followup", "and then this")
            await agent.wait_idle()


BY_NAME = {source.name: source for source in SOURCES}


def run(*sources: str, scenario: Any = scene, stride: int = 1, make: Any = make_model) -> Report:
    chosen: Sequence[Source] = [BY_NAME[name] for name in sources] or [BY_NAME["user"]]
    return explore(scenario, make, name="mutant", sources=chosen, stride=stride)


def numbers(report: Report) -> set[str]:
    return {violation.problem.split(".")[0] for violation in report.violations}


def assert_bites(report: Report, number: str, text: str = "") -> None:
    """*report* holds a violation of invariant *number* (that says *text*)."""
    found = [v.problem for v in report.violations if v.problem.startswith(f"{number}. ")]
    assert any(text in problem for problem in found), (
        f"the explorer does not see it: {sorted(numbers(report))}, "
        f"{sorted({v.problem for v in report.violations})[:5]}"
    )


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_scene_itself_is_clean(source: Source) -> None:
    """Nothing broken, nothing found: else no mutant would prove anything."""
    report = run(source.name)
    assert report.violations == []
    assert report.points >= (3 if source.inside else 30)


# --- closers --------------------------------------------------------------------------


def _filtered(monkeypatch: pytest.MonkeyPatch, keep: Any, *, lax: bool = False) -> None:
    """Closers of live turns lose what *keep* does not want."""
    original = recovery_module.closers

    def closers(place: Place, *args: Any) -> Iterator[Draft]:
        place.strict = not lax
        for draft in original(place, *args):
            if keep(draft):
                yield draft
            elif isinstance(draft.data, StepEnd):
                return

    monkeypatch.setattr(driver_module, "closers", closers)
    # Teardown closes what a broken driver left open; this mutant breaks both.
    monkeypatch.setattr(lifetime_module, "closers", closers)


def test_1_a_turn_that_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 1: every turn/start has exactly one turn/end."""
    _filtered(monkeypatch, lambda draft: not isinstance(draft.data, TurnEnd))
    assert_bites(run("host cancel"), "1", "is open")


def test_1_a_step_that_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 1: every open step is closed first."""
    _filtered(monkeypatch, lambda draft: not isinstance(draft.data, StepEnd | TurnEnd))
    assert_bites(run("host cancel"), "1", "is open")


def test_2_calls_that_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 2: every assistant tool call has exactly one result before its step closes."""
    _filtered(
        monkeypatch,
        lambda draft: not isinstance(draft.data, ToolCallEvent | ToolResultEvent),
        lax=True,
    )
    # The batch answers its calls; what the closers answer are those of a cut before it.
    monkeypatch.setattr(
        step_module.StepRunner,
        "run",
        _without_the_batch(step_module.StepRunner.run),
    )
    report = run("user")
    assert_bites(report, "2", "unanswered")


def _without_the_batch(original: Any) -> Any:
    """Steps whose executor is late, and leaves a cancel before it to the closers."""

    async def run_step(self: Any, *args: Any) -> Any:
        pool = self.services.executor

        class Late:
            async def execute(self, batch: Any) -> Any:
                await trio.sleep(0.1)
                return await pool.execute(batch)

        self.services.executor = Late() if isinstance(pool, PoolExecutor) else pool
        return await original(self, *args)

    return run_step


def test_3_a_prefix_that_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 3: the anchor is there."""
    _filtered(monkeypatch, lambda draft: not isinstance(draft.data, AssistantMessageEvent))
    assert_bites(run("user"), "3", "lost the text")


def test_3_a_prefix_that_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 3: it equals what was delivered, verbatim."""
    original = recovery_module.anchor_draft

    def stripped(*args: Any) -> Draft | None:
        draft = original(*args)
        if draft is None or not draft.data.interrupted:  # type: ignore[union-attr]
            return draft
        message = draft.data.message  # type: ignore[union-attr]
        content = tuple(evolve(block, text=block.text.strip()) for block in message.content)  # type: ignore[union-attr]
        return evolve(draft, data=evolve(draft.data, message=evolve(message, content=content)))

    monkeypatch.setattr(recovery_module, "anchor_draft", stripped)
    assert_bites(run("user"), "3", "is not the delivered prefix")


def test_3_an_answer_that_was_complete_is_marked_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 3 with DESIGN 6: complete once its finish is in the log."""
    original = recovery_module.anchor_draft

    def marked(*args: Any) -> Draft | None:
        draft = original(*args)
        return draft and evolve(draft, data=evolve(draft.data, interrupted=True))

    monkeypatch.setattr(recovery_module, "anchor_draft", marked)

    async def cut_at_finish(stage: Stage) -> None:
        def observe(event: Any) -> None:
            if isinstance(getattr(event.data, "chunk", None), Finish) and stage.agent:
                stage.agent.cancel()

        async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
            agent.session.observe(observe)
            stage.send("followup", "go")
            await agent.wait_idle()

    report = explore(cut_at_finish, lambda: ScriptedModel(["whole"] * 3), sources=[])
    assert_bites(report, "3", "although its answer was complete")


def test_6_claimed_input_that_is_not_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 6: claimed and not admitted, it is pending again or discarded on the record."""
    _filtered(
        monkeypatch,
        lambda draft: not isinstance(draft.data, InboxSpliced),
    )
    for source in ("user", "user, inbox kept", "host cancel"):
        assert_bites(run(source), "6", "was lost by turn")


# --- tools ----------------------------------------------------------------------------


def test_4_bodies_that_start_without_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 4: no body starts after the cancel was seen."""

    async def body(self: Any, prepared: Any, tool_: Any, run_: Any) -> Any:
        prepared.started = True
        try:
            value = await pipeline_module.await_body(tool_, prepared.arguments, run_)
        except trio.Cancelled:
            return aborted()
        return success((TextBlock(str(value)),))

    monkeypatch.setattr(pipeline_module.ToolPipeline, "_body", body)
    assert_bites(run("user"), "4", "started inside a cancelled scope")


def test_4_a_body_that_outlives_its_turn() -> None:
    """Invariant 4: every started body has ended before its turn ends."""

    async def lingering(stage: Stage) -> None:
        done = trio.Event()

        @tool
        async def leak(run: ToolRun) -> str:
            """Leak."""

            async def linger() -> None:
                async with stage.body(run):
                    await trio.sleep(1)
                done.set()

            trio.lowlevel.spawn_system_task(linger)
            await trio.sleep(0.1)
            return ""

        async with stage.open_engine([leak]) as engine:
            async with stage.open_agent(engine) as agent:
                stage.send("followup", "go")
                await agent.wait_idle()
            with trio.CancelScope(shield=True):
                await done.wait()

    model = lambda: ScriptedModel([call("leak", id="c1"), "ok", "more"])  # noqa: E731
    report = explore(lingering, model, sources=[BY_NAME["user"]], limit=1)
    assert_bites(report, "4", "outlived its turn")


def test_5_an_unstarted_call_that_says_it_was_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 5: every unstarted call carries ABORTED_BEFORE_DISPATCH."""
    monkeypatch.setattr(pipeline_module, "aborted_before_dispatch", aborted)
    monkeypatch.setattr(batch_module, "aborted_before_dispatch", aborted)
    assert_bites(run("user"), "5", "never ran")


def test_5_a_started_call_that_says_it_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 5: every started one carries its own outcome."""
    monkeypatch.setattr(pipeline_module, "_aborted", lambda prepared: aborted_before_dispatch())
    assert_bites(run("user"), "5", "ran but")


def test_5_a_result_that_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 5: a body that returned keeps its result."""
    original = pipeline_module.ToolPipeline.review

    async def review(self: Any, prepared: Any) -> Any:
        outcome = await original(self, prepared)
        return aborted() if pipeline_module.cancelled_here() else outcome

    monkeypatch.setattr(pipeline_module.ToolPipeline, "review", review)
    monkeypatch.setattr(pipeline_module.ToolPipeline, "review_now", lambda self, call: None)
    assert_bites(run("user"), "5", "withheld")


def test_5_an_unstarted_call_with_the_code_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 5: under a cancel, unstarted is ABORTED_BEFORE_DISPATCH and nothing else."""
    wrong = ToolErrorInfo(texts.TOOL_NOT_STARTED_ERROR, texts.TOOL_NOT_STARTED)
    monkeypatch.setattr(recovery_module, "_NOT_DISPATCHED", wrong)
    monkeypatch.setattr(
        step_module.StepRunner, "run", _without_the_batch(step_module.StepRunner.run)
    )
    assert_bites(run("user"), "5")


def test_5_an_unstarted_call_with_an_invented_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 5: a success for a body that never ran is the worst of all."""
    invented = lambda: success((TextBlock("seen"),))  # noqa: E731
    monkeypatch.setattr(batch_module, "aborted_before_dispatch", invented)
    assert_bites(run("user"), "5")


def test_5_a_review_that_is_cut_short_is_no_violation() -> None:
    """DESIGN 6: "post-execute cut short by the cancel gives ABORTED": a scenario with such a
    listener, and nothing broken, must be clean."""

    async def reviewed(stage: Stage) -> None:
        @tool
        async def look(run: ToolRun) -> str:
            """Look."""
            async with stage.body(run):
                await trio.lowlevel.checkpoint()
            return "secret"

        async def redact(value: Any, proceed: Any) -> Any:
            await trio.sleep(0.1)
            return value.replaced("redacted")

        async with stage.open_engine([look]) as engine:
            engine.scope.hooks.tool_post_execute.listen(redact)
            async with stage.open_agent(engine) as agent:
                stage.send("followup", "go")
                await agent.wait_idle()

    model = lambda: ScriptedModel([call("look", id="c1"), "ok", "more"])  # noqa: E731
    assert run("user", scenario=reviewed, make=model).violations == []


# --- input ------------------------------------------------------------------------------


def test_6_input_that_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 6: every message is on the record."""
    original = run_state_module.RunState.send

    def send(self: Any, message: Any, target: Any, wakeup: bool) -> None:
        if wakeup and len(self.session.events) > 1:
            return  # dropped
        original(self, message, target, wakeup)

    monkeypatch.setattr(run_state_module.RunState, "send", send)
    assert_bites(run("user"), "6", "not on the record")


def test_6_input_that_enters_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 6: entered at most once, and never pending again after it entered."""
    monkeypatch.setattr(PendingInput, "_forget_claim", lambda self, message_id: None)
    monkeypatch.setattr(PendingInput, "settle_claims", lambda self: None)
    assert_bites(run("user"), "6", "after it entered")


def test_6_a_claim_that_nobody_accounts_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 6: claimed by no turn."""
    original = driver_module._Loop._idle

    def idle(self: Any) -> None:
        if self.session.pending.lists["next-turn"]:
            self.session.append(InboxSpliced("next-turn", 0, 1))
        original(self)

    monkeypatch.setattr(driver_module._Loop, "_idle", idle)
    assert_bites(run("user, inbox kept"), "6", "claimed and in no turn")


# --- the host -----------------------------------------------------------------------------


def test_7_a_task_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 7: no live task when all is left."""
    original = batch_module._Run.coordinate

    async def coordinate(self: Any) -> Any:
        trio.lowlevel.spawn_system_task(trio.sleep_forever)
        return await original(self)

    monkeypatch.setattr(batch_module._Run, "coordinate", coordinate)
    assert_bites(run("user"), "7", "tasks are alive")


def _swallowing(monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]) -> None:
    """Engine and agent blocks that do not let *kind* out."""
    leave_engine, leave_agent = engine_module.leave_engine, engine_module.leave_agent

    def engine_left(*args: Any) -> None:
        try:
            leave_engine(*args)
        except kind:
            return

    def agent_left(*args: Any) -> None:
        try:
            leave_agent(*args)
        except kind:
            return

    monkeypatch.setattr(engine_module, "leave_engine", engine_left)
    monkeypatch.setattr(engine_module, "leave_agent", agent_left)


@pytest.mark.parametrize("source", ["host cancel", "host deadline"])
def test_7_a_hosts_cancel_that_is_swallowed(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 7: "the host's cancellation is re-raised"."""
    _swallowing(monkeypatch, trio.Cancelled)
    assert_bites(run(source), "7")


def test_7_an_interrupt_that_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 7 and DESIGN 4: KeyboardInterrupt is always raised on."""
    _swallowing(monkeypatch, KeyboardInterrupt)
    assert_bites(run("KeyboardInterrupt"), "7")


def test_7_an_interrupt_that_leaves_in_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 4: it leaves alone."""
    leave = engine_module.leave_engine

    def grouped(*args: Any) -> None:
        try:
            leave(*args)
        except KeyboardInterrupt as error:
            raise BaseExceptionGroup("grouped", [error]) from None

    monkeypatch.setattr(engine_module, "leave_engine", grouped)
    assert_bites(run("KeyboardInterrupt"), "7", "left the run")


def test_the_ending_says_who_ended_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 4 "who ends what": under the host's cancel the ending is `disposed`, not `user`."""
    monkeypatch.setattr(driver_module, "DisposedCause", UserCause)
    assert run("host cancel").violations, "nobody looks at the ending"


def test_the_cause_is_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """C127: `turn/end` records the kind of the cause, and a hook's reason."""
    monkeypatch.setattr(activity_module, "fresh_cause", lambda cause: LegacyCause())
    assert run("hook").violations, "nobody looks at the cause"


# --- the next request ---------------------------------------------------------------------


def test_8_a_log_that_does_not_reach_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 8: what is stored is what is in memory."""

    async def close(self: Any) -> None:
        self._closed = True
        self._kept.owner = None
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(MemoryHandle, "close", close)
    assert_bites(run("user"), "8", "differs")


def test_8_a_handle_that_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 8: the session can be resumed."""

    async def tear_down(self: Any) -> None:
        self.saving.handle = None
        await original(self)

    original = lifetime_module.Lifetime.tear_down
    monkeypatch.setattr(lifetime_module.Lifetime, "tear_down", tear_down)
    assert_bites(run("host cancel"), "8", "second life failed")


def test_8_a_request_without_its_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 8: "equals what is rebuilt from the log", in the first life as in the second."""
    original = request_module.RequestBuilder.admit

    def admit(self: Any, *args: Any) -> Any:
        request = original(self, *args)
        return evolve(request, messages=request.messages[:-1])

    monkeypatch.setattr(request_module.RequestBuilder, "admit", admit)
    assert_bites(run("user"), "8")


def test_8_a_first_life_that_sends_an_invalid_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 8: the requests of the struck run itself are valid, too."""
    original = request_module.RequestBuilder.admit

    def admit(self: Any, *args: Any) -> Any:
        request = original(self, *args)
        resumed = any(isinstance(e.data, EndSeed) for e in self.session.events)
        if resumed:
            return request
        return evolve(request, messages=tuple(m for m in request.messages if not _answers(m)))

    monkeypatch.setattr(request_module.RequestBuilder, "admit", admit)
    assert_bites(run("user"), "8")


def _answers(message: Any) -> bool:
    return any(isinstance(block, ToolResultBlock) for block in message.content)


def test_8_a_history_that_drifts_from_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 8: the history derived as the log grew equals the one derived from scratch. Only
    the first life drifts here, so a second life that is sound proves nothing about it."""
    original = Session.append

    def append(self: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        event = original(self, data, *args, **kwargs)
        resumed = any(isinstance(e.data, EndSeed) for e in self.events)
        if isinstance(data, ToolResultEvent) and not resumed:
            self.surface = _Forgetful(self.surface)
        return event

    monkeypatch.setattr(Session, "append", append)
    assert_bites(run("user"), "8")


class _Forgetful:
    """A surface whose history lacks its first message."""

    def __init__(self, surface: Any) -> None:
        self._surface = surface

    def __getattr__(self, name: str) -> Any:
        return getattr(self._surface, name)

    def history(self) -> Any:
        return self._surface.history()[1:]


# --- what is struck -------------------------------------------------------------------------


def test_the_sources_are_those_of_the_design() -> None:
    """DESIGN 11: user, parent, hook, dispose, host cancel, host deadline, KeyboardInterrupt at
    delivery points and inside bodies and listeners."""
    names = " ".join(source.name for source in SOURCES)
    for wanted in ("user", "parent", "hook", "dispose", "host cancel", "host deadline"):
        assert wanted in names
    assert sum("KeyboardInterrupt" in source.name for source in SOURCES) >= 3


def test_a_run_that_never_ends_is_reported() -> None:
    """A scenario that reaches the limit of points says so."""

    async def long(stage: Stage) -> None:
        async with stage.open_engine() as engine, stage.open_agent(engine):
            for _ in range(100):
                await trio.lowlevel.checkpoint()

    report = explore(long, lambda: ScriptedModel(["more"] * 3), sources=[BY_NAME["user"]], limit=5)
    assert [v.problem for v in report.violations] == ["it never ended"]


def test_an_error_that_leaves_the_scenario_is_reported() -> None:
    """What is not the host's own stop is a violation, with its type."""

    async def broken(stage: Stage) -> None:
        async with stage.open_engine() as engine, stage.open_agent(engine):
            raise KeyError("mine")

    report = explore(broken, lambda: ScriptedModel(["more"] * 3), sources=[], limit=5)
    assert [v.problem for v in report.violations] == ["7. KeyError left the run: 'mine'"]
    assert str(report) == "0 points, 1 violations"


def test_an_interrupt_that_nobody_sent_is_reported() -> None:
    """KeyboardInterrupt from the scenario itself."""

    async def broken(stage: Stage) -> None:
        async with stage.open_engine() as engine, stage.open_agent(engine):
            raise KeyboardInterrupt

    report = explore(broken, lambda: ScriptedModel(["more"] * 3), sources=[], limit=5)
    assert [v.problem for v in report.violations] == ["7. a KeyboardInterrupt that nobody sent"]


def test_every_session_of_a_scenario_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 6: the invariants are of every agent: also of the first of two."""
    _filtered(monkeypatch, lambda draft: not isinstance(draft.data, TurnEnd))

    async def two(stage: Stage) -> None:
        async with stage.open_engine() as engine, stage.open_agent(engine) as agent:
            async with engine.open_agent(provider="scripted", model="m"):
                agent.followup("go")  # the first of the two has the only turn
                await agent.wait_idle()

    model = lambda: ScriptedModel(lambda r: answer(Delay(1), "ok"))  # noqa: E731
    assert_bites(run("host cancel", scenario=two, make=model), "1", "is open")


def test_the_same_seed_strikes_the_same_moments() -> None:
    """A violation can be made to happen again: two explorations agree."""
    first, second = run("host cancel"), run("host cancel")
    assert (first.points, first.steps) == (second.points, second.steps)
