"""`check_tool`: whether a tool can be cancelled anywhere, and keeps what it declares.

Its trials are `_tool_trials.py`'s, what is seen in one `_trial.py`'s; here it is judged what a
single call did. What two calls do to each other, and what needs no trial, is judged in
`_tool_declares.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from attrs import define, field

from ..tools import Tool
from ..vocabulary import InvalidValue
from ._effects import Effects
from ._explorer import calling, explore
from ._leftovers import Leftovers
from ._places import place
from ._stage import SOURCES, Stage
from ._tool_declares import declared, encoded, overlapping, unchecked
from ._tool_trials import Call, ToolTrials, nothing
from ._trial import Around, Trial
from ._trial_facts import Strike, strikes
from ._verdicts import VERDICTS, CheckReport, Verdict

MakeTool = Callable[[], Tool]
_REPEATS = 5
"""Runs in each of which a step has to be slow before it is called so."""


def check_tool(
    tool: Tool | MakeTool,
    calls: Sequence[Call],
    *,
    around: Around = nothing,
    effects: Effects | None = None,
    probe: Callable[[], object] | None = None,
    give_way: float = 1.0,
    block: float = 0.1,
    may_fail: bool = False,
    engine: bool = True,
    limit: int = 400,
    patience: float = 60.0,
    ignore: Collection[str] = (),
) -> CheckReport:
    """Run *tool* many times, cancel it at every checkpoint of its body, and say what is wrong.

    Each of *calls* is run as it is, then cancelled before and after every step of its tasks,
    by a cancelled scope and by a deadline; then, when it may overlap others, together with
    itself and the next one, under several orders of the scheduler.

    Args:
        tool: A tool, or a function that makes it; made twice, it must show the same schema.
        calls: Arguments that the tool takes, one mapping for each call; at least one.
        around: Makes an async context manager around each run: a folder, a server, fresh
            state. What it opens is not the tool's.
        effects: What the stand-ins of the test tell of the world (`Effects`).
        probe: Looks at the world, before and after, and gives what can be compared with
            ``==``. It is called on Trio's thread and must not block.
        give_way: Virtual seconds that a cancelled call may take to end.
        block: Real seconds that one step may take; longer, and every other task waits.
        may_fail: Whether the calls may raise. Otherwise raising is a verdict, because a call
            that fails at once is hardly checked.
        engine: Whether the first call is also explored in an engine, as `explore` does.
        limit: Most runs of one call that are cut short.
        patience: Real seconds after which a run that waits for a socket, a process or a
            thread is given up.
        ignore: Kinds of verdicts (`VERDICTS`) that are not wanted.

    Raises:
        InvalidValue: there is no call, or one that the tool refuses; or no such kind.

    Not to be called inside a Trio run. Time is virtual, and jumps while all tasks of the call
    wait for time or for each other; while one waits for a socket, a process or a thread, it
    is real. The tool runs for real: give it a folder, a server and a database of the test's.
    """
    if unknown := sorted(set(ignore) - VERDICTS.keys()):
        raise InvalidValue(f"ignore: there is no verdict {unknown[0]!r}; VERDICTS has all kinds")
    if not calls:
        raise InvalidValue("calls: expected at least one mapping of arguments, got none")
    made = tool if isinstance(tool, Tool) else tool()
    if not isinstance(made, Tool):
        raise InvalidValue(f"tool: expected a Tool or a function that makes one, got {made!r:.100}")
    trials = ToolTrials(
        tool=made,
        around=around,
        effects=Effects() if effects is None else effects,
        probe=probe,
        patience=patience,
    )
    for each in calls:
        trials.parsed(each)
    check = _Check(
        trials, calls=calls, give_way=give_way, block=block, may_fail=may_fail, limit=limit
    )
    check.tell(declared(made, None if tool is made else tool))  # type: ignore[arg-type]
    for each in calls:
        check.one(each)
    if not check.hopeless:
        check.tell(overlapping(trials, calls, check.skipped))
        check.tell(unchecked(trials, calls[0]))
        if engine and "breaks-engine" not in ignore:
            check.in_engine()
    return CheckReport(
        subject=f"tool {made.name!r}",
        runs=trials.runs,
        points=trials.points,
        verdicts=tuple(v for v in check.verdicts.values() if v.kind not in ignore),
        skipped=tuple(dict.fromkeys(check.skipped)),
    )


@define(eq=False)
class _Check:
    """The verdicts on one tool so far, each kind at each place once."""

    trials: ToolTrials
    calls: Sequence[Call] = field(kw_only=True)
    give_way: float = field(kw_only=True)
    block: float = field(kw_only=True)
    may_fail: bool = field(kw_only=True)
    limit: int = field(kw_only=True)
    verdicts: dict[tuple[str, str], Verdict] = field(factory=dict)
    skipped: list[str] = field(factory=list)
    hopeless: bool = False
    waits_for_world: bool = False
    _done: object = None
    _repeatable: bool = False

    def tell(self, found: Iterator[Verdict]) -> None:
        for verdict in found:
            self.verdicts.setdefault((verdict.kind, verdict.place or ""), verdict)

    def one(self, call: Call) -> None:
        """Check one call, alone."""
        first, _ = self.trials.run(call)  # imports, caches: what is made once is made here
        if first.hung is None:
            plain, left = self.trials.run(call, collect=True)
        else:
            plain, left = first, Leftovers()
        self._done, self._repeatable = plain.last_seen, plain.last_seen == first.last_seen
        self.waits_for_world = self.waits_for_world or plain.waited
        self.tell(self._of_plain(call, plain))
        self.tell(self._left(call, left, plain, None))
        if plain.hung is not None:
            self.hopeless = True
            return
        for strike in strikes(plain.moments, self.limit, ("cancel", "deadline")):
            trial, left = self.trials.run(call, strike, hasty=self._lost_patience())
            self.tell(self._of_struck(call, trial, strike))
            self.tell(self._left(call, left, trial, strike))
            if trial.unended:
                self.hopeless = True
                return
        self.tell(self._mutated())

    # --- as it is --------------------------------------------------------------------------

    def _of_plain(self, call: Call, trial: Trial) -> Iterator[Verdict]:
        ending, tool = trial.ending, self.trials.tool
        if trial.hung is not None:
            yield _verdict("never-ends", f"{_shown(call)} does not end: {trial.hung}", None)
            return
        assert ending is not None
        if ending.returned:
            yield from encoded(tool, ending.value, self.body_place)
        elif not self.may_fail:
            yield _verdict(
                "fails", f"{_shown(call)} raised {ending.rest}{_at(ending.place)}", ending.place
            )
        if tool.timeout is not None and trial.seconds > tool.timeout:
            text = f"{_shown(call)} took {trial.seconds:g} s, and its timeout is {tool.timeout:g} s"
            yield _verdict("fails", text, None)
        yield from _shields(trial)
        for name in trial.context:
            text = f"sets the context variable {name!r} and does not reset it"
            yield _verdict("leaks-context", text, self.body_place)
        for what in (*trial.tasks_left, *trial.threads_left):
            yield _left_verdict("thread" if what.startswith("a thread") else "task", what, "")
        yield from self._undeclared(call, trial)
        if max(trial.slow_steps, default=0.0) > self.block:
            yield from self._blocking(call)

    def _undeclared(self, call: Call, trial: Trial) -> Iterator[Verdict]:
        tool, entries = self.trials.tool, self.trials.effects._entries
        changed = trial.first_seen != trial.last_seen
        did = [effect.what for effect in entries if effect.sort == "note"]
        if tool.read_only and (did or changed):
            what = f"{did[0]!r}" if did else "what the probe sees is changed"
            yield _verdict("read-only-effect", f"is declared read_only, but {what}", None)
        claim = tool.claim(self.trials.parsed(call)) if tool.touches is not None else None
        if claim is None:
            return
        for effect in entries:
            if effect.touch is None:
                continue
            resource, writes = effect.touch.resource, effect.sort == "note"
            known = claim.writes if writes else claim.reads | claim.writes
            if resource not in known:
                text = f"{_shown(call)} {effect.what!r}, which its touches do not say"
                yield _verdict("wrong-touches", text, None)

    def _blocking(self, call: Call) -> Iterator[Verdict]:
        runs = [self.trials.run(call, precise=True)[0].slow_steps for _ in range(_REPEATS)]
        if len({len(steps) for steps in runs}) == 1:
            slow = max((min(times) for times in zip(*runs, strict=True)), default=0.0)
        else:
            slow = min(max(steps, default=0.0) for steps in runs)
        if slow > self.block:
            sampled, _ = self.trials.run(call, sample_after=self.block / 2)
            at = sampled.slow_at or self.body_place
            text = f"no checkpoint for {slow * 1000:.0f} ms of real time{_at(at)}"
            yield _verdict("blocks", f"{text}; give it to trio.to_thread.run_sync", at)

    # --- cut short -------------------------------------------------------------------------

    def _of_struck(self, call: Call, trial: Trial, strike: Strike) -> Iterator[Verdict]:
        when = f" (cancelled {trial.struck_at})"
        if trial.hung is not None and trial.struck:
            yield _verdict("never-stops", f"does not give way: {trial.hung}{when}", None)
            yield from _shields(trial)
            return
        ending, heard = trial.ending, trial.heard
        yield from _shields(trial)
        if ending is None or not trial.struck:
            return
        if trial.gave_way_after > self.give_way:
            text = f"took {trial.gave_way_after:.1f} s (virtual) to give way{when}"
            yield _verdict("slow-to-stop", text, None)
        if ending.cancelled and ending.rest is not None:
            text = f"raised an ExceptionGroup that hides Cancelled, with {ending.rest}"
            yield _verdict("hides-cancelled", f"{text}{_at(ending.place)}{when}", ending.place)
        if heard is not None:
            yield from self._deaf(call, trial, strike, when)
        for what in (*trial.tasks_left, *trial.threads_left):
            yield _left_verdict("thread" if what.startswith("a thread") else "task", what, when)
        if trial.late_effects:
            text = f"ran its effect {trial.late_effects[0].what!r} after the cancel{when}"
            yield _verdict("effect-after-cancel", text, None)
        elif heard is not None:
            yield from self._half(trial, when)

    def _deaf(self, call: Call, trial: Trial, strike: Strike, when: str) -> Iterator[Verdict]:
        ending = trial.ending
        assert ending is not None
        if not ending.returned and not ending.cancelled:
            text = f"not cancel-safe: raised {ending.rest} instead of Cancelled{_at(ending.place)}"
            yield _verdict("replaces-cancelled", text + when, ending.place)
        elif ending.returned:
            again, _ = self.trials.run(call, strike, find_swallow=True)
            heard = trial.heard
            at = again.swallowed_at or (heard.place if heard is not None else None)
            if trial.went_on:
                text = f"not cancel-safe: Cancelled swallowed{_at(at)}, and it went on"
                yield _verdict("swallows-cancelled", text + when, at)
            else:
                text = f"not cancel-safe: returns {ending.value!r:.60} although cancelled{_at(at)}"
                yield _verdict("returns-cancelled", text + when, at)

    def _half(self, trial: Trial, when: str) -> Iterator[Verdict]:
        ending, heard, done = trial.ending, trial.heard, self._done
        if self.trials.probe is None or not self._repeatable or heard is None or ending is None:
            return
        before, now = trial.first_seen, trial.last_seen
        if ending.returned or now == before:
            return
        if now != done:
            text = f"leaves half its effect: {now!r:.100}{when}"
            yield _verdict("half-done", text, None)
        elif heard.seen != done:
            yield _verdict("effect-after-cancel", f"ran its effect after the cancel{when}", None)

    # --- left ------------------------------------------------------------------------------

    def _left(
        self, call: Call, left: Leftovers, trial: Trial, strike: Strike | None
    ) -> Iterator[Verdict]:
        found = dict(_kinds(left))
        if all(self._told(kind) for kind in found):
            return
        _, again = self.trials.run(call, strike, collect=True)
        confirmed = dict(_kinds(again))
        when = f" (cancelled {trial.struck_at})" if trial.struck else ""
        for kind, what in found.items():
            if kind in confirmed and not self._told(kind):
                text = _LEFT[kind].format(what)
                yield _verdict(kind, text + when, None)

    def _lost_patience(self) -> bool:
        """Nobody is given time to end any more: it is known that they do not."""
        return self._told("leaves-process") or self._told("leaves-thread")

    def _told(self, kind: str) -> bool:
        return any(known == kind for known, _ in self.verdicts)

    def _mutated(self) -> Iterator[Verdict]:
        for name in dict.fromkeys(self.trials.mutated):
            yield _verdict("mutates-arguments", f"changes its argument {name!r}", self.body_place)

    # --- in an engine ----------------------------------------------------------------------

    def in_engine(self) -> None:
        """The first call in an engine, struck from those sources that differ for a body."""
        if self.waits_for_world:
            self.skipped.append("in an engine: it waits for the world, which explore cannot")
            return
        inner = calling(self.trials.tool, **self.calls[0])

        async def scenario(stage: Stage) -> None:
            async with self.trials.around():
                await inner(stage)

        sources = [source for source in SOURCES if source.name in _IN_ENGINE]
        model = inner.model  # type: ignore[attr-defined]
        report = explore(scenario, model, name=self.trials.tool.name, sources=sources, stride=7)
        self.trials.runs += report.points + 1
        self.trials.points += report.points
        for violation in report.violations[:1]:
            self.tell(iter([_verdict("breaks-engine", str(violation), None)]))

    @property
    def body_place(self) -> str | None:
        """Where the body begins."""
        code = getattr(self.trials.tool.body, "__code__", None)
        return None if code is None else place(code.co_filename, code.co_firstlineno)


_IN_ENGINE = {"user", "dispose", "host cancel", "KeyboardInterrupt in a body"}
_LEFT: Mapping[str, str] = {
    "leaves-process": "left a child process, pid {}",
    "leaves-thread": "left a {}",
    "leaves-socket": "left {} open",
    "leaves-file": "left {} open",
    "not-awaited": "{}",
}


def _kinds(left: Leftovers) -> Iterator[tuple[str, str]]:
    for kind, found in (
        ("leaves-process", left.processes),
        ("leaves-thread", left.threads),
        ("leaves-socket", left.sockets),
        ("leaves-file", left.files),
        ("not-awaited", left.not_awaited),
    ):
        if found:
            yield kind, found[0]


def _shields(trial: Trial) -> Iterator[Verdict]:
    for at in trial.shields:
        text = f"shields without a deadline{_at(at)}; give the scope one, as move_on_after does"
        yield _verdict("shields-forever", text, at)


def _left_verdict(sort: str, what: str, when: str) -> Verdict:
    named = what if sort == "thread" else f"the task {what}"
    return _verdict(f"leaves-{sort}", f"left {named}{when}", None)


def _verdict(kind: str, text: str, at: str | None) -> Verdict:
    return Verdict(kind=kind, text=text, place=at)


def _at(at: str | None) -> str:
    return "" if at is None else f" at {at}"


def _shown(call: Call) -> str:
    words = ", ".join(f"{name}={value!r:.40}" for name, value in call.items())
    return f"({words})"
