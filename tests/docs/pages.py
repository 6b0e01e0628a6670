"""Reading the pages of the documentation, and running what they show.

The conventions, for who writes a page:

- The ```` ```python ```` blocks of a page run in order, in one namespace, as the main
  program, in an empty folder, with no key in the environment and no network but loopback.
- A ```` ```output ```` block holds exactly what the block before it printed;
  ``...`` in it stands for anything. Only a block without one may print what it likes.
- Functions named ``test_*`` that a block defines are called after it, as pytest and
  pytest-trio would: with `autojump_clock`, `mock_clock`, `nursery` and `tmp_path`.
- A block whose first line is ``# name.ext`` is a file: it is saved under that name, not run,
  and a later block has to use it. The tests of a ``# test_*.py`` are called all the same.
- A ```` ```sh ```` block that begins with ``python`` or ``pytest`` is run by a shell; it has
  to succeed. In the others ``terzetto ...`` has to be a command line that the program takes.
- A ``python`` block that cannot run has ``<!-- not run: reason -->`` on the line before
  it, and is counted; one that a test of its own runs has ``<!-- run by: tests/x.py -->``.
- Every other fence (``text``, ``json``, ...) is only shown.
"""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import linecache
import logging
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import trio
import trio.testing
from attrs import define, field, frozen

from terzetto import cli
from terzetto.commands._terminal import CommandError

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|:{3,})(?P<info>[^`]*)")
MARK = re.compile(r"<!-- (?P<kind>not run|run by): *(?P<text>.*?) *-->")
KEYS = re.compile(r".*(API_KEY|BASE_URL|TOKEN|SECRET|PROXY)", re.IGNORECASE)
LOOPBACK = {None, "", "localhost", "127.0.0.1", "::1", b"localhost", b"127.0.0.1", b"::1"}


class PageError(AssertionError):
    """A page does not hold what it promises."""


@frozen
class Block:
    """One fenced block. *line* is that of its first line of text, counted from 1."""

    page: Path
    line: int
    language: str
    text: str
    mark: str | None = None
    reason: str = ""
    close_above: bool = False
    """Whether nothing but blank lines stands between it and the block before."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def saved_as(self) -> str | None:
        """The name of the file that it is, if it is one."""
        named = re.match(r"# ([\w-]+\.(?:py|toml|ini|txt|md))\n", self.text)
        return named[1] if named and self.language in {"python", "toml", "ini"} else None

    @property
    def is_command(self) -> bool:
        """Whether a shell runs it."""
        return self.language == "sh" and self.text.startswith(("python ", "pytest "))

    @property
    def runs(self) -> bool:
        return (self.language == "python" and not self.mark) or self.is_command


def pages() -> list[Path]:
    """The README and every page of the documentation, in a fixed order."""
    docs = ROOT / "docs"
    hidden = {docs / "_build", docs / "changes", docs / "_static"}
    found = [page for page in docs.rglob("*.md") if hidden.isdisjoint(page.parents)]
    return [ROOT / "README.md", *sorted(found)]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of *page*, the outermost only, in order."""
    found: list[Block] = []
    lines = page.read_text("utf-8").splitlines()
    at = quiet_since = last_end = 0
    while at < len(lines):
        opened = FENCE.fullmatch(lines[at])
        if opened is None:
            if lines[at].strip() and not MARK.fullmatch(lines[at].strip()):
                quiet_since = at + 1
            at += 1
            continue
        indent, ticks = opened["indent"], opened["ticks"]
        marked = MARK.fullmatch(lines[at - 1].strip()) if at else None
        end = at + 1
        while end < len(lines) and not re.fullmatch(
            rf" *{ticks[0]}{{{len(ticks)},}} *", lines[end]
        ):
            end += 1
        if end == len(lines):
            raise PageError(f"{page}:{at + 1}: this fence is never closed")
        body = [line.removeprefix(indent) for line in lines[at + 1 : end]]
        skip = 0  # options of a directive
        while skip < len(body) and re.match(r":[\w-]+:", body[skip]):
            skip += 1
        info = opened["info"].strip()
        directive = re.fullmatch(r"\{code-block\} *(\w*)", info)
        found.append(
            Block(
                page,
                at + 2 + skip,
                directive[1] if directive else info,
                "\n".join(body[skip:]) + "\n",
                marked and marked["kind"],
                marked["text"] if marked else "",
                bool(found) and quiet_since <= last_end,
            )
        )
        last_end = end + 1
        at = quiet_since = end + 1
    return found


# --- what a page says about itself ------------------------------------------------------------


def problems(page: Path) -> list[str]:
    """What is wrong with the blocks of *page*, without running any."""
    found: list[str] = []
    before: Block | None = None
    everything = blocks(page)
    for at, block in enumerate(everything):
        if (saved := block.saved_as) and not saved.startswith("test_"):
            stem = saved.removesuffix(".py")
            if not any(re.search(rf"\b{stem}\b", later.text) for later in everything[at + 1 :]):
                found.append(f"{block}: nothing uses {saved}")
        if block.language in {"py", "python3", "pycon", "ipython", "{doctest}"}:
            found.append(f"{block}: write ```python, so that it runs")
        if block.language == "output" and (before is None or not before.runs or before.saved_as):
            found.append(f"{block}: an output block follows a block that is run")
        if block.language == "text" and block.close_above and before is not None:
            if before.runs:
                found.append(f"{block}: what the block above prints is an ```output block")
        if block.mark == "not run" and not block.reason:
            found.append(f"{block}: say why it is not run")
        if block.mark == "run by":
            test = ROOT / block.reason
            if not (block.reason.startswith("tests/") and test.is_file()):
                found.append(f"{block}: {block.reason!r} is no test file")
            elif page.name not in test.read_text("utf-8"):
                found.append(f"{block}: {block.reason} does not name {page.name}")
        if block.mark and block.language != "python":
            found.append(f"{block}: only python blocks are run, so only they are marked")
        before = block
    return found


def commands(page: Path) -> Iterator[tuple[Block, list[str]]]:
    """Every call of ``terzetto`` in the ``sh`` blocks of *page*, without the program's name."""
    for block in blocks(page):
        if block.language not in {"sh", "bash", "shell", "console"}:
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|\|\|?|;", line):
                words = shlex.split(part, comments=True)
                while words and re.fullmatch(r"\w+=.*", words[0]):
                    words.pop(0)
                if words[:1] and Path(words[0]).name == "terzetto":
                    yield block, words[1:]
                elif words[1:3] == ["-m", "terzetto"]:
                    yield block, words[3:]


def check_command(block: Block, words: list[str]) -> None:
    """Raise unless the program would take *words*."""
    words = [word for word in words if not re.match(r"\d?[<>]", word)]
    try:
        _, unknown = cli._parser().parse_known_args(words)
    except CommandError as error:
        raise PageError(f"{block}: terzetto {shlex.join(words)}: {error}") from error
    except SystemExit as stop:  # --help and --version
        unknown = [] if stop.code in (0, None) else words
    if unknown:
        raise PageError(f"{block}: terzetto does not know {unknown}")


# --- running a page ---------------------------------------------------------------------------


@define(eq=False)
class Run:
    """One page, played in the current folder."""

    page: Path
    ran: int = field(default=0, init=False)
    tests: int = field(default=0, init=False)

    def play(self) -> None:
        """Run every python block that is not marked; compare what each one prints."""
        module = types.ModuleType("__main__")
        everything = blocks(self.page)
        with _as_main(module), _offline(), _importable():
            for block, after in zip(everything, [*everything[1:], None], strict=True):
                if block.saved_as is not None:
                    Path(block.saved_as).write_text(block.text, "utf-8")
                    if block.saved_as.startswith("test_"):
                        self._run(block, types.ModuleType(Path(block.saved_as).stem))
                    continue
                if not block.runs:
                    continue
                printed = shell(block) if block.is_command else self._run(block, module)
                self.ran += 1
                if after is not None and after.language == "output":
                    compare(after, printed)

    def _run(self, block: Block, module: types.ModuleType) -> str:
        # Blank lines before it: tracebacks and syntax errors name the lines of the page.
        name, source = str(block.page), "\n" * (block.line - 1) + block.text
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        known = dict(vars(module))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(source, name, "exec", dont_inherit=True), vars(module))
            for key, value in list(vars(module).items()):
                if key.startswith("test_") and value is not known.get(key):
                    self.tests += 1
                    call_test(value)
        return out.getvalue()


def shell(block: Block) -> str:
    """What the commands of *block* print, run with this Python and this checkout."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["bash", "-euc", block.text],
        env={k: v for k, v in environment.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        raise PageError(f"{block}: it ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def call_test(test: Callable[..., object]) -> None:
    """Call *test* with the fixtures it asks for."""
    wanted = list(inspect.signature(test).parameters)
    fixtures: dict[str, object] = {}
    clock = None
    for name in wanted:
        if name in {"autojump_clock", "mock_clock"}:
            clock = trio.testing.MockClock()
            if name == "autojump_clock":
                clock.autojump_threshold = 0
            fixtures[name] = clock
        elif name == "tmp_path":
            fixtures[name] = Path.cwd()
        elif name != "nursery":
            raise PageError(f"{test.__name__}: no fixture {name!r} here")
    if not inspect.iscoroutinefunction(test):
        test(**fixtures)
        return

    async def run() -> None:
        call: Callable[..., Awaitable[object]] = test
        async with trio.open_nursery() as nursery:
            if "nursery" in wanted:
                fixtures["nursery"] = nursery
            await call(**fixtures)
            nursery.cancel_scope.cancel()

    trio.run(run, clock=clock)


def compare(block: Block, printed: str) -> None:
    """Raise unless *printed* is what *block* shows."""
    if not doctest.OutputChecker().check_output(block.text, printed, doctest.ELLIPSIS):
        raise PageError(f"{block}: the page shows\n{block.text}\nbut this was printed\n{printed}")


@contextlib.contextmanager
def _as_main(module: types.ModuleType) -> Iterator[None]:
    """*module* is ``__main__``: classes and tools of the page find their module."""
    before = sys.modules["__main__"]
    environment = dict(os.environ)
    logger = logging.getLogger("terzetto")
    handlers, level = list(logger.handlers), logger.level
    sys.modules["__main__"] = module
    for key in environment:
        if KEYS.fullmatch(key):
            del os.environ[key]
    os.environ["PYTHONPATH"] = str(SOURCE)  # for processes that a page starts
    try:
        yield
    finally:
        sys.modules["__main__"] = before
        logger.handlers[:] = handlers
        logger.setLevel(level)
        os.environ.clear()
        os.environ.update(environment)


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """The files of the page can be imported, and are forgotten after it."""
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - known:
            origin = getattr(sys.modules[name], "__file__", None)
            if origin is not None and Path(origin).parent == Path.cwd():
                del sys.modules[name]


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Only loopback has an address."""
    import socket

    real = socket.getaddrinfo

    def only_loopback(host: object, *args: object, **kwargs: object) -> object:
        if host not in LOOPBACK:
            raise PageError(f"a page must run offline, but asked for {host!r}")
        return real(host, *args, **kwargs)

    socket.getaddrinfo = only_loopback
    try:
        yield
    finally:
        socket.getaddrinfo = real
