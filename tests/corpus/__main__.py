"""``python -m tests.corpus``: check every tool of the corpus, and say what became of it."""

import sys
import time

from attrs import frozen

from tests.corpus import (  # noqa: F401
    correct,
    correct_together,
    defects_cancelled,
    defects_declared,
    defects_left,
)
from tests.corpus.cases import CASES


@frozen
class Sum:
    """What the checks said: names of defects that were named, of those that were not, of correct
    tools that were left alone, and of those that got a verdict."""

    named: list
    missed: list
    left_alone: list
    false_alarms: list

    def __str__(self) -> str:
        defects = len(self.named) + len(self.missed)
        tools = len(self.left_alone) + len(self.false_alarms)
        return (
            f"{len(self.named)} of {defects} defects named rightly, "
            f"{len(self.false_alarms)} false alarms in {tools} correct tools"
        )


def check_all(show=lambda line: None, only=()) -> Sum:
    """Check them all, or those whose names contain one of *only*."""
    found = Sum([], [], [], [])
    for case in CASES.values():
        if only and not any(part in case.name for part in only):
            continue
        began, at = time.process_time(), time.monotonic()
        report = case.check()
        right = case.named_rightly(report)
        if case.expect:
            (found.named if right else found.missed).append(case.name)
        else:
            (found.left_alone if right else found.false_alarms).append(case.name)
        mark = "ok  " if right else "WRONG"
        said = ", ".join(report.kinds) or "-"
        took = f"{time.process_time() - began:5.2f} s of {time.monotonic() - at:5.2f}"
        show(f"{mark} {case.name:38} {said:40} {took}")
        if not right:
            show(f"      expected {case.expect or 'nothing'}; {report}")
        elif only:
            show(str(report))
    return found


if __name__ == "__main__":
    result = check_all(print, sys.argv[1:])
    print(result)
    sys.exit(1 if result.missed or result.false_alarms else 0)
