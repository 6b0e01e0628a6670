"""``python -m tests.mutants.strike SCENARIO SOURCE ...``: explore until something is wrong.

Exit status 1 at the first violation, which is printed; 0 when there is none. Few points
first: most defects are seen at many.
"""

import sys

from terzetto.testing import SOURCES, explore, explore_crashes
from terzetto.testing._shipped import SHIPPED

POWER = "power cut"


def main(scenario: str, *names: str) -> int:
    one = SHIPPED[scenario]
    by_name = {source.name: source for source in SOURCES}
    points = 0
    for stride in (7, 1):
        for name in names:
            if name == POWER:
                report = explore_crashes(one.scenario, one.model, name=scenario, stride=stride)
            else:
                report = explore(
                    one.scenario, one.model, name=scenario, sources=[by_name[name]], stride=stride
                )
            points += report.points
            if report.violations:
                print(report.violations[0])
                print(f"{points:,} points, {len(report.violations):,} violations")
                return 1
    print(f"{points:,} points, 0 violations")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
