"""Every recorded run, its log in the place of its world: the engine does the same once more.

What the log says is all there is: no tools, no listeners, no script of the model.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance.shelf import Shelf
from tests.conformance.test_runs import load, parameters
from tests.conformance.world import World

from terzetto.commands._rerun import rerun
from terzetto.commands._tape import Tape, not_rerunnable
from terzetto.vocabulary import EndSeed, Event, SessionHeader, SessionId

IMPORTED = "205-resume-same-log"
"""Its log begins with what another engine wrote: a step without a prompt."""


@pytest.mark.parametrize("path", parameters())
async def test_the_log_runs_again(path: Path) -> None:
    """C84 C162: event for event, request for request."""
    world = World(load(path), Shelf())
    await world.perform()
    events: list[Event] = list(world.session.events)
    seeds = [e.seq for e in events if isinstance(e.data, EndSeed) and e.data.inherited]
    header = SessionHeader(id=SessionId("S"), created_ms=0, seed_length=seeds[0] if seeds else 0)
    assert not_rerunnable(events) is None
    found = await rerun(Tape(header, events))
    if path.stem == IMPORTED:
        assert found.difference is not None
        assert found.difference.startswith('event 4 is {"type":"user/message"')
        assert '{"type":"system/message","seq":4' in found.difference
        return
    assert found.difference is None
    assert found.events == len(events) - (header.seed_length + 1 if seeds else 0)
