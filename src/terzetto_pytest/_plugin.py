"""The pytest plugin of Terzetto: explored tests, pinned scheduling, a scripted engine.

It is loaded by every pytest run of an environment in which Terzetto is installed, so it
imports nothing but pytest until a test uses it: neither Trio nor Terzetto. What it does then
is in ``_late.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ._late import OpenScripted

_MARKERS = (
    "terzetto_explore(model=(), *, sources=None, stride=1, check=None, seed=0, limit=10000): "
    "the async test is a scenario; it is run once, then once for every point at which it can "
    "be cut short, by every source",
    "terzetto_seeds(seeds): run the test once for each of these seeds, or for so many of them, "
    "whatever --terzetto-seeds says; for tests with the fixture terzetto_seed",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("terzetto")
    group.addoption(
        "--terzetto-seeds",
        type=_count,
        default=1,
        metavar="N",
        help="run tests with the fixture terzetto_seed once for each of N seeds (default: 1)",
    )
    group.addoption(
        "--terzetto-seed",
        type=int,
        default=None,
        metavar="SEED",
        help="run tests with the fixture terzetto_seed for this seed alone",
    )
    group.addoption(
        "--terzetto-point",
        default=None,
        metavar="SOURCE:POINT",
        help="strike explored tests at this point only, and show the log (see a violation's text)",
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "terzetto_seed" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("terzetto_seeds")
    only = metafunc.config.getoption("--terzetto-seed")
    seeds: Iterable[int]
    if only is not None:
        seeds = [only]
    elif marker is None:
        seeds = range(int(metafunc.config.getoption("--terzetto-seeds") or 1))
    else:
        wanted = _seeds(metafunc.definition.nodeid, *marker.args)
        seeds = range(wanted) if isinstance(wanted, int) else wanted
    metafunc.parametrize("terzetto_seed", seeds, indirect=True, ids=lambda seed: f"seed{seed}")


def _seeds(where: str, wanted: object = None, *more: object) -> int | list[int]:
    if isinstance(wanted, int) and wanted > 0 and not more:
        return wanted
    if isinstance(wanted, Iterable) and not isinstance(wanted, str) and not more:
        given = list(wanted)
        if given and all(isinstance(seed, int) for seed in given):
            return given
    raise pytest.UsageError(
        f"{where}: terzetto_seeds: expected a number above 0 or a list of seeds, got {wanted!r}"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    marker = pyfuncitem.get_closest_marker("terzetto_explore")
    if marker is None:
        return None
    _use().explore_item(pyfuncitem, marker)
    return True


def _use() -> Any:
    """What needs Trio and Terzetto."""
    return importlib.import_module("terzetto_pytest._late")


@pytest.fixture
def terzetto_seed(request: pytest.FixtureRequest) -> Generator[int, None, None]:
    """A seed, to which the order of Trio's tasks is pinned during the test.

    A test is run once for each seed: one, or as many as ``--terzetto-seeds`` says, or those of
    its own ``@pytest.mark.terzetto_seeds``.
    """
    seed: int = request.param
    with _use().pinned(seed):
        yield seed


@pytest.fixture
def terzetto_stage() -> object:
    """The stage of an explored test: ``terzetto.testing.Stage``, a fresh one for every run."""
    return None  # the exploration puts its own in this place


@pytest.fixture
def terzetto_engine() -> OpenScripted:
    """``async with terzetto_engine(["Hello."], tools=[...]) as play``: an engine, an agent and
    the scripted model that it asks, as ``play.engine``, ``play.agent`` and ``play.model``.

    The log has no clock and no random ids, so that two runs of a test have the same one.
    """
    opener: OpenScripted = _use().open_scripted
    return opener
