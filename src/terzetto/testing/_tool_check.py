"""`check_tool`: whether a tool can be cancelled anywhere, and keeps what it declares.

Its trials are `_tool_trials.py`'s, what is seen in one `_trial.py`'s; here it is judged what a
single call did. What two calls do to each other, and what needs no trial, is judged in
`_tool_declares.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from attrs import define

from ..tools import Tool
from ..vocabulary import InvalidValue
from ._effects import Effects
from ._explorer import calling, explore
from ._judge import Judge, check_ignored, verdict
from ._stage import SOURCES, Stage
from ._tool_declares import declared, encoded, overlapping, unchecked
from ._tool_trials import Call, ToolTrials
from ._trial import Around, Trial
from ._trials import nothing
from ._verdicts import CheckReport, Verdict

MakeTool = Callable[[], Tool]


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

    Not to be called inside a Trio run, nor in two threads at once. Time is virtual, and jumps
    while all tasks of the call wait for time or for each other; while one waits for a socket,
    a process or a thread, it is real. The tool runs for real: give it a folder, a server and
    a database of the test's.
    """
    check_ignored(ignore)
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
    check = _ToolJudge(
        trials=trials, calls=calls, give_way=give_way, block=block, may_fail=may_fail, limit=limit
    )
    check.tell(declared(made, None if tool is made else tool))  # type: ignore[arg-type]
    for each in calls:
        check.one(each)
    if not check.hopeless:
        check.tell(overlapping(trials, calls, check.skipped))
        check.tell(unchecked(trials, calls[0]))
        if engine and "breaks-engine" not in ignore:
            check.in_engine()
    return check.report(f"tool {made.name!r}", ignore)


@define(eq=False, kw_only=True)
class _ToolJudge(Judge[Call]):
    """What is said of a tool beyond what is said of anything."""

    trials: ToolTrials  # pyright: ignore[reportIncompatibleVariableOverride]
    calls: Sequence[Call]

    def of_plain(self, call: Call, trial: Trial) -> Iterator[Verdict]:
        ending, tool = trial.ending, self.trials.tool
        if ending is not None and ending.returned:
            yield from encoded(tool, ending.value, self.trials.begins_at)
        if tool.timeout is not None and trial.seconds > tool.timeout:
            text = f"took {trial.seconds:g} s, and its timeout is {tool.timeout:g} s"
            yield verdict("fails", f"{self.trials.shown(call)} {text}", None)
        yield from self._undeclared(call, trial)

    def of_all(self) -> Iterator[Verdict]:
        for name in dict.fromkeys(self.trials.mutated):
            text = f"changes its argument {name!r}"
            yield verdict("mutates-arguments", text, self.trials.begins_at)

    def _undeclared(self, call: Call, trial: Trial) -> Iterator[Verdict]:
        tool, entries = self.trials.tool, self.trials.effects._entries
        changed = trial.first_seen != trial.last_seen
        did = [effect.what for effect in entries if effect.sort == "note"]
        if tool.read_only and (did or changed):
            what = f"{did[0]!r}" if did else "what the probe sees is changed"
            yield verdict("read-only-effect", f"is declared read_only, but {what}", None)
        claim = tool.claim(self.trials.parsed(call)) if tool.touches is not None else None
        if claim is None:
            return
        for effect in entries:
            if effect.touch is None:
                continue
            resource, writes = effect.touch.resource, effect.sort == "note"
            known = claim.writes if writes else claim.reads | claim.writes
            if resource not in known:
                text = f"{self.trials.shown(call)} {effect.what!r}, which its touches do not say"
                yield verdict("wrong-touches", text, None)

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
            self.tell(iter([verdict("breaks-engine", str(violation), None)]))


_IN_ENGINE = {"user", "dispose", "host cancel", "KeyboardInterrupt in a body"}
