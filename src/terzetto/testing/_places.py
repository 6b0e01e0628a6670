"""Whose code a frame runs, and how a line of it is told to a person."""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import trio

_OURS = str(Path(__file__).resolve().parents[1])
_FOREIGN = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {_OURS, str(Path(trio.__file__).parent)}
)


def is_users(code: CodeType) -> bool:
    """Whether *code* is neither the standard library's, nor an installed package's, nor ours."""
    return _is_users(code.co_filename)


@cache
def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return not filename.startswith(("<frozen", "<attrs"))
    return not str(Path(filename).resolve()).startswith(_FOREIGN)


def place(filename: str, line: int) -> str:
    """``tools.py:31``; below the current folder with the way from there."""
    return f"{_shown(filename, os.getcwd())}:{line}"


@lru_cache(maxsize=1024)
def _shown(filename: str, folder: str) -> str:
    path = Path(filename)
    with suppress(ValueError, OSError):
        return path.resolve().relative_to(folder).as_posix()
    return path.name


def users_frames(task: trio.lowlevel.Task) -> list[tuple[FrameType, int]]:
    """Where the user's own functions wait in *task*, outermost first."""
    return [(frame, line) for frame, line in task.iter_await_frames() if is_users(frame.f_code)]


def waits_at(task: trio.lowlevel.Task) -> str | None:
    """The innermost line of the user's that *task* waits at."""
    frames = users_frames(task)
    return place(frames[-1][0].f_code.co_filename, frames[-1][1]) if frames else None


def raised_at(traceback: TracebackType | None) -> str | None:
    """The innermost line of the user's in *traceback*."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_users(code):
            found = place(code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def called_from(frame: FrameType | None) -> str | None:
    """The innermost line of the user's that led to *frame*."""
    while frame is not None:
        if is_users(frame.f_code):
            return place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def now_at(thread: int) -> str | None:
    """The innermost line of the user's that *thread* runs."""
    return called_from(sys._current_frames().get(thread))


def shield_at(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """The ``with`` of a shield that one of *frames* is inside, by the words of its source."""
    for frame, line in reversed(list(frames)):
        filename = frame.f_code.co_filename
        inner = [start for start, end in _shields(filename) if start <= line <= end]
        if inner:
            return place(filename, max(inner))
    return None


@lru_cache(maxsize=256)
def _shields(filename: str) -> tuple[tuple[int, int], ...]:
    """First and last line of every ``with`` block that says something of a shield."""
    try:
        tree = ast.parse(Path(filename).read_text("utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ()
    return tuple(_shielding(tree))


def _shielding(tree: ast.AST) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.With, ast.AsyncWith)):
            continue
        words = " ".join(ast.unparse(item.context_expr) for item in node.items)
        names = {
            item.optional_vars.id for item in node.items if isinstance(item.optional_vars, ast.Name)
        }
        set_later = any(
            isinstance(inner, ast.Assign)
            and any(ast.unparse(t) in {f"{name}.shield" for name in names} for t in inner.targets)
            for inner in ast.walk(node)
        )
        if "shield" in words or set_later:
            yield node.lineno, node.end_lineno or node.lineno
