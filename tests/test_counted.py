"""The counter sees what it is for: a buffer that is looked at again and again."""

from __future__ import annotations

import pytest

from terzetto.vocabulary import has_surrogate
from tests.counted import Work, assert_linear, counted


def looked_at_again(pieces: int) -> Work:
    """Ours is given all there is at each piece."""
    text = ""
    with counted() as work:
        for _ in range(pieces):
            text += "12345678"
            has_surrogate(text)
    return work


def looked_at_once(pieces: int) -> Work:
    with counted() as work:
        for _ in range(pieces):
            has_surrogate("12345678")
    return work


def test_a_square_is_no_line() -> None:
    small, large = looked_at_again(100), looked_at_again(400)
    assert large.seen > 12 * small.seen
    with pytest.raises(AssertionError):
        assert_linear(small, large, 4)
    assert_linear(looked_at_once(100), looked_at_once(400), 4)


def test_only_our_own_code_counts() -> None:
    with counted() as work:
        sorted("nothing of ours")
    assert work == Work()
