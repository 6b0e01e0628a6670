"""A packed body is all of its members, however its bytes are cut."""

from __future__ import annotations

import gzip
import zlib
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from terzetto.llm._unpacking import Unpacker


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    st.sampled_from([b"", b"\0" * 8, b"\x1f", b"\x1f\x1f\x8b", b"rest"]),
    st.data(),
)
def test_every_member_is_read_and_what_follows_them_is_not(
    members: list[bytes], rest: bytes, data: st.DataObject
) -> None:
    whole = b"".join(map(gzip.compress, members)) + rest
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=9).map(sorted))
    unpack = Unpacker()
    found = b"".join(unpack(whole[a:b]) for a, b in pairwise([0, *cuts, len(whole)]))
    assert found == b"".join(members)
    if len(rest) > 1:  # it is over, whatever comes
        assert unpack(gzip.compress(b"more")) == b""


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_deflate_and_damage(size: int) -> None:
    packed = zlib.compress(b"some text " * 9)
    unpack = Unpacker()
    parts = [packed[at : at + size] for at in range(0, len(packed), size)]
    assert b"".join(map(unpack, parts)) == b"some text " * 9
    with pytest.raises(zlib.error):
        Unpacker()(b"neither of them")
    second = Unpacker()
    assert second(gzip.compress(b"good")) == b"good"
    with pytest.raises(zlib.error):
        second(b"\x1f\x8b and no member")
