"""Which awaits of some modules an exploration came to, and which it cancelled at.

The awaits are those of the source text: each ``await``, each ``async for`` and each
``async with`` (its entry and its exit are one). What happens at them is seen, not guessed:

- *reached*: a task was suspended there when it was about to make a step, in any run; or it
  ran there without being suspended, in the run that nobody struck. An await that only
  struck runs come to, and that never suspends, counts as not reached.
- waits for a thread - an ``await`` of `trio.to_thread.run_sync` itself - are told apart and not
  counted: where a thread is cut is the business of the kill runs.
- *cancelled*: a `trio.Cancelled` or KeyboardInterrupt was thrown into a task suspended
  there, or a strike came while one was. Every await on the way counts, from the task's
  outermost function to the innermost one.
- *passed*: runs came to it, and no task was ever suspended there, struck or not. What is
  awaited never waited, so there was nothing to cancel. As soon as a task is seen suspended
  there, it is *uncut* until it is cancelled.
"""

from __future__ import annotations

import ast
import dis
import gc
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType, CoroutineType, FrameType, ModuleType
from typing import Any, Literal, TypeAlias

import trio
from attrs import define, field, frozen

from ..vocabulary import InvalidValue

Kind: TypeAlias = Literal["await", "async for", "async with"]
Found: TypeAlias = tuple[frozenset[int], frozenset[int], frozenset[int]]
"""Of `Checkpoints`, by their places in *points*: those reached, cancelled, suspended at."""

_Span: TypeAlias = tuple[int, int, int, int]


@frozen
class Checkpoint:
    """One place in a source file where a task may wait. *text* is its first line.

    *threaded*: it waits for `trio.to_thread.run_sync`, so for a thread.
    """

    path: str
    line: int
    kind: Kind
    text: str
    threaded: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@define(eq=False)
class Checkpoints:
    """The awaits of some modules, and what explorations did there. Made by `of`.

    Give one to `explore`, to several in turn if you like, then read what was found; each list
    is in the order of the source. *cancelled*, *passed*, *uncut* and *unreached* are all
    there is, without the *threads*.
    """

    points: tuple[Checkpoint, ...]
    _files: dict[str, dict[_Span, int]] = field(repr=False)
    _reached: set[int] = field(factory=set, repr=False)
    _cancelled: set[int] = field(factory=set, repr=False)
    _suspended: set[int] = field(factory=set, repr=False)
    _known: dict[tuple[CodeType, int], int | None] = field(factory=dict, repr=False)
    _waits: dict[CodeType, dict[int, int]] = field(factory=dict, repr=False)

    @classmethod
    def of(cls, *sources: ModuleType | str | Path) -> Checkpoints:
        """The awaits in *sources*: modules, packages, source files or folders of them."""
        points: list[Checkpoint] = []
        files: dict[str, dict[_Span, int]] = {}
        for root, path in _paths(sources):
            spans = files.setdefault(str(path), {})
            shown = path.relative_to(root).as_posix()
            for span, checkpoint in _awaits(path.read_text("utf-8"), shown):
                spans[span] = len(points)
                points.append(checkpoint)
        return cls(tuple(points), files)

    @property
    def reached(self) -> list[Checkpoint]:
        """Those that some run came to."""
        return self._counted(self._reached)

    @property
    def cancelled(self) -> list[Checkpoint]:
        """Those that were cut short while a task was suspended there."""
        return self._counted(self._cancelled)

    @property
    def passed(self) -> list[Checkpoint]:
        """Those that runs came to, where no task was ever suspended: nothing to cancel at."""
        return self._counted(self._reached - self._suspended - self._cancelled)

    @property
    def uncut(self) -> list[Checkpoint]:
        """Those where a task was suspended, and that were never cut short."""
        return self._counted(self._suspended - self._cancelled)

    @property
    def unreached(self) -> list[Checkpoint]:
        """Those that no run came to."""
        return self._counted(set(range(len(self.points))) - self._reached)

    @property
    def threads(self) -> list[Checkpoint]:
        """The waits for threads, which are in none of the other lists."""
        return [point for point in self.points if point.threaded]

    def _counted(self, found: set[int]) -> list[Checkpoint]:
        return [self.points[i] for i in sorted(found) if not self.points[i].threaded]

    def __str__(self) -> str:
        threads = [i for i, point in enumerate(self.points) if point.threaded]
        counted = (
            f"{len(self.points) - len(threads):,} checkpoints: {len(self.reached):,} reached, "
            f"{len(self.cancelled):,} cancelled at, {len(self.passed):,} never suspend, "
            f"{len(self.uncut) + len(self.unreached):,} left"
        )
        if not threads:
            return counted
        came = len(self._reached.intersection(threads))
        return f"{counted}; not counted: {len(threads):,} waits for threads, {came:,} reached"

    def fresh(self) -> Checkpoints:
        """The same points, where nothing has been found yet. Reads no file again."""
        fresh = Checkpoints(self.points, self._files)
        fresh._known, fresh._waits = self._known, self._waits  # instructions stand where they do
        return fresh

    def findings(self) -> Found:
        """What was found, for `add` in another process."""
        return frozenset(self._reached), frozenset(self._cancelled), frozenset(self._suspended)

    def add(self, findings: Found) -> None:
        """Add the `findings` of others of the same sources."""
        mine = self._reached, self._cancelled, self._suspended
        for known, found in zip(mine, findings, strict=True):
            known.update(found)

    # --- looking ------------------------------------------------------------------------

    def stepped(self, task: trio.lowlevel.Task) -> None:
        """*task* is about to make a step: it was suspended, and may be thrown out now."""
        found = self._of(task)
        self._reached.update(found)
        self._suspended.update(found)
        thrown = getattr(getattr(task, "_next_send", None), "error", None)
        if isinstance(thrown, (trio.Cancelled, KeyboardInterrupt)):
            self._cancelled.update(found)

    def struck(self, tasks: Iterable[trio.lowlevel.Task]) -> None:
        """A strike comes now, while *tasks* are suspended."""
        for task in tasks:
            found = self._of(task)
            self._reached.update(found)
            self._suspended.update(found)
            self._cancelled.update(found)

    def at(self, tasks: Iterable[trio.lowlevel.Task]) -> frozenset[int]:
        """The awaits that *tasks* are suspended at, by their place in *points*."""
        return frozenset(index for task in tasks for index in self._of(task))

    @contextmanager
    def watch(self) -> Iterator[None]:
        """See also what runs without being suspended. A tracer at work stays alone."""
        if sys.gettrace() is not None:
            yield
            return
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if not code.co_flags & _CAN_AWAIT or code.co_filename not in self._files:
            return None
        if self._reached.issuperset(self._waits_of(code).values()):
            return None  # nothing more to see here
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._traced

    def _traced(self, frame: FrameType, event: str, arg: object) -> Any:
        index = self._waits[frame.f_code].get(frame.f_lasti) if event == "opcode" else None
        if index is not None:
            self._reached.add(index)
        return self._traced

    def _waits_of(self, code: CodeType) -> dict[int, int]:
        """The instructions of *code* that wait, and the await that each belongs to."""
        if code not in self._waits:
            found = ((each.offset, self._find(code, each.offset)) for each in _waiting_in(code))
            self._waits[code] = {at: index for at, index in found if index is not None}
        return self._waits[code]

    def _of(self, task: trio.lowlevel.Task) -> list[int]:
        """The awaits that *task* is suspended at, as `Task.iter_await_frames` has them; this
        is asked before each step of each run, so the chain is walked by hand."""
        found, known = list[int](), self._known
        coroutine: Any = task.coro
        while coroutine is not None:
            if type(coroutine) is CoroutineType:  # nearly all of them
                frame, coroutine = coroutine.cr_frame, coroutine.cr_await
            else:
                frame, coroutine = _next_of(coroutine)
            if frame is None:  # it has ended
                continue
            key = frame.f_code, frame.f_lasti
            index = known[key] if key in known else self._find(*key)
            if index is not None:
                found.append(index)
        return found

    def _find(self, code: CodeType, at: int) -> int | None:
        """The await that the instruction *at* of *code* belongs to."""
        key = (code, at)
        if key not in self._known:
            self._known[key] = self._look_up(code, at)
        return self._known[key]

    def _look_up(self, code: CodeType, at: int) -> int | None:
        spans = self._files.get(code.co_filename)
        if spans is None or at < 0:
            return None
        line, end, column, end_column = _positions(code)[at // 2]
        if line is None or end is None or column is None or end_column is None:
            return None
        exact = spans.get((line, column, end, end_column))
        if exact is not None and not (self.points[exact].kind == "await" and _of_with(code, at)):
            return exact
        # Some versions of Python give an `async with` or `for` the place of its expression.
        around = [
            (end_line - start, index)
            for (start, _, end_line, _), index in spans.items()
            if start <= line <= end_line and self.points[index].kind != "await"
        ]
        return min(around)[1] if around else None


def _next_of(coroutine: Any) -> tuple[FrameType | None, Any]:
    """Where *coroutine* is suspended, and what it awaits."""
    if hasattr(coroutine, "cr_frame"):
        return coroutine.cr_frame, coroutine.cr_await
    if hasattr(coroutine, "gi_frame"):
        return coroutine.gi_frame, coroutine.gi_yieldfrom
    # `asend` and `athrow` of an asynchronous generator do not tell which it is.
    generators = [g for g in gc.get_referents(coroutine) if hasattr(g, "ag_frame")]
    return (generators[0].ag_frame, generators[0].ag_await) if generators else (None, None)


_WAITING = {"GET_AWAITABLE", "GET_ANEXT", "SEND"}
_CAN_AWAIT = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@lru_cache(maxsize=64)  # of few functions at a time, for each instruction of theirs that waits
def _positions(code: CodeType) -> list[tuple[int | None, int | None, int | None, int | None]]:
    return list(code.co_positions())


@lru_cache(maxsize=64)
def _waiting_in(code: CodeType) -> list[dis.Instruction]:
    return [each for each in dis.get_instructions(code) if each.opname in _WAITING]


def _of_with(code: CodeType, at: int) -> bool:
    """Whether the instruction *at* waits for the entry or exit of an ``async with``; in
    ``async with await opened():`` its place alone does not tell it from the ``await``."""
    before = [i for i in _waiting_in(code) if i.offset <= at and i.opname != "SEND"]
    return bool(before) and before[-1].opname == "GET_AWAITABLE" and before[-1].arg != 0


def _paths(sources: Iterable[ModuleType | str | Path]) -> Iterator[tuple[Path, Path]]:
    """Every source file, with the folder that its name is told from."""
    for source in sources:
        if isinstance(source, ModuleType):
            file = getattr(source, "__file__", None)
            if file is None:
                raise InvalidValue(
                    f"checkpoints: expected a module with a source file, got {source.__name__!r}"
                )
            path = Path(file)
            path = path.parent if path.name == "__init__.py" else path
        else:
            path = Path(source).absolute()
        if path.is_dir():
            yield from ((path.parent, file) for file in sorted(path.rglob("*.py")))
        else:
            yield path.parent.parent, path


def _threaded(node: ast.AST) -> bool:
    """Whether it is ``await trio.to_thread.run_sync(...)``."""
    return (
        isinstance(node, ast.Await)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith("to_thread.run_sync")
    )


def _awaits(text: str, shown: str) -> Iterator[tuple[_Span, Checkpoint]]:
    lines = text.splitlines()
    found: list[tuple[_Span, Checkpoint]] = []
    for node in ast.walk(ast.parse(text)):
        kind: Kind
        match node:
            case ast.Await():
                kind = "await"
            case ast.AsyncFor():
                kind = "async for"
            case ast.AsyncWith():
                kind = "async with"
            case _:
                continue
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        span = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        last = node.end_col_offset if node.end_lineno == node.lineno else None
        words = lines[node.lineno - 1].encode()[node.col_offset : last].decode()
        found.append((span, Checkpoint(shown, node.lineno, kind, words.strip(), _threaded(node))))
    yield from sorted(found, key=lambda item: item[0])
