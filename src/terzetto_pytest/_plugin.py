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


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    _leave_the_engine_alone(pluginmanager)
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


def _leave_the_engine_alone(manager: pytest.PytestPluginManager) -> None:
    """Take the engine off the list of what pytest rewrites the asserts of.

    On it is every package of a distribution with a plugin. Of hundreds of modules, not one of
    which is a test, that makes the first import slow and every assert slower; and pytest warns
    of them when they are imported already. It has no public way to say less; where this one
    does not find the list, all is as it would be.
    """
    hook: Any = manager.rewrite_hook
    marked = getattr(hook, "_must_rewrite", None)
    known = getattr(hook, "_marked_for_rewrite_cache", None)
    if isinstance(marked, set) and isinstance(known, dict):
        marked.discard("terzetto")
        known.clear()


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
    seed: int | None = getattr(request, "param", None)
    if seed is None:
        # pytest makes a test for each seed as it collects, and reads parameters for that.
        raise pytest.UsageError(
            f"{request.node.nodeid}: terzetto_seed: expected it among the test's parameters or in "
            "@pytest.mark.usefixtures, so that there is a test for each seed; it was asked for "
            "while the test was running (request.getfixturevalue), when it has no seed"
        )
    with _use().pinned(seed):
        yield seed


@pytest.fixture
def terzetto_stage(request: pytest.FixtureRequest) -> object:
    """The stage of an explored test: ``terzetto.testing.Stage``, a fresh one for every run."""
    if request.node.get_closest_marker("terzetto_explore") is None:
        raise pytest.UsageError(
            f"{request.node.nodeid}: terzetto_stage: expected a test with the marker "
            "@pytest.mark.terzetto_explore(model), which makes the stages; for an engine without "
            "exploring there is the fixture terzetto_engine"
        )
    return None  # the exploration puts its own in this place


@pytest.fixture
def terzetto_engine() -> OpenScripted:
    """``async with terzetto_engine(["Hello."], tools=[...]) as play``: an engine, an agent and
    the scripted model that it asks, as ``play.engine``, ``play.agent`` and ``play.model``.

    The log has no clock and no random ids, so that two runs of a test have the same one.
    """
    opener: OpenScripted = _use().open_scripted
    return opener
