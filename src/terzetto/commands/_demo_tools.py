"""The tools of the demo: they look at one folder, and write to another.

What they read is bounded, whatever the folder holds: links that lead out of it, pipes and
devices are refused, long files are read in part. Nothing in the folder is ever changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import trio
from attrs import frozen

from ..tools import Tool, tool
from ..vocabulary import ToolError, has_surrogate

MAX_LISTED = 100
"""Files that `list_files` names, at most."""
MAX_COUNTED = 2_000
"""Entries of a folder that are looked at, at most."""
MAX_READ = 400
"""Bytes that `read_file` gives of a file, at most."""
MAX_WORDS_BYTES = 4 << 20
"""Bytes that one call of `count_words` reads, at most."""


@frozen(kw_only=True)
class Pace:
    """How slowly the demo goes, so that people can watch. Seconds.

    *word*: between two words of the model. *work*: added to each tool call, once to three
    times. *rest*: between two parts of the story.
    """

    word: float = 0.035
    work: float = 0.3
    rest: float = 0.5


FAST = Pace(word=0.0, work=0.01, rest=0.0)
"""As fast as it goes: only the tools still take a moment, or nothing could overlap."""


def demo_tools(folder: Path, notes: Path, pace: Pace) -> list[Tool]:
    """The four tools, for *folder*; notes go to *notes*, which exists."""
    root = folder.resolve()

    @tool(parallel=True, read_only=True)
    async def list_files() -> dict[str, object]:
        """List the files of the folder, without those in its subfolders."""
        await trio.sleep(pace.work)
        return await trio.to_thread.run_sync(_list, root)

    @tool(parallel=True, read_only=True)
    async def read_file(path: str) -> dict[str, object]:
        """Read the beginning of a text file.

        Args:
            path: The file, relative to the folder.
        """
        await trio.sleep(3 * pace.work)
        return await trio.to_thread.run_sync(_read, root, path)

    @tool(parallel=True, read_only=True)
    async def count_words(path: str) -> dict[str, object]:
        """Count the lines and words of a file, or of all files of a folder together.

        Args:
            path: The file, relative to the folder; "." for the folder itself.
        """
        await trio.sleep(2 * pace.work)
        return await trio.to_thread.run_sync(_count, root, path)

    @tool
    async def write_note(text: str) -> dict[str, object]:
        """Write a note. Runs alone. Notes are kept outside the folder.

        Args:
            text: What to write.
        """
        await trio.sleep(2 * pace.work)
        return await trio.to_thread.run_sync(_write, notes, text)

    return [list_files, read_file, count_words, write_note]


@frozen
class _Seen:
    """What is in a folder: names and sizes of regular files, and how much else."""

    files: dict[str, int]
    others: int = 0
    more: bool = False


def _look(folder: Path) -> _Seen:
    files: dict[str, int] = {}
    others = 0
    with _failing("the folder"), os.scandir(folder) as entries:
        for entry in islice(entries, MAX_COUNTED):
            with suppress(OSError):  # it may be gone by now
                if entry.is_file(follow_symlinks=False):
                    files[entry.name] = entry.stat(follow_symlinks=False).st_size
                else:
                    others += 1
        more = next(entries, None) is not None
    return _Seen(dict(sorted(files.items())), others, more)


def _list(root: Path) -> dict[str, object]:
    seen = _look(root)
    # A name that is not UTF-8 is counted, but JSON cannot carry it there and back.
    named = ((name, size) for name, size in seen.files.items() if not has_surrogate(name))
    return {
        "files": [{"name": name, "bytes": size} for name, size in islice(named, MAX_LISTED)],
        "file_count": len(seen.files),
        "other_count": seen.others,
        "more": seen.more,
    }


def _read(root: Path, path: str) -> dict[str, object]:
    data, size = _content(root, path, MAX_READ)
    text = data.decode("utf-8", "ignore" if size > len(data) else "replace")
    return {"text": text, "bytes": size, "cut": size > len(data)}


def _count(root: Path, path: str) -> dict[str, object]:
    target = _inside(root, path)
    if not target.is_dir():
        return _counted([_content(root, path, MAX_WORDS_BYTES)], skipped=0)
    contents: list[tuple[bytes, int]] = []
    skipped, room = 0, MAX_WORDS_BYTES
    for name in _look(target).files:
        try:
            contents.append(_content(target, name, room))
        except ToolError:
            skipped += 1
        else:
            room -= len(contents[-1][0])
    return _counted(contents, skipped)


def _counted(contents: list[tuple[bytes, int]], skipped: int) -> dict[str, object]:
    return {
        "files": len(contents),
        "lines": sum(data.count(b"\n") for data, _ in contents),
        "words": sum(len(data.split()) for data, _ in contents),
        "cut": any(size > len(data) for data, size in contents),
        "skipped": skipped,
    }


def _write(notes: Path, text: str) -> dict[str, object]:
    name = f"note-{sum(1 for _ in notes.iterdir()) + 1}.txt"
    (notes / name).write_text(text + "\n", "utf-8")
    return {"note": name}


def _inside(root: Path, path: str) -> Path:
    """*path* without links, if it is in *root*."""
    with _failing(path):
        target = (root / path).resolve(strict=True)
    if not target.is_relative_to(root):
        raise ToolError(f"{path!r} is outside the folder; name a file in it", "OUTSIDE")
    return target


def _content(root: Path, path: str, limit: int) -> tuple[bytes, int]:
    """The first *limit* bytes of a regular file in *root*, and its size."""
    target = _inside(root, path)
    with _failing(path):
        # Opening a pipe would wait for its writer; a file ignores O_NONBLOCK.
        fd = os.open(target, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise ToolError(f"{path!r} is not a regular file", "NOT_A_FILE")
            return file.read(limit), status.st_size


@contextmanager
def _failing(path: str) -> Iterator[None]:
    """What the file system says against it, as the tool's error; a NUL in a name too."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolError(f"{path!r} cannot be read: {reason}", "UNREADABLE") from error
