"""What a person sees: a terminal emulator of somebody else's under a program's output."""

from __future__ import annotations

import pyte
from attrs import define, field

COLUMNS, ROWS = 70, 30


@define(eq=False)
class Screen:
    """Told what a program has printed so far; knows what stands on the screen then."""

    _screen: pyte.HistoryScreen = field(
        factory=lambda: pyte.HistoryScreen(COLUMNS, ROWS, history=1000)
    )
    _stream: pyte.Stream = field(init=False)
    _seen: int = 0

    def __attrs_post_init__(self) -> None:
        self._stream = pyte.Stream(self._screen)

    def look(self, printed: str) -> list[str]:
        """The lines without blanks at their ends, what has scrolled away first; blank lines
        at the end are left out. *printed* begins with what it was the last time."""
        self._stream.feed(printed[self._seen :])
        self._seen = len(printed)
        scrolled = [
            "".join(row[column].data for column in range(COLUMNS))
            for row in self._screen.history.top
        ]
        shown = [line.rstrip() for line in [*scrolled, *self._screen.display]]
        while shown and not shown[-1]:
            shown.pop()
        return shown

    @property
    def column(self) -> int:
        """Where the cursor is."""
        return int(self._screen.cursor.x)
