"""The events of a usual step, judged and taken in one pass.

Nearly all that is appended are the same few events in the same few shapes, and what the tables
of `_order` and `_surface` ask of these is little. Each function here looks whether its event is
of such a shape and may come next; if so, it hands the event over and moves place and surface
as the tables do. If not, it has changed nothing, and the tables decide: they alone know what
else is right, and what to say about what is wrong. Where a function takes an event, the tables
come to the same.

While input is claimed nothing is taken here: the inbox looks at more then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ..vocabulary import (
    Append,
    AssistantMessageEvent,
    Event,
    StepEnd,
    StepStart,
    ToolCallBlock,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
)
from ..vocabulary._seqs import bounds
from ._order import OwedCall, Place
from ._surface import Surface

Sink: TypeAlias = Callable[[Event], None]
Take: TypeAlias = Callable[[Place, Surface, Event, Any, Sink], bool]
"""Takes an event with the next seq and its data, or says no and has changed nothing. The sink
may raise; then nothing has changed as well."""


def _step_start(place: Place, surface: Surface, event: Event, data: StepStart, sink: Sink) -> bool:
    if (
        place.open_step is not None
        or place.open_turn is None
        or data.turn != place.open_turn
        or data.step != place.last_step + 1
        or event.surface_op is not None
        or event.sources is not None
    ):
        return False
    sink(event)
    place.next_seq = event.seq + 1
    place.last_time_ms = event.time_ms
    place.seeded = place.answered = False
    place.last_step = place.open_step = data.step
    place._calls = ()
    place._recorded = place._settled = 0
    return True


def _step_end(place: Place, surface: Surface, event: Event, data: StepEnd, sink: Sink) -> bool:
    if (
        place.open_step is None
        or data.step != place.open_step
        or data.turn != place.open_turn
        or place._settled < len(place._calls)
        or place.attempt.first >= 0
        or event.surface_op is not None
        or event.sources is not None
    ):
        return False
    sink(event)
    place.next_seq = event.seq + 1
    place.last_time_ms = event.time_ms
    place.seeded = False
    place.open_step = place.unsettled = None
    place._calls = ()
    place._recorded = place._settled = 0
    return True


def _message(
    place: Place, surface: Surface, event: Event, data: AssistantMessageEvent, sink: Sink
) -> bool:
    if (
        place.open_step is None
        or place.answered
        or data.step != place.open_step
        or data.turn != place.open_turn
        or type(event.surface_op) is not Append
    ):
        return False
    if event.sources:
        least, most = bounds(event.sources)
        if not 0 <= least <= most < event.seq:
            return False
    sink(event)
    place.next_seq = event.seq + 1
    place.last_time_ms = event.time_ms
    place.seeded = False
    place.answered = True
    place.unsettled = None
    place.settle()
    place._calls = [
        OwedCall(block) for block in data.message.content if isinstance(block, ToolCallBlock)
    ]
    surface.push(event.seq, data)
    return True


def _call(place: Place, surface: Surface, event: Event, data: ToolCallEvent, sink: Sink) -> bool:
    recorded = place._recorded
    if (
        place.open_step is None
        or data.step != place.open_step
        or data.turn != place.open_turn
        or recorded >= len(place._calls)
        or data.call_id != (owed := place._calls[recorded]).call.id
        or event.surface_op is not None
        or event.sources is not None
    ):
        return False
    sink(event)
    place.next_seq = event.seq + 1
    place.last_time_ms = event.time_ms
    place.seeded = False
    owed.call_seq = event.seq
    place._recorded = recorded + 1
    return True


def _result(
    place: Place, surface: Surface, event: Event, data: ToolResultEvent, sink: Sink
) -> bool:
    settled = place._settled
    if (
        place.open_step is None
        or data.step != place.open_step
        or data.turn != place.open_turn
        or settled >= len(place._calls)
        or type(event.surface_op) is not Append
    ):
        return False
    message, sources, owed = data.message, event.sources, place._calls[settled]
    if (
        type(message.source) is not ToolSource
        or len(message.content) != 1
        or type(block := message.content[0]) is not ToolResultBlock
        or block.tool_call_id != owed.call.id
        or type(sources) is not tuple
        or len(sources) != 1
        or sources[0] != owed.call_seq
    ):
        return False
    sink(event)
    place.next_seq = event.seq + 1
    place.last_time_ms = event.time_ms
    place.seeded = False
    settled = place._settled = settled + 1
    if place._recorded < settled:
        place._recorded = settled
    surface.push(event.seq, data)
    return True


USUAL: Final[dict[type, Take]] = {
    StepStart: _step_start,
    StepEnd: _step_end,
    AssistantMessageEvent: _message,
    ToolCallEvent: _call,
    ToolResultEvent: _result,
}
"""By the class of the data."""
