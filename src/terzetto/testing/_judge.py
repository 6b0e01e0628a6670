"""Judging what was run: as it is, and cut short at every moment.

What is said here holds for a tool and a listener alike; what only one of them can do wrong is
added by `Judge.of_plain` and `Judge.of_all`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Generic, TypeVar

from attrs import define, field

from ..vocabulary import InvalidValue
from ._leftovers import Leftovers
from ._trial import Trial
from ._trial_facts import Strike, strikes
from ._trials import Trials
from ._verdicts import VERDICTS, CheckReport, Verdict

C = TypeVar("C")
_REPEATS = 5
"""Runs in each of which a step has to be slow before it is called so."""


def check_ignored(ignore: Collection[str]) -> None:
    """Raise `InvalidValue` for a kind that there is not."""
    if unknown := sorted(set(ignore) - VERDICTS.keys()):
        raise InvalidValue(f"ignore: there is no verdict {unknown[0]!r}; VERDICTS has all kinds")


@define(eq=False, kw_only=True)
class Judge(Generic[C]):
    """The verdicts on one thing so far, each kind at each place once."""

    trials: Trials[C]
    give_way: float
    block: float
    may_fail: bool
    limit: int
    verdicts: dict[tuple[str, str], Verdict] = field(factory=dict)
    skipped: list[str] = field(factory=list)
    hopeless: bool = False
    waits_for_world: bool = False
    _done: object = None
    _repeatable: bool = False

    def tell(self, found: Iterator[Verdict]) -> None:
        for verdict in found:
            self.verdicts.setdefault((verdict.kind, verdict.place or ""), verdict)

    def one(self, call: C) -> None:
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
        self.tell(self.of_all())

    # --- as it is --------------------------------------------------------------------------

    def _of_plain(self, call: C, trial: Trial) -> Iterator[Verdict]:
        ending = trial.ending
        if trial.hung is not None:
            yield verdict(
                "never-ends", f"{self.trials.shown(call)} does not end: {trial.hung}", None
            )
            return
        assert ending is not None
        if not ending.returned and not self.may_fail:
            text = f"{self.trials.shown(call)} raised {ending.rest}{_at(ending.place)}"
            yield verdict("fails", text, ending.place)
        yield from _shields(trial)
        for name in trial.context:
            text = f"sets the context variable {name!r} and does not reset it"
            yield verdict("leaks-context", text, self.trials.begins_at)
        for what in (*trial.tasks_left, *trial.threads_left):
            yield _left_verdict("thread" if what.startswith("a thread") else "task", what, "")
        yield from self.of_plain(call, trial)
        if max(trial.slow_steps, default=0.0) > self.block:
            yield from self._blocking(call)

    def _blocking(self, call: C) -> Iterator[Verdict]:
        runs = [self.trials.run(call, precise=True)[0].slow_steps for _ in range(_REPEATS)]
        if len({len(steps) for steps in runs}) == 1:
            slow = max((min(times) for times in zip(*runs, strict=True)), default=0.0)
        else:
            slow = min(max(steps, default=0.0) for steps in runs)
        if slow > self.block:
            sampled, _ = self.trials.run(call, sample_after=self.block / 2)
            at = sampled.slow_at or self.trials.begins_at
            text = f"no checkpoint for {slow * 1000:.0f} ms of real time{_at(at)}"
            yield verdict("blocks", f"{text}; give it to trio.to_thread.run_sync", at)

    # --- cut short -------------------------------------------------------------------------

    def _of_struck(self, call: C, trial: Trial, strike: Strike) -> Iterator[Verdict]:
        when = f" (cancelled {trial.struck_at})"
        if trial.hung is not None and trial.struck:
            yield verdict("never-stops", f"does not give way: {trial.hung}{when}", None)
            yield from _shields(trial)
            return
        ending, heard = trial.ending, trial.heard
        yield from _shields(trial)
        if ending is None or not trial.struck:
            return
        if trial.gave_way_after > self.give_way:
            text = f"took {trial.gave_way_after:.1f} s (virtual) to give way{when}"
            yield verdict("slow-to-stop", text, None)
        if ending.cancelled and ending.rest is not None:
            text = f"raised an ExceptionGroup that hides Cancelled, with {ending.rest}"
            yield verdict("hides-cancelled", f"{text}{_at(ending.place)}{when}", ending.place)
        if heard is not None:
            yield from self._deaf(call, trial, strike, when)
        for what in (*trial.tasks_left, *trial.threads_left):
            yield _left_verdict("thread" if what.startswith("a thread") else "task", what, when)
        if trial.late_effects:
            text = f"ran its effect {trial.late_effects[0].what!r} after the cancel{when}"
            yield verdict("effect-after-cancel", text, None)
        elif heard is not None:
            yield from self._half(trial, when)

    def _deaf(self, call: C, trial: Trial, strike: Strike, when: str) -> Iterator[Verdict]:
        ending = trial.ending
        assert ending is not None
        if not ending.returned and not ending.cancelled:
            text = f"not cancel-safe: raised {ending.rest} instead of Cancelled{_at(ending.place)}"
            yield verdict("replaces-cancelled", text + when, ending.place)
        elif ending.returned:
            again, _ = self.trials.run(call, strike, find_swallow=True)
            heard = trial.heard
            at = again.swallowed_at or (heard.place if heard is not None else None)
            if trial.went_on:
                text = f"not cancel-safe: Cancelled swallowed{_at(at)}, and it went on"
                yield verdict("swallows-cancelled", text + when, at)
            else:
                text = f"not cancel-safe: returns {ending.value!r:.60} although cancelled{_at(at)}"
                yield verdict("returns-cancelled", text + when, at)

    def _half(self, trial: Trial, when: str) -> Iterator[Verdict]:
        ending, heard, done = trial.ending, trial.heard, self._done
        if self.trials.probe is None or not self._repeatable or heard is None or ending is None:
            return
        before, now = trial.first_seen, trial.last_seen
        if ending.returned or now == before:
            return
        if now != done:
            text = f"leaves half its effect: {now!r:.100}{when}"
            yield verdict("half-done", text, None)
        elif heard.seen != done:
            yield verdict("effect-after-cancel", f"ran its effect after the cancel{when}", None)

    # --- left ------------------------------------------------------------------------------

    def _left(
        self, call: C, left: Leftovers, trial: Trial, strike: Strike | None
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
                yield verdict(kind, text + when, None)

    def _lost_patience(self) -> bool:
        """Nobody is given time to end any more: it is known that they do not."""
        return self._told("leaves-process") or self._told("leaves-thread")

    def _told(self, kind: str) -> bool:
        return any(known == kind for known, _ in self.verdicts)

    # --- what else there is to say ----------------------------------------------------------

    def of_plain(self, call: C, trial: Trial) -> Iterator[Verdict]:
        """About a call that nobody cut short."""
        return iter(())

    def of_all(self) -> Iterator[Verdict]:
        """About all runs of a call."""
        return iter(())

    def report(self, subject: str, ignore: Collection[str]) -> CheckReport:
        """What was found, but for the kinds in *ignore*."""
        return CheckReport(
            subject=subject,
            runs=self.trials.runs,
            points=self.trials.points,
            verdicts=tuple(v for v in self.verdicts.values() if v.kind not in ignore),
            skipped=tuple(dict.fromkeys(self.skipped)),
        )


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
        yield verdict("shields-forever", text, at)


def _left_verdict(sort: str, what: str, when: str) -> Verdict:
    named = what if sort == "thread" else f"the task {what}"
    return verdict(f"leaves-{sort}", f"left {named}{when}", None)


def verdict(kind: str, text: str, at: str | None) -> Verdict:
    return Verdict(kind=kind, text=text, place=at)


def _at(at: str | None) -> str:
    return "" if at is None else f" at {at}"
