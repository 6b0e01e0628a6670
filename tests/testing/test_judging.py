"""Judgements that are remembered are those that would be made again; pairs of strikes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

import terzetto.tools._batch as batch_module
import terzetto.tools._pipeline as pipeline_module
from terzetto import MemoryStore
from terzetto.testing import SOURCES, Evidence, Stage, check_invariants, explore, explore_crashes
from terzetto.testing._judging import Log, Seen, digest
from terzetto.testing._life import Second, ctrl_c_heard, run
from terzetto.testing._pairs import pairs_of
from terzetto.testing._shipped import SHIPPED, play_of
from terzetto.testing._whole import fingerprint
from terzetto.tools._outcome import aborted
from terzetto.vocabulary import SessionHeader, SessionId

T = TypeVar("T")
SOME = [source for source in SOURCES if source.name in {"user", "host cancel"}]


@pytest.mark.parametrize("name", ["batch", "family", "resumed"])
@pytest.mark.parametrize("broken", [False, True])
def test_remembering_changes_no_verdict(
    name: str, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C179: of a good engine and of a broken one, with and without a memory."""
    if broken:
        monkeypatch.setattr(pipeline_module, "aborted_before_dispatch", aborted)
        monkeypatch.setattr(batch_module, "aborted_before_dispatch", aborted)
    shipped = SHIPPED[name]
    asked = [0, 0]

    def explored() -> list[str]:
        report = explore(
            shipped.scenario, shipped.model, name=name, sources=SOME, stride=5, pairs=4
        )
        cuts = explore_crashes(shipped.scenario, shipped.model, name=name, stride=15)
        return [str(violation) for violation in (*report.violations, *cuts.violations)]

    def forgetful(self: Seen, key: object, judge: Callable[[], T]) -> T:
        asked[1] += 1
        return judge()

    original = Seen.once

    def counted(self: Seen, key: object, judge: Callable[[], T]) -> T:
        def judged() -> T:
            asked[0] += 1
            return judge()

        return original(self, key, judged)

    monkeypatch.setattr(Seen, "once", counted)
    remembered = explored()
    monkeypatch.setattr(Seen, "once", forgetful)
    assert explored() == remembered
    assert bool(remembered) is broken or name != "batch"
    assert 0 < asked[0] < asked[1], "something was remembered"


def test_invariants_of_your_own_are_asked_every_time() -> None:
    """Nobody knows what they read."""
    asked = list[int]()

    def invariants(evidence: Evidence) -> list[str]:
        asked.append(len(evidence.events))
        return check_invariants(evidence)

    shipped = SHIPPED["plain"]
    report = explore(shipped.scenario, shipped.model, sources=SOME, invariants=invariants)
    assert report.violations == []
    remembered = len(asked)
    assert remembered > report.points / 2, "not those before there is a session"
    again = explore(shipped.scenario, shipped.model, sources=SOME, invariants=invariants)
    assert len(asked) == 2 * remembered, again


def test_what_cannot_be_hashed_is_judged_every_time() -> None:
    seen, asked = Seen(), list[int]()

    def judge() -> list[int]:
        asked.append(1)
        return asked

    assert digest(([],)) is None  # type: ignore[arg-type]
    for _ in range(2):
        seen.once(None, judge)
        seen.once(digest("a"), judge)
    assert len(asked) == 3
    assert Log.of([]).digest is not None


async def test_a_session_that_somebody_owns_has_no_fingerprint() -> None:
    """Whoever opens it is refused, so what another life said of it counts for nothing."""
    store, session_id = MemoryStore(), SessionId("one")
    assert fingerprint(store, session_id) is None
    handle = await store.create(SessionHeader(id=session_id, created_ms=0))
    assert fingerprint(store, session_id) is None
    await handle.close()
    assert fingerprint(store, session_id) is not None


# --- pairs ----------------------------------------------------------------------------


def test_pairs_are_of_two_different_sources() -> None:
    pairs = pairs_of(SOURCES)
    assert len(pairs) == 8 * 7
    assert all(one is not other and other.inside is None for one, other in pairs)


def test_a_sample_follows_from_the_seed() -> None:
    """The same runs for the same seed, others for another; as many as were asked for."""

    def struck(seed: int) -> list[tuple[int, str]]:
        found = list[tuple[int, str]]()

        def check(stage: Stage) -> list[str]:
            if stage.struck_again and stage.source is not None:
                found.append((stage.point, stage.source.name))
            return []

        shipped = SHIPPED["batch"]
        explore(shipped.scenario, shipped.model, sources=SOME, check=check, seed=seed, pairs=8)
        return found

    first = struck(0)
    assert len(first) == 8
    assert struck(0) == first
    assert struck(1) != first


def test_all_pairs_strike_at_every_step_of_the_unwinding() -> None:
    """BC-06 C127: of a short scenario, every second point after every seventh first one."""
    twice = 0

    def check(stage: Stage) -> list[str]:
        nonlocal twice
        twice += stage.struck_again
        return []

    shipped = SHIPPED["reasoning"]
    report = explore(
        shipped.scenario, shipped.model, sources=SOME, check=check, stride=7, pairs="all"
    )
    assert report.violations == []
    assert twice > 10
    assert twice < report.points


def test_a_second_strike_finds_what_one_does_not() -> None:
    """The first cause stands (C127): a tool that looks at it sees the second at times."""

    def check(stage: Stage) -> list[str]:
        return ["a second strike"] if stage.struck_again else []

    shipped = SHIPPED["plain"]
    once = explore(shipped.scenario, shipped.model, sources=SOME, check=check)
    twice = explore(shipped.scenario, shipped.model, sources=SOME, check=check, pairs=5)
    assert once.violations == []
    assert len(twice.violations) == 5
    assert all(violation.then for violation in twice.violations)


@pytest.mark.parametrize("seed", range(3))
def test_ctrl_c_and_the_hosts_cancel_while_an_agent_is_started(seed: int) -> None:
    """C176: both in the time of `nursery.start`, and it is a KeyboardInterrupt that leaves."""
    both = {source.name: source for source in SOURCES}
    shipped = SHIPPED["doors"]
    with ctrl_c_heard():
        for point in range(8, 22):
            for after in (1, 2):
                second = Second(both["host cancel"], after)
                play = play_of(shipped, seed)
                outcome = run(play, both["KeyboardInterrupt"], point, second)
                assert outcome.problems == [], (point, after)
