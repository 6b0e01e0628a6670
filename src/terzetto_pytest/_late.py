"""What the plugin does when a test asks for it; imports Trio and Terzetto."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any, Protocol, cast

import pytest
from attrs import frozen

from terzetto import Agent, Engine, MemoryStore, Store, Tool, open_engine
from terzetto.llm.scripted import ScriptedModel, ScriptSource
from terzetto.testing import SOURCES, Scenario, Source, Stage, explore
from terzetto.testing._explorer import makers, problems_of
from terzetto.testing._life import Play, ctrl_c_heard, run
from terzetto.testing._pinned import pinned as pinned
from terzetto.testing._stage import Ticks
from terzetto.testing._trace import traced
from terzetto.vocabulary import MessageId

_SHOWN = 10
"""Violations of one test that are told."""


# --- explored tests ---------------------------------------------------------------------------


def explore_item(item: pytest.Function, marker: pytest.Mark) -> None:
    """Explore the test *item*; fails it, with the violations, when there are any."""
    scenario = _scenario(item)
    options = dict(marker.kwargs)
    model = marker.args[0] if marker.args else options.pop("model", None)
    sources = _sources(item, options.pop("sources", None))
    unknown = sorted(options.keys() - _OPTIONS)
    if len(marker.args) > 1 or unknown:
        what = f"{len(marker.args)} values" if len(marker.args) > 1 else repr(unknown[0])
        raise pytest.UsageError(
            f"{item.nodeid}: terzetto_explore takes a model and {', '.join(sorted(_OPTIONS))} "
            f"and sources; got {what}"
        )
    point = item.config.getoption("--terzetto-point")
    if point is not None:
        _show_point(item, scenario, model, point, options)
        return
    report = explore(scenario, model, name=item.name, sources=sources, **options)
    item.add_report_section("call", "terzetto", f"{report}\n")
    if report.violations:
        lines = [f"{len(report.violations)} violations in {report.points:,} points"]
        lines += [
            f"- {violation.source}, point {violation.point}: {violation.problem}"
            for violation in report.violations[:_SHOWN]
        ]
        if len(report.violations) > _SHOWN:
            lines.append(f"- and {len(report.violations) - _SHOWN} more")
        first = next((v for v in report.violations if v.point), None)
        if first is not None:
            again = f"{first.source}:{first.point}"
            lines.append(f"the first one alone, with its log: --terzetto-point {again!r}")
        pytest.fail("\n".join(lines), pytrace=False)


_OPTIONS = {"stride", "check", "invariants", "checkpoints", "seed", "limit"}


def _scenario(item: pytest.Function) -> Scenario:
    """The test's own function, as it was written; other plugins may have wrapped the item's."""
    owner = item.instance if item.instance is not None else cast(Any, item.parent).obj
    function = getattr(owner, item.originalname)
    if not inspect.iscoroutinefunction(function):
        raise pytest.UsageError(f"{item.nodeid}: terzetto_explore: expected an async def test")
    names = item._fixtureinfo.argnames
    if "terzetto_stage" not in names:
        raise pytest.UsageError(
            f"{item.nodeid}: terzetto_explore: expected a parameter terzetto_stage, which opens "
            "the engine and the agent"
        )
    given = {name: item.funcargs[name] for name in names}
    for name, value in given.items():
        if type(value).__name__ == "TrioFixture":
            raise pytest.UsageError(
                f"{item.nodeid}: an explored test is run many times, and the async fixture "
                f"{name!r} only once; open what it needs inside the test"
            )

    async def scenario(stage: Stage) -> None:
        await function(**{**given, "terzetto_stage": stage})

    scenario.__name__ = item.name
    return scenario


def _sources(item: pytest.Function, wanted: Iterable[str | Source] | None) -> Sequence[Source]:
    if wanted is None:
        return SOURCES
    return [each if isinstance(each, Source) else _source(item, each) for each in wanted]


def _source(item: pytest.Function, name: str) -> Source:
    for source in SOURCES:
        if source.name == name:
            return source
    known = ", ".join(repr(source.name) for source in SOURCES)
    raise pytest.UsageError(f"{item.nodeid}: there is no source {name!r}; there are {known}")


def _show_point(
    item: pytest.Function, scenario: Scenario, model: Any, at: str, options: Mapping[str, Any]
) -> None:
    name, colon, number = at.rpartition(":")
    if not colon or not number.isdigit() or int(number) < 1:
        raise pytest.UsageError(
            f"--terzetto-point: expected SOURCE:POINT such as user:17, got {at!r}"
        )
    source = _source(item, name)
    first, second = makers(scenario, model)
    kept = {key: options[key] for key in ("check", "invariants", "seed") if key in options}
    play = Play(scenario=scenario, make_adapter=first, make_second=second, **kept)
    with ctrl_c_heard():
        unstruck = run(play)
        struck = run(play, source, int(number))
    problems = problems_of(struck, unstruck, source)
    if not struck.stage.struck:
        pytest.fail(f"{at}: the test ends before that point", pytrace=False)
    before = struck.stage.lengths_at_strike[:1] or [0]
    log = traced(struck.events, before[0], struck.stage.strike_text)
    item.add_report_section("call", "terzetto", "\n".join(log) + "\n")
    if problems:
        pytest.fail("\n".join([*log, *(f"- {problem}" for problem in problems)]), pytrace=False)


# --- a scripted engine ------------------------------------------------------------------------


@frozen
class Scripted:
    """An engine, an agent of it, and the model that it asks."""

    engine: Engine
    agent: Agent
    model: ScriptedModel


class OpenScripted(Protocol):
    """What the fixture ``terzetto_engine`` is."""

    def __call__(
        self,
        script: ScriptSource = ("Done.",),
        *,
        tools: Iterable[Tool] = (),
        store: Store | None = None,
        setup: Callable[[Engine], object] | None = None,
        **agent: Any,
    ) -> AbstractAsyncContextManager[Scripted]:
        """Open an engine on *script*, and one agent.

        *setup* is called with the engine before there is an agent; further keywords are those
        of `Engine.open_agent`. Without a *store* the session is in memory.
        """
        ...


@asynccontextmanager
async def open_scripted(
    script: ScriptSource = ("Done.",),
    *,
    tools: Iterable[Tool] = (),
    store: Store | None = None,
    setup: Callable[[Engine], object] | None = None,
    **agent: Any,
) -> AsyncIterator[Scripted]:
    """See `OpenScripted`."""
    model, numbers = ScriptedModel(script), count(1)
    agent.setdefault("provider", model.provider)
    agent.setdefault("model", "m")
    if "resume" not in agent:
        agent.setdefault("session_id", "session-1")
    async with open_engine(
        adapters=[model],
        tools=tools,
        store=MemoryStore() if store is None else store,
        now_ms=Ticks(),
        new_id=lambda: MessageId(f"m{next(numbers)}"),
    ) as engine:
        if setup is not None:
            setup(engine)
        async with engine.open_agent(**agent) as opened:
            yield Scripted(engine, opened, model)
