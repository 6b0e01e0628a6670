"""Strategies of logs: those that are shipped, recorded ones, and single changes to them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from terzetto import vocabulary as v
from terzetto.testing._strategies_logs import (
    CALL_IDS as CALL_IDS,
    COMPLETE as COMPLETE,
    FAILED as FAILED,
    INDICES as INDICES,
    LIMIT as LIMIT,
    PIECES as PIECES,
    Tape as Tape,
    block as block,
    chunk as chunk,
    legal_logs as legal_logs,
    open_logs as open_logs,
    tapes as tapes,
    written as written,
)
from tests.session.oracle import MUTATIONS, Log, recorded


def recorded_logs() -> SearchStrategy[Log]:
    return st.sampled_from(sorted(recorded())).map(lambda name: recorded()[name])


@st.composite
def mutated_logs(draw: DrawFn) -> list[v.Event]:
    """Legal logs with one or two changes."""
    log: Sequence[v.Event] = draw(legal_logs(splitting=True) | recorded_logs())
    for _ in range(draw(st.integers(1, 2))):
        if log:
            mutate = MUTATIONS[draw(st.sampled_from(sorted(MUTATIONS)))]
            log = mutate(log, draw(st.integers(0, len(log) - 1))) or log
    return list(log)
