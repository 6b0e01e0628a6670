"""Trials of one thing again and again: what a check of a tool or of a listener runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from attrs import define

from ._effects import Effects
from ._leftovers import GRACE, Leftovers
from ._trial import Around, Body, Trial
from ._trial_facts import Strike

C = TypeVar("C")


@asynccontextmanager
async def nothing() -> AsyncIterator[None]:
    """What is around a run when nothing is."""
    yield


@define(eq=False, kw_only=True)
class Trials(ABC, Generic[C]):
    """Runs calls of something, and counts the runs. A call is whatever makes one run of it."""

    around: Around
    effects: Effects
    probe: Callable[[], object] | None
    patience: float
    runs: int = 0
    points: int = 0

    @abstractmethod
    def body_of(self, call: C) -> Body:
        """What one run of *call* does."""

    @abstractmethod
    def shown(self, call: C) -> str:
        """The call, for a person."""

    @property
    @abstractmethod
    def begins_at(self) -> str | None:
        """The line where the checked code begins."""

    def run(
        self,
        call: C,
        strike: Strike | None = None,
        *,
        seed: int = 0,
        collect: bool = False,
        hasty: bool = False,
        precise: bool = False,
        find_swallow: bool = False,
        sample_after: float | None = None,
    ) -> tuple[Trial, Leftovers]:
        """One call, and what it left. *hasty*: what it leaves is given no time to end."""
        trial = self.trial(self.body_of(call), strike, seed)
        trial.find_swallow, trial.sample_after = find_swallow, sample_after
        trial.watch.precise = precise
        trial.grace = 0.0 if hasty else GRACE
        with Leftovers(collect=collect, grace=trial.grace) as left:
            trial.run()
        return trial, left

    def trial(self, body: Body, strike: Strike | None = None, seed: int = 0) -> Trial:
        """A trial of *body*, counted and not yet run."""
        self.runs += 1
        self.points += strike is not None
        return Trial(
            body,
            self.around,
            strike,
            effects=self.effects,
            probe=self.probe,
            seed=seed,
            patience=self.patience,
        )
