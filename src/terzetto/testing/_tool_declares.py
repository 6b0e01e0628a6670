"""What a tool declares, against what it does: its schema, its results, its overlapping."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from ..tools import Tool
from ..tools._encode import InvalidOutput, encode_result
from ..tools._touches import claim_of
from ..vocabulary import thaw_json
from ._tool_trials import Call, ToolTrials, shown
from ._trial import Trial
from ._verdicts import Verdict

_SEEDS = range(8)
_PAIRS = 6
_CARELESS = {"KeyError", "TypeError", "AttributeError", "IndexError"}


def declared(tool: Tool, make: Callable[[], Tool] | None) -> Iterator[Verdict]:
    """What can be said without running it."""
    if make is not None:
        again = make()
        for name, one, other in (
            ("description", tool.description, again.description),
            ("parameters", _dumped(tool), _dumped(again)),
        ):
            if one != other:
                text = f"its {name} differ each time it is made: {_difference(one, other)}"
                yield Verdict(kind="unstable-schema", text=text)


def encoded(tool: Tool, value: object, at: str | None) -> Iterator[Verdict]:
    """The result as the model would read it."""
    try:
        content = encode_result(value, None)
    except InvalidOutput as error:
        yield Verdict(kind="bad-result", text=str(error), place=at)
        return
    size = sum(len(block.text.encode(errors="surrogatepass")) for block in content)
    if tool.max_result_bytes is not None and size > tool.max_result_bytes:
        text = (
            f"returns {size:,} bytes, and the model sees {tool.max_result_bytes:,} of them; "
            "return less, or a part that can be asked for"
        )
        yield Verdict(kind="large-result", text=text, place=at)


def unchecked(trials: ToolTrials, call: Call) -> Iterator[Verdict]:
    """A tool with a schema of its own has to look at what the model wrote."""
    if not trials.tool.raw:
        return
    for told, wrong in _wrong(trials.tool, call):
        ending = trials.run_parsed(wrong).ending
        if ending is not None and ending.kind in _CARELESS:
            text = f"does not check its arguments: {told} gave {ending.rest}"
            text += "" if ending.place is None else f" at {ending.place}"
            yield Verdict(kind="unchecked-arguments", text=text, place=ending.place)
            return


def _wrong(tool: Tool, call: Call) -> Iterator[tuple[str, object]]:
    """Arguments that do not fit the schema, and what is wrong with them."""
    required = tool.parameters.get("required", ())
    yield "a text instead of an object", "not an object"
    for name in call:
        if isinstance(required, (list, tuple)) and name in required:
            yield f"no {name!r}", {k: v for k, v in call.items() if k != name}
        wrong: object = [None] if not isinstance(call[name], list) else 7
        yield f"{name!r}: {wrong!r}", {**call, name: wrong}


# --- two at once ----------------------------------------------------------------------------


def overlapping(trials: ToolTrials, calls: Sequence[Call], skipped: list[str]) -> Iterator[Verdict]:
    """Two calls that may overlap give what they give one after the other."""
    tool = trials.tool
    if tool.touches is not None:
        for call in calls:
            try:
                claim = claim_of(tool.touches(trials.parsed(call)))
                wrong = "is no iterable of Read and Write"
            except Exception as error:  # part of the tool
                claim, wrong = None, f"raised {type(error).__name__}: {error}"
            if claim is None:
                text = f"what its touches gave {wrong}, so that the call overlaps no other"
                yield Verdict(kind="wrong-touches", text=text)
                return
    pairs = [(call, call) for call in calls] + list(pairwise(calls))
    for pair in pairs[:_PAIRS]:
        if _may_overlap(tool, [trials.parsed(call) for call in pair]):
            yield from _pair(trials, pair, skipped)


def _may_overlap(tool: Tool, parsed: Sequence[object]) -> bool:
    claims = [tool.claim(arguments) for arguments in parsed]
    one, other = claims[0], claims[1]
    if one is None or other is None:
        return False
    touched = one.writes & (other.reads | other.writes) | other.writes & one.reads
    return not touched


def _pair(trials: ToolTrials, pair: tuple[Call, Call], skipped: list[str]) -> Iterator[Verdict]:
    forth = trials.together(pair, 0, overlap=False)
    if _world(forth) != _world(trials.together(pair, 0, overlap=False)):
        skipped.append("two at once: it gives other results each time it is run")
        return
    back = trials.together(pair[::-1], 0, overlap=False)
    legal = [_world(forth), _world(back, turned=True)]
    for seed in _SEEDS:
        both = trials.together(pair, seed, overlap=True)
        kind = "wrong-touches" if trials.tool.touches is not None else "shared-state"
        said = "touch nothing in common" if kind == "wrong-touches" else "may overlap"
        if both.hung is not None:
            text = f"two calls that {said} wait for each other: {both.hung}"
            yield Verdict(kind=kind, text=text)
            return
        if _world(both) not in legal:
            text = f"two calls that {said} gave {_told(both)} at once, {_told(forth)} in turn"
            yield Verdict(kind=kind, text=text)
            return


def _world(trial: Trial, *, turned: bool = False) -> tuple[str, str]:
    value = trial.ending.value if trial.ending is not None else None
    if turned and isinstance(value, list):
        value = value[::-1]
    return shown(value), shown(trial.last_seen)


def _told(trial: Trial) -> str:
    value = trial.ending.value if trial.ending is not None else None
    results = " and ".join(str(each)[:60] for each in value) if isinstance(value, list) else "?"
    return results if trial.last_seen is None else f"{results} (then {trial.last_seen!r:.60})"


def _dumped(tool: Tool) -> str:
    return json.dumps(thaw_json(tool.parameters))


def _difference(one: str, other: str) -> str:
    start = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    start = max(0, start - 10)
    return f"{one[start : start + 40]!r} and {other[start : start + 40]!r}"
