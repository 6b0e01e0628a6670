"""A simulation in lines, for somebody who looks for what went wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def _joined(notes: Sequence[Note]) -> Iterator[Note]:
    """Each stream's pieces are one note, at the place of the last of them."""
    placed = dict[int, Note]()
    waiting: dict[str, list[int]] = {}

    def put(who: str) -> None:
        if pieces := waiting.pop(who, None):
            placed[pieces[-1]] = _one([notes[at] for at in pieces])

    for at, note in enumerate(notes):
        who, what = note[2], note[3]
        if what.startswith(_CHUNK):
            waiting.setdefault(who, []).append(at)
            if "finish" in what:
                put(who)
        else:
            put(who)
            placed[at] = note
    for who in [*waiting]:
        put(who)
    yield from (placed[at] for at in sorted(placed))


def _one(pieces: Sequence[Note]) -> Note:
    life, when, who, _ = pieces[-1]
    said = [what.removeprefix(_CHUNK).strip() for _, _, _, what in pieces]
    text = "".join(part[1:-1] for part in said if part[:1] in "\"'")
    calls = [part for part in dict.fromkeys(said) if part.startswith(("call ", "finish "))]
    shown = [repr(text)] if text else []
    return life, when, who, " ".join([f"{_CHUNK} x {len(pieces):<4}", *shown, *calls])
