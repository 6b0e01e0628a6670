"""Trio's scheduler follows from a seed; a Trio that moves what pins it is noticed here."""

from __future__ import annotations

import random

import pytest
import trio
from trio._core import _run

from terzetto import UsageError
from terzetto.testing import play, simulate
from terzetto.testing._pinned import can_be_pinned, pinned, why_not


async def _order() -> list[int]:
    """The order in which ten tasks come by, four times."""
    order: list[int] = []

    async def come_by(name: int) -> None:
        for _ in range(4):
            await trio.lowlevel.checkpoint()
            order.append(name)

    async with trio.open_nursery() as nursery:
        for name in range(10):
            nursery.start_soon(come_by, name)
    return order


def test_this_trio_has_what_pins_it() -> None:
    """If this fails, Trio moved its private coin: see ``terzetto.testing._pinned``."""
    assert can_be_pinned(), why_not()


def test_an_order_follows_from_its_seed_alone() -> None:
    """One seed is one order, whatever ran before; other seeds are other orders."""
    orders = [play(_order, seed=seed) for seed in range(8)]
    assert [play(_order, seed=seed) for seed in reversed(range(8))] == orders[::-1]
    assert len({tuple(order) for order in orders}) == 8


def test_trio_has_its_own_coin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of a pinned run, also after one that failed."""
    coin, switch = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    state = coin.getstate()
    with pytest.raises(ZeroDivisionError), pinned(5):
        assert _run._r is not coin
        assert _run._r.random() == random.Random(5).random()
        raise ZeroDivisionError
    assert _run._r is coin
    assert coin.getstate() == state
    assert _run._ALLOW_DETERMINISTIC_SCHEDULING is switch


@pytest.mark.parametrize("name", ["_r", "_ALLOW_DETERMINISTIC_SCHEDULING"])
def test_a_simulation_is_refused_where_nothing_can_be_pinned(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not be repeatable, so it says so; a plain run goes on, unpinned."""
    if name == "_r":
        monkeypatch.setattr(_run, name, object())
        assert not can_be_pinned()
    else:
        monkeypatch.delattr(_run, name)
        assert not can_be_pinned()
    with pytest.raises(UsageError, match="cannot be repeated"):
        simulate(1)
    with pinned(1):
        pass
