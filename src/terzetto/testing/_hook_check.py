"""`check_hook`: whether a listener can be cancelled anywhere, and decides only what it may."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import trio
from attrs import define, frozen

from ..agent import Assembly, End, Enter, Reject, Retry
from ..tools import Allow, Ask, Deny, ToolOutcome
from ..vocabulary import CallConfig, InvalidValue
from ._chunks import chunk_problems
from ._effects import Effects
from ._hook_samples import HOOKS, INNER_SECONDS, SERIALS, WATERFALLS, Sample, samples
from ._judge import Judge, check_ignored, verdict
from ._places import place
from ._trial import Around, Body, Trial
from ._trials import Trials, nothing
from ._verdicts import CheckReport, Verdict

_KINDS: dict[str, tuple[type, ...]] = {
    "pre_step": (Enter, Reject),
    "assemble": (Assembly,),
    "request": (CallConfig,),
    "request_error": (Retry, End),
    "tool_pre_execute": (Allow, Deny, Ask),
    "tool_execute": (ToolOutcome,),
    "tool_post_execute": (ToolOutcome,),
}
_ASKS_FURTHER = set(WATERFALLS) - {"request_error", "tool_execute"}
"""Where a listener that decides alone takes the decision from every listener inside."""


def check_hook(
    hook: str,
    listener: Callable[..., object],
    *,
    values: Sequence[object] = (),
    around: Around = nothing,
    effects: Effects | None = None,
    probe: Callable[[], object] | None = None,
    give_way: float = 1.0,
    slow: float = 10.0,
    block: float = 0.1,
    may_fail: bool = False,
    limit: int = 400,
    patience: float = 60.0,
    ignore: Collection[str] = (),
) -> CheckReport:
    """Call *listener* as the hook point *hook* does, cut it short everywhere, and say what is
    wrong.

    Args:
        hook: The name of an attribute of `Hooks`, such as ``"tool_pre_execute"``.
        listener: What would be given to ``listen``.
        values: What it is shown; absent, a value or two as the engine gives. The decision
            inside a waterfall is the engine's own, and takes a virtual second.
        slow: Virtual seconds that it may take by itself, while its agent waits.
        may_fail: Whether it may raise, as one of ``agent_created`` does that vetoes.
        around, effects, probe, give_way, block, limit, patience, ignore: As for `check_tool`.

    Beyond what is said of tools: it proceeds twice, or never though others may have a say; it
    decides what it may not, such as another route, or overrules a denial; it is async where a
    plain function is called, or plain where a coroutine is awaited.

    Raises:
        InvalidValue: there is no such hook, or no such verdict; *listener* is no function.

    Not to be called inside a Trio run.
    """
    check_ignored(ignore)
    if hook not in HOOKS:
        raise InvalidValue(f"hook: there is no hook {hook!r}; there are {', '.join(HOOKS)}")
    if not callable(listener):
        raise InvalidValue(f"listener: expected a function, got {listener!r:.100}")
    trials = _HookTrials(
        hook=hook,
        listener=listener,
        around=around,
        effects=Effects() if effects is None else effects,
        probe=probe,
        patience=patience,
    )
    judge = _HookJudge(
        trials=trials,
        slow=slow,
        give_way=give_way,
        block=block,
        may_fail=may_fail,
        limit=limit,
    )
    shown = samples(hook)
    if values:
        shown = [Sample(f"value {n}", each, shown[0].inside) for n, each in enumerate(values, 1)]
    for sample in shown:
        judge.one(sample)
    return judge.report(f"listener {_name(listener)!r} of {hook}", ignore)


@frozen
class Decided:
    """What a listener did. *proceeded* are the values that it went on with, *made* the decisions
    that it got for them."""

    decision: Any
    proceeded: tuple[Any, ...] = ()
    made: tuple[Any, ...] = ()
    chunks: tuple[Any, ...] = ()
    unfit: str = ""

    def __repr__(self) -> str:
        return repr(self.decision)


@define(eq=False, kw_only=True)
class _HookTrials(Trials[Sample]):
    hook: str
    listener: Callable[..., object]

    def body_of(self, call: Sample) -> Body:
        return partial(self._run, call)

    def shown(self, call: Sample) -> str:
        return call.called

    @property
    def begins_at(self) -> str | None:
        code = getattr(inspect.unwrap(self.listener), "__code__", None)
        return None if code is None else place(code.co_filename, code.co_firstlineno)

    async def _run(self, sample: Sample) -> Decided:
        if self.hook not in WATERFALLS:
            return await self._told(sample)
        proceeded: list[Any] = []
        made: list[Any] = []
        same = object()

        async def inside(value: Any) -> object:
            await trio.sleep(INNER_SECONDS)
            assert sample.inside is not None
            fits = type(value) is type(sample.value)  # what does not is told of afterwards
            decision = sample.inside(value if fits else sample.value)
            made.append(decision)
            return decision

        def proceed(changed: Any = same, /) -> object:
            proceeded.append(sample.value if changed is same else changed)
            return inside(proceeded[-1])

        given = self.listener(sample.value, proceed)
        if not inspect.isawaitable(given):
            return Decided(given, unfit="is a plain function, and what it returns is awaited")
        decision = await given
        chunks: list[Any] = []
        if self.hook == "stream" and hasattr(decision, "__aenter__"):
            async with decision as stream:
                async for chunk in stream:
                    chunks.append(chunk)  # noqa: PERF401
        return Decided(decision, tuple(proceeded), tuple(made), tuple(chunks))

    async def _told(self, sample: Sample) -> Decided:
        given = self.listener(sample.value)
        if self.hook in SERIALS:
            if not inspect.isawaitable(given):
                return Decided(given, unfit="is a plain function, and what it returns is awaited")
            return Decided(await given)
        if inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()
            return Decided(given, unfit="is async, and nothing awaits what it returns")
        return Decided(given)


@define(eq=False, kw_only=True)
class _HookJudge(Judge[Sample]):
    trials: _HookTrials  # pyright: ignore[reportIncompatibleVariableOverride]
    slow: float

    def of_plain(self, call: Sample, trial: Trial) -> Iterator[Verdict]:
        ending, at = trial.ending, self.trials.begins_at
        own = trial.seconds - INNER_SECONDS * (self.trials.hook in WATERFALLS)
        if own > self.slow:
            text = f"took {own:g} s (virtual) by itself for {call.called}, and its agent waits"
            yield verdict("slow", text, at)
        if ending is None or not ending.returned or not isinstance(ending.value, Decided):
            return
        did = ending.value
        if did.unfit:
            yield verdict("wrong-decision", did.unfit, at)
        elif self.trials.hook in WATERFALLS:
            for kind, text in _problems(self.trials.hook, call, did):
                yield verdict(kind, f"{text} ({call.called})", at)


def _problems(hook: str, sample: Sample, did: Decided) -> Iterator[tuple[str, str]]:
    """The kind and the text of what is wrong with a decision."""
    decision, kinds = did.decision, _KINDS.get(hook)
    if len(did.proceeded) > 1:
        yield "proceeds-twice", f"proceeds {len(did.proceeded)} times, and all of it happens again"
    for value in did.proceeded:
        if type(value) is not type(sample.value):
            text = f"proceeds with {_article(value)} instead of {_article(sample.value)}"
            yield "wrong-decision", text
    if kinds is not None and not isinstance(decision, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        yield "wrong-decision", f"decides {_article(decision)}, expected {names}"
        return
    refuses = isinstance(decision, (Reject, Deny, Ask)) or getattr(decision, "is_error", False)
    if not did.proceeded and hook in _ASKS_FURTHER and not refuses:
        text = "decides without asking further: what other listeners say is not heard"
        yield "never-proceeds", f"{text}; end with `return await proceed()`"
    inner = did.made[-1] if did.made else None
    match hook:
        case "stream":
            if not hasattr(decision, "__aenter__"):
                yield "wrong-decision", f"decides {_article(decision)}, expected a stream"
            for problem in chunk_problems(did.chunks):
                yield problem.kind, problem.text
        case "assemble" if did.decision.selection != sample.value.selection:
            yield "wrong-decision", "changes the selection, which the step runs on"
        case "request" if did.decision.selection != sample.value.config.selection:
            yield "wrong-decision", "changes the route, which a request may not (ROUTE_CHANGED)"
        case "pre_step" if isinstance(decision, Enter) and isinstance(inner, Enter):
            if inner.starts_series and not decision.starts_series:
                text = "forgets that the step starts a series; use evolve(decision, messages=...)"
                yield "wrong-decision", text
        case "tool_pre_execute" if isinstance(inner, Deny) and isinstance(decision, Allow):
            yield "wrong-decision", "lets a call through that a listener inside has denied"
        case _:
            pass


def _article(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}" if value is not None else "None"


def _name(listener: Callable[..., object]) -> str:
    return str(getattr(listener, "__name__", type(listener).__name__))
