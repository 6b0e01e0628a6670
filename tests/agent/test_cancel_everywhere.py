"""One rich scenario, cut short at every point from every source; the eight invariants."""

from __future__ import annotations

import pytest
from tests.agent.scenarios import make_model, rich

from terzetto.testing import SOURCES, Source, explore


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_point_keeps_the_invariants(source: Source) -> None:
    """C124 C126-C130 C134 C173 C175 C176 C179: every point of the scenario, one source."""
    report = explore(rich, make_model, name="rich", sources=[source])
    assert report.violations == []
    least = 5 if source.inside else 40
    assert report.points >= least, "the scenario must not end before it has begun"
