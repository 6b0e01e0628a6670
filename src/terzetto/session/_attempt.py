"""Attempt: what the chunks of the model attempt in progress come to.

Chunks that wait are folded in groups, so that an attempt keeps the text it has streamed
and the range of its seqs, however many chunks they came in.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from ..vocabulary import BlockAssembler, Sources, StreamChunk, of_runs

_GROUP = 1024


@define(eq=False)
class Attempt:
    """The chunks of one attempt, in order. False while there is none.

    *first* is the seq of the latest chunk that did not follow on another, -1 before any.
    """

    _assembler: BlockAssembler = field(factory=BlockAssembler, init=False)
    _waiting: list[StreamChunk] = field(factory=list, init=False)
    _runs: list[range] = field(factory=list, init=False)
    first: int = field(default=-1, init=False)
    _last: int = field(default=-1, init=False)

    def __bool__(self) -> bool:
        return self.first >= 0

    def take(self, seq: int, chunk: StreamChunk) -> None:
        if seq != self._last + 1 or self.first < 0:
            if self.first >= 0:
                self._runs.append(range(self.first, self._last + 1))
            self.first = seq
        self._last = seq
        self._waiting.append(chunk)
        if len(self._waiting) >= _GROUP:
            self._fold()

    def take_all(self, seq: int, chunks: Sequence[StreamChunk]) -> None:
        """`take` each of *chunks*, at least one, the first with *seq*."""
        self.take(seq, chunks[0])
        self._last = seq + len(chunks) - 1
        self._waiting += chunks[1:]

    def content(self) -> BlockAssembler:
        """The chunks so far, assembled. Only read it: it belongs to the attempt."""
        self._fold()
        return self._assembler

    def sources(self) -> Sources:
        """The seqs of the chunks so far."""
        return of_runs([*self._runs, range(self.first, self._last + 1)]) if self else ()

    def _fold(self) -> None:
        for chunk in self._waiting:
            self._assembler.push(chunk)
        self._waiting.clear()


NO_ATTEMPT = Attempt()
"""While there is none: shared by all logs, so that nothing may be taken by it."""
