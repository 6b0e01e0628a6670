"""A packed body, unpacked as it comes."""

from __future__ import annotations

import zlib

_ANY_ZLIB = 47  # zlib's number for "gzip or zlib, look at the head"
_MEMBER = b"\x1f\x8b"


class Unpacker:
    """Bytes of ``gzip`` or ``deflate`` in, what was packed out, however they are cut.

    A gzip body may have several members, one behind the other: all of them are the body. What
    follows the last and begins no other is ignored, as ``gzip`` does.
    """

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_ANY_ZLIB)
        self._head = b""
        self._over = False

    def __call__(self, data: bytes) -> bytes:
        """What *data* completes. Raises `zlib.error` where it is damaged."""
        found: list[bytes] = []
        while data and not self._over:
            if self._member.eof:
                head = self._head = self._head + data
                if head == _MEMBER[: len(head)] and len(head) < len(_MEMBER):
                    break
                self._over = not head.startswith(_MEMBER)
                data, self._head = head, b""
                self._member = zlib.decompressobj(_ANY_ZLIB)
                continue
            found.append(self._member.decompress(data))
            data = self._member.unused_data
        return b"".join(found)
