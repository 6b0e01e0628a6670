"""Whether a text can be sent as a credential, told without showing it. Pure.

Checked before any network use: a key with a line end or a pasted character would
otherwise fail deep inside the HTTP stack, in a message that quotes it.
"""

from __future__ import annotations

from ..vocabulary import InvalidValue


def check_credential(value: str, name: str) -> str:
    """*value*, if it can be sent as a credential.

    Raises:
        InvalidValue: It is empty, or has white space, control or non-ASCII
            characters. The message has *name* and never the value.
    """
    if not isinstance(value, str):
        raise InvalidValue(f"{name}: expected a str, got {type(value).__name__}")
    return check_header(value, name, spaces=False)


def check_header(value: str, name: str, *, spaces: bool = True) -> str:
    """*value*, if it can be sent as a header's value; the message never shows it."""
    if not value.strip():
        raise InvalidValue(f"{name} is empty")
    if not value.isascii():
        raise InvalidValue(f"{name} has a character outside ASCII; was it pasted from a document?")
    if value != value.strip():
        raise InvalidValue(f"{name} begins or ends with white space or a line end; strip it")
    if not value.isprintable() or (" " in value and not spaces):
        raise InvalidValue(f"{name} has white space or a control character inside")
    return value
