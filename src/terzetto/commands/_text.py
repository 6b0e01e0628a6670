"""Text for a terminal: what is safe to print, and how many columns it takes."""

from __future__ import annotations

import re
import unicodedata

# C0 and C1 controls but tab and newline; line separators; marks that turn the direction
# of what follows. All of them can make a terminal show what is not there.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """*text* without what a terminal would obey: such characters become ``\\x1b`` and the like.

    Newlines and tabs stay, ``\\r\\n`` is a newline. Lone surrogates are shown too.
    """
    text = text.replace("\r\n", "\n")
    text = text.encode("utf-8", "backslashreplace").decode()
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    """`clean`, on one line: runs of white space become one space."""
    return " ".join(clean(text).split())


def columns(text: str) -> int:
    """How many columns *text*, one clean line, takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """*text*, one clean line, in at most *width* columns; what is cut ends in ``...``."""
    if columns(text) <= width:
        return text
    dots = "..."[: max(width, 0)]
    return head(text, width - len(dots)) + dots


def head(text: str, width: int) -> str:
    """As much of *text* as fits into *width* columns."""
    used = 0
    for at, char in enumerate(text):
        used += _columns(char)
        if used > width:
            return text[:at]
    return text
