"""How large the next request of a session would be, in tokens."""

from __future__ import annotations

import json

from attrs import define

from ..session import Session
from ..vocabulary import AssistantMessageEvent, thaw_json
from ._cut import Estimate


@define(eq=False)
class Meter:
    """Kept up as the surface grows: a reading costs what is new.

    What a provider reported counts until something before it is replaced; the figure is
    then estimated anew, never guessed from the older report. What came after a report is
    estimated too.
    """

    _generation: int = -1
    _seen: int = 0
    _highest: int = -1
    _estimated: int = 0
    _reported: int | None = None
    _header_seq: int | None = None
    _tools: int = 0

    def read(self, session: Session, estimate: Estimate) -> int:
        """The tokens that the history takes in its next request, the tools included."""
        surface = session.surface
        if surface.generation != self._generation:
            self._generation, self._seen, self._highest = surface.generation, 0, -1
            self._estimated, self._reported = 0, None
        for node in surface.nodes[self._seen :]:
            tokens, data = estimate(node.message), node.data
            self._estimated += tokens
            if self._reported is not None:
                self._reported += tokens
            # A replacement in front of it is younger: the report is of another history.
            in_order = node.seq > self._highest
            if isinstance(data, AssistantMessageEvent) and data.usage is not None and in_order:
                self._reported = data.usage.input_tokens + data.usage.output_tokens
            self._highest = max(self._highest, node.seq)
        self._seen = len(surface.nodes)
        if self._reported is not None:
            return self._reported
        return self._estimated + self._tools_tokens(session)

    def scale(self) -> float:
        """Estimated tokens for one that the provider counts, at most 1; as of the last
        reading. What is chosen by estimates is chosen at this scale."""
        if self._reported is None or self._reported <= self._estimated:
            return 1.0
        return self._estimated / self._reported

    def _tools_tokens(self, session: Session) -> int:
        header, seq = session.folds.header, session.folds.header_seq
        if header is not None and seq != self._header_seq:
            self._header_seq = seq
            schemas = [json.dumps(thaw_json(tool.parameters)) for tool in header.tools]
            words = [f"{tool.name}{tool.description}" for tool in header.tools]
            self._tools = sum(len(text) // 4 for text in schemas + words)
        return self._tools
