"""The header of a session: its identity, and what it promises about its own events."""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import field, frozen

from ._json import EMPTY_OBJECT, JsonObject, freeze_object
from ._kinds import whole
from ._messages import SessionId

Durability: TypeAlias = Literal["step", "lazy", "each"]
"""When an agent waits for its store.

``step``: before each request, before tools start that are not ``read_only``, and at the end
of a turn. ``lazy``: never, while the store works. ``each``: after whatever it records.
"""


@frozen(kw_only=True)
class SessionHeader:
    """The identity of a session, stored before its first event.

    *seed_length* counts the inherited events of a fork, *parent_id* names its source.
    *durability* is chosen once, for recovery reads a log by it.
    """

    id: SessionId
    created_ms: int = field(validator=whole)
    format_version: int = 1
    cwd: str | None = None
    parent_id: SessionId | None = None
    seed_length: int = 0
    durability: Durability = "step"
    meta: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
