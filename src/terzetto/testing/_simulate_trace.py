"""A simulation in lines, for somebody who looks for what went wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ._simulate_world import Note

_CHUNK = "assistant/chunk"


def lines_of(notes: Sequence[Note]) -> Iterator[str]:
    """A line for each thing that happened; the pieces of one stream are put together."""
    life = 0
    for number, when, who, what in _joined(notes):
        if number != life:
            life = number
            yield f"life {number}"
        yield f"{when:8.2f} s  {who:10} {what}".rstrip()


def _joined(notes: Iterable[Note]) -> Iterator[Note]:
    waiting: dict[str, list[Note]] = {}
    for note in notes:
        who, what = note[2], note[3]
        if what.startswith(_CHUNK):
            waiting.setdefault(who, []).append(note)
            if "finish" not in what:
                continue
            yield _one(waiting.pop(who))
            continue
        if who in waiting:
            yield _one(waiting.pop(who))
        yield note
    yield from (_one(pieces) for pieces in waiting.values())


def _one(pieces: Sequence[Note]) -> Note:
    life, when, who, _ = pieces[-1]
    said = [what.removeprefix(_CHUNK).strip() for _, _, _, what in pieces]
    text = "".join(part[1:-1] for part in said if part[:1] in "\"'")
    calls = [part for part in dict.fromkeys(said) if part.startswith(("call ", "finish "))]
    shown = [repr(text)] if text else []
    return life, when, who, " ".join([f"{_CHUNK} x {len(pieces):<4}", *shown, *calls])
