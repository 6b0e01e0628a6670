"""Where the time of a contender goes: its own functions, added up by the layer they are in.

A profiler makes small functions look dearer than they are, so what is told is shares of what
the same work took without one. What C does counts for the function that called it. Only Trio's
thread is seen, and the garbage collector is off.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from attrs import define, field, frozen

import terzetto

PACKAGE = Path(terzetto.__file__).parent
BENCHMARKS = Path(__file__).parent
OTHERS = {
    "trio": "Trio",
    "outcome": "Trio",
    "sniffio": "Trio",
    "httpx": "httpx and below",
    "httpcore": "httpx and below",
    "h11": "httpx and below",
    "anyio": "httpx and below",
    "attr": "attrs",
    "attrs": "attrs",
}
"""Installed packages by the layer they count for."""

_MOST = 12
_Code: TypeAlias = tuple[str, int, str]
_Timed: TypeAlias = tuple[int, int, float, float, Mapping[_Code, tuple[int, int, float, float]]]


@frozen
class Profile:
    """What one contender's work consists of: *seconds* of a unit without a profiler, and the
    shares of layers and of functions, the largest first."""

    name: str
    seconds: float
    layers: Mapping[str, float]
    functions: Mapping[str, float]

    def us(self, share: float) -> str:
        """Microseconds of a unit that are a *share* of it."""
        return f"{share * self.seconds * 1e6:.1f}"


@define
class Profiles:
    """Those of a part: contenders that took turns are a group."""

    groups: list[tuple[Profile, ...]] = field(factory=list)

    def sample(self, contenders: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        """Have each of *contenders* do its work twice, the second time under a profiler; what
        the first time took, by name."""
        group = tuple(_profiled(name, sample) for name, sample in contenders.items())
        self.groups.append(group)
        return {one.name: one.seconds for one in group}

    def __str__(self) -> str:
        return "\n".join(map(_told, self.groups))


def _profiled(name: str, sample: Callable[[], float]) -> Profile:
    profiler = cProfile.Profile()
    gc.collect()
    gc.disable()
    try:
        seconds = sample()
        profiler.enable()
        try:
            sample()
        finally:
            profiler.disable()
    finally:
        gc.enable()
    return _shared_out(name, seconds, profiler)


def _told(group: Sequence[Profile]) -> str:
    """A column for each contender, in microseconds of a unit, and the first one's functions."""
    layers = dict[str, float]()
    for one in group:
        for layer, share in one.layers.items():
            layers[layer] = layers.get(layer, 0) + share
    lines = [("us a unit, by layer", *(one.name for one in group))]
    lines += [(layer, *(one.us(one.layers.get(layer, 0)) for one in group)) for layer in layers]
    lines[1:] = [line for line in lines[1:] if any(float(cell) for cell in line[1:])]
    lines[1:] = sorted(lines[1:], key=lambda line: -float(line[1]))
    lines.append(("all", *(one.us(1) for one in group)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    dearest = list(group[0].functions.items())[:_MOST]
    text += [f"{group[0].us(share):>8}  {name}" for name, share in dearest]
    return "\n".join(["", *text])


def layer_of(path: str) -> str:
    """Which layer a source file belongs to: a folder of the package, or somebody else."""
    file = Path(path)
    if file.is_relative_to(PACKAGE):
        part = file.relative_to(PACKAGE).parts[0]
        return f"terzetto.{part.removesuffix('.py')}"
    if file.is_relative_to(BENCHMARKS):
        return "the benchmark"
    parts = file.parts
    if "site-packages" in parts:
        installed = parts[parts.index("site-packages") + 1 :]
        return OTHERS.get(installed[0].removesuffix(".py"), "other packages")
    # What attrs generates has no file, only its name in one.
    return "attrs" if path.startswith("<attrs") else "Python"


def _shared_out(name: str, seconds: float, profiler: cProfile.Profile) -> Profile:
    stats: Mapping[_Code, _Timed] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    own: dict[_Code, float] = {}
    for code, (_, _, took, _, callers) in stats.items():
        if code[0] != "~":
            own[code] = own.get(code, 0) + took
            continue
        for caller, (_, _, spent, _) in callers.items():
            own[caller] = own.get(caller, 0) + spent
    whole = sum(own.values())
    layers, functions = dict[str, float](), dict[str, float]()
    for code, took in own.items():
        path, line, called = code
        layer = layer_of(path)
        layers[layer] = layers.get(layer, 0) + took / whole
        what = f"{layer}: {Path(path).name}:{line} {called}"
        functions[what] = functions.get(what, 0) + took / whole
    return Profile(name, seconds, _largest(layers), _largest(functions))


def _largest(shares: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
