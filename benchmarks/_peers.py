"""Other agent loops on the same work: ``python -m benchmarks --peers pydantic-ai,inspect_ai``.

Each runs in a virtual environment of its own, made when it is first asked for, from the versions
pinned in ``benchmarks/peers/NAME/requirements.txt``; ``run.py`` beside it drives it. We, a floor
and every peer take turns. All models are scripted and answer at once, all tools do nothing, and
the processor's time is taken of each process: what is left is the loop itself. Ours writes every
event to its log in memory; a peer does what it does by default.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import trio
from attrs import define, field, frozen

from terzetto import Event

from ._hot import Engaged, Hot, turn_of
from ._measure import Sample, Scale
from ._work import Load
from .batches import _bare_cancelled, _cancelled
from .floors import logged_batch, logged_steps, logged_stream, timed_with_log

FOLDER = Path(__file__).resolve().parent / "peers"
ROUNDS = 3
US = "terzetto"
FLOOR = "floor"


class PeerError(ValueError):
    """A peer that is not known, or that cannot be run here: what to do about it."""


def known() -> list[str]:
    """The peers that can be measured against."""
    return sorted(path.parent.name for path in FOLDER.glob("*/run.py"))


def chosen(names: str) -> list[str]:
    """The peers that *names*, with commas between them, stand for. Raises `PeerError`."""
    found = [name.strip().replace("-", "_") for name in names.split(",") if name.strip()]
    for name in found:
        if name not in known():
            raise PeerError(f"--peers {name}: expected some of {', '.join(known())}")
    if not found:
        raise PeerError(f"--peers: expected some of {', '.join(known())}, got none")
    return list(dict.fromkeys(found))


def cache() -> Path:
    """Where environments are kept: ``TERZETTO_PEERS``, or the user's folder for caches."""
    if folder := os.environ.get("TERZETTO_PEERS"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "terzetto" / "peers"


def environment(name: str) -> Path:
    """The Python of *name*'s environment, which is made if it is missing. Raises `PeerError`.

    Other pins or another Python make another environment.
    """
    pins = FOLDER / name / "requirements.txt"
    seed = pins.read_bytes() + sys.version.encode()
    place = cache() / f"{name}-{hashlib.sha256(seed).hexdigest()[:12]}"
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    whole = place / "complete"
    if not whole.exists():
        print(f"making the environment of {name} in {place}", file=sys.stderr, flush=True)
        _call(name, sys.executable, "-m", "venv", "--clear", str(place))
        _call(name, str(python), "-m", "pip", "install", "-q", "-r", str(pins))
        whole.touch()
    return python


def _call(name: str, *command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerError(f"--peers {name}: cannot run {command[0]}: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise PeerError(
            f"--peers {name}: its environment cannot be built: {' '.join(command[1:4])} failed: "
            f"{said}; it needs the package index once, and a Python that its pins know"
        )


# --- samples ----------------------------------------------------------------------------------


@contextmanager
def process(name: str, python: Path) -> Iterator[Callable[[str, int], float | str]]:
    """*name* at work: called with a piece of work and its size, it gives seconds or an error."""
    script = FOLDER / name / "run.py"
    with subprocess.Popen(
        [str(python), "-B", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        asked, answers = running.stdin, running.stdout

        def answer() -> float | str:
            line = answers.readline()
            if not line:
                said = running.communicate()[1].strip().splitlines()
                raise PeerError(f"--peers {name}: it ended: {said[-1] if said else 'no reason'}")
            value: float | str = json.loads(line)
            return value

        def ask(work: str, size: int) -> float | str:
            asked.write(json.dumps([work, size]) + "\n")
            asked.flush()
            return answer()

        try:
            answer()
            yield ask
        finally:
            running.kill()


async def _watched(one: Engaged) -> float:
    seen: list[Event] = []
    one.agent.session.observe(seen.append)
    return await turn_of(one)


def _ours(work: str, size: int) -> Sample:
    match work:
        case "batch":
            return Hot(turn_of, Load(2, 0, size), watched=False)
        case "steps":
            return Hot(turn_of, Load(size + 1, 0), watched=False)
        case "stream":
            return Hot(_watched, Load(1, size), watched=False)
        case _:
            return Hot(_cancelled, Load(2, 0, size, tools=("asleep",)), size)


def _floor(work: str, size: int) -> Sample:
    """Bare Trio with a log of JSON lines, for the whole of the work; for a cancel without one."""
    match work:
        case "batch":
            return timed_with_log(1, logged_batch, size, 10)
        case "steps":
            return timed_with_log(1, logged_steps, size)
        case "stream":
            return timed_with_log(1, logged_stream, size)
        case _:
            return lambda: trio.run(_bare_cancelled, size)


# --- rows -------------------------------------------------------------------------------------

Verdict: TypeAlias = Literal["ahead", "behind", ""]


@frozen(kw_only=True)
class Versus:
    """One piece of work: the seconds for each *unit*, by who did it; or why somebody did not."""

    name: str
    work: str
    size: int
    unit: str
    seconds: Mapping[str, float] = field(factory=dict)
    failed: Mapping[str, str] = field(factory=dict)

    def verdict(self, peer: str) -> Verdict:
        """Whether we are ahead of *peer*, who is behind if it cannot do the work at all."""
        if peer in self.failed:
            return "ahead"
        return "ahead" if self.seconds[US] <= self.seconds[peer] else "behind"

    def cells(self, peers: Sequence[str]) -> list[str]:
        ours, floor = self.seconds[US], self.seconds[FLOOR]
        cells = [self.name, f"{_us(ours)} a {self.unit}", f"{ours / floor:.2f}", _us(floor)]
        for peer in peers:
            if peer in self.failed:
                cells += ["failed", "", self.verdict(peer)]
            else:
                took = self.seconds[peer]
                cells += [_us(took), f"{took / ours:.2f}", self.verdict(peer)]
        return cells

    def plain(self) -> dict[str, object]:
        verdicts = {peer: self.verdict(peer) for peer in [*self.seconds, *self.failed]}
        return {
            "kind": "peers",
            "name": self.name,
            "work": self.work,
            "size": self.size,
            "unit": self.unit,
            "seconds": dict(self.seconds),
            "failed": dict(self.failed),
            "verdict": {peer: v for peer, v in verdicts.items() if peer not in (US, FLOOR)},
        }


@define(eq=False)
class _Turns:
    """Everybody does a piece of work, in turns."""

    asked: Mapping[str, Callable[[str, int], float | str]]
    scale: Scale

    def row(self, name: str, work: str, size: int, unit: str) -> Versus:
        contenders: dict[str, Callable[[], float | str]] = {
            US: _ours(work, size),
            FLOOR: _floor(work, size),
            **{peer: partial(ask, work, size) for peer, ask in self.asked.items()},
        }
        units = 1 if unit == "batch" else size
        found: dict[str, list[float]] = {who: [] for who in contenders}
        failed: dict[str, str] = {}
        for turn in range(1 if self.scale.quick else ROUNDS):
            order = list(contenders)
            for who in order if turn % 2 else order[::-1]:
                if who in failed:
                    continue
                gc.collect()
                took = contenders[who]()
                if isinstance(took, str):
                    failed[who] = took
                else:
                    found[who].append(took / units)
        middle = {who: statistics.median(v) for who, v in found.items() if who not in failed}
        return Versus(name=name, work=work, size=size, unit=unit, seconds=middle, failed=failed)


def measure(peers: Sequence[str], scale: Scale) -> Iterator[Versus]:
    """A row for each piece of work, as it is done. Raises `PeerError`."""
    pythons = {peer: environment(peer) for peer in peers}
    with ExitStack() as stack:
        asked = {peer: stack.enter_context(process(peer, pythons[peer])) for peer in peers}
        turns = _Turns(asked, scale)
        for ask in asked.values():  # what happens once in a process is not counted
            ask("batch", 10)
        for calls in scale.pick((100, 1_000, 5_000), (5, 10)):
            yield turns.row(f"a batch of {calls:,} calls", "batch", calls, "call")
        for steps in scale.pick((50, 200, 800), (2, 3, 4)):
            yield turns.row(f"{steps} steps of one call", "steps", steps, "step")
        deltas = scale.pick(20_000, 20)
        yield turns.row(f"{deltas:,} deltas", "stream", deltas, "delta")
        asleep = scale.pick(100, 5)
        yield turns.row(f"a cancel of {asleep} sleeping calls", "cancel", asleep, "batch")


def run(names: str, scale: Scale) -> list[dict[str, object]]:
    """Measure against *names*, which have commas between them, and print. Raises `PeerError`."""
    peers = chosen(names)
    rows: list[Versus] = []
    for row in measure(peers, scale):
        rows.append(row)
        print(f"measured {row.name}", file=sys.stderr, flush=True)
    print("\n" + table(rows, peers))
    for row in rows:
        for peer, why in row.failed.items():
            print(f"{row.name}: {peer} failed: {why}")
    return [row.plain() for row in rows]


def table(rows: Sequence[Versus], peers: Sequence[str]) -> str:
    """*rows* under their headings; a peer's times are in microseconds, and in ours."""
    headings = ["what", "ours", "x floor", "floor"]
    for peer in peers:
        headings += [peer, "x ours", "we are"]
    lines = [headings, *(row.cells(peers) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.3g} us" if seconds < 1e-3 else f"{seconds * 1e6:,.0f} us"
