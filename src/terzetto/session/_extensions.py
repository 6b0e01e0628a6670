"""Events of a program's own: what `Session.record` takes."""

from __future__ import annotations

from collections.abc import Mapping

from ..vocabulary import Extension, InvalidValue, clean_text, freeze_object

RESERVED = (
    "turn/",
    "step/",
    "user/",
    "system/",
    "developer/",
    "assistant/",
    "tool/",
    "request/",
    "agent/",
    "session/",
    "llm/",
    "compaction/",
    "model/",
)


def own_event(name: str, data: Mapping[str, object], ignorable: bool) -> Extension:
    """The event *name* with *data*, or `InvalidValue` for what could not be read again."""
    if not isinstance(name, str) or not name or name.startswith(RESERVED):
        raise InvalidValue(f"name: expected one of your own like 'my-app/note', got {name!r}")
    if clean_text(name) != name:  # stored it would be another name, which `extensions=` lacks
        raise InvalidValue(f"name: expected valid Unicode, got {name!r}")
    if ignorable is not True and ignorable is not False:
        raise InvalidValue(f"ignorable: expected True or False, got {type(ignorable).__name__}")
    return Extension(name, freeze_object(data))
