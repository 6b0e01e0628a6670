"""How long the parts of a request over HTTP may take, and how many there may be at once."""

from __future__ import annotations

from attrs import field, frozen

from ..vocabulary import InvalidValue


def _positive(instance: object, attribute: object, value: float | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        name = getattr(attribute, "name", "limit")
        raise InvalidValue(f"{name}: expected more than 0, got {value!r}")


@frozen(kw_only=True)
class HttpLimits:
    """Limits of every request; times in seconds.

    Args:
        connect_timeout: For a TCP connection, and again for its TLS handshake.
        first_byte_timeout: From the sent request to the first progress, so to the
            head of the answer too.
        idle_timeout: Between two signs of progress, while the caller waits for bytes.
        write_timeout: For each 64 KiB of the request.
        pool_timeout: For a free connection; None waits for as long as it takes.
        max_connections: Streams that may be open at once; more wait in order.
    """

    connect_timeout: float = field(default=10.0, validator=_positive)
    first_byte_timeout: float = field(default=120.0, validator=_positive)
    idle_timeout: float = field(default=60.0, validator=_positive)
    write_timeout: float = field(default=60.0, validator=_positive)
    pool_timeout: float | None = field(default=None, validator=_positive)
    max_connections: int = field(default=100, validator=_positive)
