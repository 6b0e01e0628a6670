"""A stored session as raw records, and how one is read from a log file of any layout.

Only reads: no byte changes, nothing is repaired, and what is damaged is handed on with what
is wrong with it. Where sessions are kept is for `_shelf`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import evolve, field, frozen

from ..session._codec import decode_header, dumps_json, encode_header, loads_json
from ..stores._files import failing
from ..stores._jsonl_file import file_name, load_records
from ..stores._jsonl_layouts import LayoutName
from ..stores._jsonl_lines import NOT_PLAIN, Everything, First, begins_like_a_log, where_is
from ..stores._records import Place, is_json
from ..vocabulary import CorruptLog, InvalidValue, StoreError

Fault = tuple[str, str]
"""Where, and what is wrong there."""


@frozen(kw_only=True)
class Stored:
    """A session as it is stored, not judged.

    *name* is the session's id, or a file's name where that says nothing. *records* are the
    intact lines or rows, *torn* counts the bytes of an unfinished one after them. *faults*
    are what can be said without knowing what a record means. *owner* is the process that
    has noted to own it, if that lives. *layout* is that of a log file.
    """

    name: str
    where: str
    header: bytes = field(repr=False)
    records: Sequence[bytes] = field(default=(), repr=False)
    place: Callable[[int], str] = field(repr=False)
    torn: int = 0
    size: int = 0
    faults: tuple[Fault, ...] = ()
    owner: int | None = None
    layout: LayoutName = "plain"


def read_log_file(path: Path) -> Stored:
    """The log in a file, whatever state it is in. Raises FileNotFoundError."""
    data = _bytes(path)
    if data.startswith(NOT_PLAIN):
        return _packed_log(path, len(data))
    end = data.rfind(b"\n") + 1
    header, *records = data[:end].split(b"\n")[:-1] or [b""]
    starts = [len(header) + 1]
    for record in records:
        starts.append(starts[-1] + len(record) + 1)
    if records and end == len(data) and not is_json(records[-1]):  # as a store sees it: torn
        end -= len(records.pop()) + 1

    def place(index: int) -> str:
        return f"line {index + 2}, byte {starts[index]}"

    faults: list[Fault] = []
    if not end:
        what = (
            "its creation was not finished"
            if begins_like_a_log(data)
            else "no log begins like this"
        )
        faults.append(("line 1, byte 0", what))
    name = path.stem
    with suppress(InvalidValue, StoreError):
        found = decode_header(loads_json(header)).id
        if path.name == file_name(found):
            name = found
        elif not faults:
            faults.append(("line 1, byte 0", f"the log of session {found!r} in this place"))
    return Stored(
        name=name,
        where=str(path),
        header=header,
        records=records,
        place=place,
        torn=len(data) - end if end else 0,
        size=len(data),
        faults=tuple(faults),
        owner=owner_of(path.with_suffix(".owner")),
    )


def _packed_log(path: Path, size: int) -> Stored:
    """The log in a file whose layout is another one, as the records that a plain one has."""
    fault = ("line 1, byte 0", "its creation was not finished")
    try:
        with failing(path.name, "reading"):
            loaded = load_records(path)
        if loaded is not None:
            return _of_records(path, *loaded)
    except CorruptLog as error:
        fault = told(error)
    return evolve(unreadable(path, StoreError("")), faults=(fault,), size=size)


def _of_records(path: Path, first: First, found: Everything, size: int) -> Stored:
    def place(index: int) -> str:
        at = found.places[index] if index < len(found.places) else Place(index, found.end, index)
        return where_is(first.layout, at.line, at.offset)

    faults: list[Fault] = [] if found.damage is None else [told(found.damage)]
    is_here = path.name == file_name(first.header.id)
    if not is_here:
        text = f"the log of session {first.header.id!r} in this place"
        faults.insert(0, ("line 1, byte 0", text))
    return Stored(
        name=first.header.id if is_here else path.stem,
        where=str(path),
        header=dumps_json(encode_header(first.header)),
        records=found.records,
        place=place,
        torn=size - found.end if found.damage is None else 0,
        size=size,
        faults=tuple(faults),
        owner=owner_of(path.with_suffix(".owner")),
        layout=first.layout.name,
    )


def told(error: CorruptLog) -> Fault:
    return error.position, str(error).removeprefix(f"{error.position}: ")


def _bytes(path: Path) -> bytes:
    with failing(path.name, "reading"), suppress(FileNotFoundError):
        return path.read_bytes()
    raise FileNotFoundError(str(path))


def unreadable(path: Path, error: StoreError) -> Stored:
    return Stored(
        name=path.stem,
        where=str(path),
        header=b"",
        place=lambda index: f"line {index + 2}",
        faults=(("file", str(error)),),
    )


def owner_of(note: Path) -> int | None:
    """The living process whose pid stands in *note*. Asks nothing that takes a lock."""
    try:
        pid = int(note.read_text())
    except (OSError, ValueError):
        return None
    if pid < 1:
        return None
    try:
        os.kill(pid, 0)
    except PermissionError:  # it lives, and is somebody else's
        return pid
    except (OSError, OverflowError):
        return None
    return pid
