"""What a log means, written a second time: slowly, from scratch, and in another shape.

The engine moves one object through a log. Here a whole log is read at once: its order is a
regular expression over one letter per event, its numbers and calls are counted afterwards,
its surface and inbox are plain lists. The two must agree on every log.
"""

from __future__ import annotations

import functools
import json
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
from attrs import evolve

from terzetto import vocabulary as v
from terzetto.session import Attempt, OwedCall, Place, Session, replay
from terzetto.session._codec import decode_event
from terzetto.session._inbox import PendingInput
from terzetto.session._surface import Folds, Surface
from terzetto.vocabulary._stream import _Building

RUNS = Path(
    os.environ.get("TERZETTO_CONFORMANCE") or Path(__file__).parent.parent / "conformance" / "runs"
)
START_MS = 1_700_000_000_000
Log: TypeAlias = tuple[v.Event, ...]


@functools.cache
def recorded() -> dict[str, Log]:
    """The complete logs of the recorded runs, by name. Recordings have no times."""
    logs = {}
    for path in sorted(RUNS.glob("[0-9]*.json")):
        written = json.loads(path.read_text())["log"]
        logs[path.stem] = tuple(
            decode_event({"time": START_MS + seq, **obj}, seq_hint=seq)
            for seq, obj in enumerate(written)
        )
    return logs


# --- sessions ---------------------------------------------------------------------------


def new_session(now_ms: Callable[[], int] = lambda: START_MS) -> Session:
    """An empty session with numbered message ids and a clock that stands."""
    numbers = iter(range(1_000_000))
    header = v.SessionHeader(id=v.SessionId("s"), created_ms=START_MS)
    return Session(header, now_ms, lambda: v.MessageId(f"new-{next(numbers)}"))


def data_of(event: v.Event) -> Any:
    """The payload, for tests that know which it is."""
    return event.data


def replayed(events: Iterable[v.Event]) -> Session:
    session = new_session()
    replay(session, events)
    return session


def observed(session: Session) -> dict[str, Any]:
    """Everything that an append may change, by value."""
    parts = (session.place, session.surface, session.folds, session.pending)
    return {
        "events": tuple(session.events),
        "history": tuple(session.history()),
        "durable": session.durable_seq,
        **{type(part).__name__: _by_value(part) for part in parts},
    }


_MUTABLE = (Place, Attempt, v.BlockAssembler, _Building, OwedCall, Surface, Folds, PendingInput)


def _by_value(value: Any) -> Any:
    if isinstance(value, _MUTABLE):
        fields = attrs.fields(type(value))
        return {field.name: _by_value(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {key: _by_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_by_value(item) for item in value]
    if isinstance(value, set):
        return set(value)
    return value


# --- legality ---------------------------------------------------------------------------

_STEP = r"S(?:[yudhxrR]|c[crR]*f|f)*(?:c[crR]*)?(?:M[kv]*)?s"
"""Parts of a request and retries, then chunks; a failed finish begins anew; then the
answer, its calls and results."""
GRAMMAR = re.compile(rf"(?:e|T(?:{_STEP})*t)*")

_LETTERS: dict[type, str] = {
    v.TurnStart: "T",
    v.TurnEnd: "t",
    v.StepStart: "S",
    v.StepEnd: "s",
    v.SystemMessageEvent: "y",
    v.UserMessageEvent: "u",
    v.DeveloperMessageEvent: "d",
    v.RequestHeaderEvent: "h",
    v.RequestContextEvent: "x",
    v.AssistantMessageEvent: "M",
    v.LlmRetry: "r",
    v.LlmRetryStarted: "R",
    v.ToolCallEvent: "k",
    v.ToolResultEvent: "v",
    v.EndSeed: "e",
}
_NUMBERED = "tSsydcfMrRkv"


def letter(event: v.Event) -> str:
    """Its letter in the grammar; empty for what may come anywhere."""
    data = event.data
    if isinstance(event.surface_op, v.Replace) and not isinstance(data, v.SystemMessageEvent):
        return ""
    if isinstance(data, v.AssistantChunk):
        failed = isinstance(data.chunk, v.Finish) and isinstance(
            data.chunk.reason, (v.ErrorFinish, v.AbortedFinish)
        )
        return "f" if failed else "c"
    return _LETTERS.get(type(data), "")


def letters(events: Iterable[v.Event]) -> str:
    return "".join(map(letter, events))


def first_illegal(events: Sequence[v.Event], *, strict: bool) -> int | None:
    """The index of the first event that may not stand where it is, or None.

    *strict*: a step may not end while it owes results (true of live appends only).
    """
    found = [_grammar(events), _numbers(events), _calls(events, strict=strict)]
    found += [_surface(events), _inbox(events)]
    found += [next((i for i, event in enumerate(events) if event.seq != i), None)]
    indices = [index for index in found if index is not None]
    return min(indices, default=None)


def _grammar(events: Sequence[v.Event]) -> int | None:
    word = [letter(event) for event in events]

    def refused(length: int) -> bool:
        text = "".join(word[:length])
        return not any(GRAMMAR.fullmatch(text + closing) for closing in ("", "t", "st"))

    length = bisect_left(range(len(word) + 1), True, key=refused)
    return None if length > len(word) else length - 1


def _numbers(events: Sequence[v.Event]) -> int | None:
    turn = step = 0
    for index, event in enumerate(events):
        data: Any = event.data
        match letter(event):
            case "T":
                turn, step = turn + 1, 0
                if data.turn != turn:
                    return index
            case "t":
                if data.turn != turn:
                    return index
            case "S":
                step += 1
                if (data.turn, data.step) != (turn, step):
                    return index
            case mark if mark and mark in _NUMBERED and (data.turn, data.step) != (turn, step):
                return index
    return None


def _calls(events: Sequence[v.Event], *, strict: bool) -> int | None:
    """Calls and results keep model order; a result cites its call, if that is recorded."""
    calls: tuple[v.ToolCallBlock, ...] = ()
    recorded_at: dict[int, int] = {}
    next_call = results = 0
    for index, event in enumerate(events):
        data: Any = event.data
        match letter(event):
            case "S":
                calls, recorded_at, next_call, results = (), {}, 0, 0
            case "M":
                calls = data.message.tool_calls
            case "k":
                if next_call >= len(calls) or data.call_id != calls[next_call].id:
                    return index
                recorded_at[next_call] = event.seq
                next_call += 1
            case "v":
                if results >= len(calls) or answered_id(data) != calls[results].id:
                    return index
                cited = (recorded_at[results],) if results in recorded_at else ()
                if (event.sources or ()) != cited:
                    return index
                results += 1
                next_call = max(next_call, results)
            case "s" if strict and results < len(calls):
                return index
    return None


def answered_id(data: v.ToolResultEvent) -> str | None:
    ids = [b.tool_call_id for b in data.message.content if isinstance(b, v.ToolResultBlock)]
    return ids[0] if ids else None


def _surface(events: Sequence[v.Event]) -> int | None:
    nodes: list[v.Event] = []
    for index, event in enumerate(events):
        on_surface = isinstance(event.data, v.SURFACE_TYPES)
        if on_surface != (event.surface_op is not None):
            return index
        if any(not 0 <= seq < event.seq for seq in event.sources or ()):
            return index
        if isinstance(event.surface_op, v.Replace):
            span = _span(nodes, event.surface_op)
            if span is None or not _may_replace(nodes[span], event):
                return index
        _take_node(nodes, event)
    return None


def _span(nodes: Sequence[v.Event], op: v.Replace) -> slice | None:
    seqs = [node.seq for node in nodes]
    if op.start not in seqs or op.end not in seqs:
        return None
    first, last = seqs.index(op.start), seqs.index(op.end)
    return slice(first, last + 1) if first <= last else None


def _may_replace(shadowed: Sequence[v.Event], event: v.Event) -> bool:
    if not {node.seq for node in shadowed} <= set(event.sources or ()):
        return False
    if not isinstance(event.data, v.ToolResultEvent):
        return True
    old = shadowed[0].data
    return (
        len(shadowed) == 1
        and isinstance(old, v.ToolResultEvent)
        and _without_content(old) == _without_content(event.data)
    )


def _without_content(data: v.ToolResultEvent) -> v.ToolResultEvent:
    """*data* with the texts of its results taken out: what a replacement must keep (C153)."""
    blocks = tuple(
        evolve(block, content=())
        for block in data.message.content
        if isinstance(block, v.ToolResultBlock)
    )
    return evolve(data, message=evolve(data.message, content=blocks))


def _take_node(nodes: list[v.Event], event: v.Event) -> None:
    op = event.surface_op
    if isinstance(op, v.Append):
        nodes.append(event)
    elif isinstance(op, v.Replace):
        span = _span(nodes, op)
        if span is not None:  # else the log is illegal from here on
            nodes[span] = [event]


def nodes_of(events: Iterable[v.Event]) -> list[v.Event]:
    """The events on the surface of a legal log, in order."""
    nodes: list[v.Event] = []
    for event in events:
        _take_node(nodes, event)
    return nodes


def history_of(events: Iterable[v.Event]) -> list[v.Message]:
    """The messages that the model sees of a legal log."""
    messages = [node.data.message for node in nodes_of(events)]  # type: ignore[union-attr]
    return [message for message in messages if message.content]


def _inbox(events: Sequence[v.Event]) -> int | None:
    lists = _empty_lists()
    for index, event in enumerate(events):
        if isinstance(event.data, v.InboxSpliced) and not _may_splice(lists, event.data):
            return index
        _take_splice(lists, event)
    return None


def _empty_lists() -> dict[str, list[v.UserMessage]]:
    return {"next-step": [], "next-turn": []}


def _may_splice(lists: dict[str, list[v.UserMessage]], splice: v.InboxSpliced) -> bool:
    before = lists[splice.target]
    end = splice.start + splice.removed_count
    if splice.start < 0 or splice.removed_count < 0 or end > len(before):
        return False
    if not splice.removed_count and not splice.inserted:
        return False
    after = {**lists, splice.target: [*before[: splice.start], *splice.inserted, *before[end:]]}
    ids = [message.id for messages in after.values() for message in messages]
    return len(set(ids)) == len(ids)


def _take_splice(lists: dict[str, list[v.UserMessage]], event: v.Event) -> None:
    data = event.data
    if isinstance(data, v.EndSeed) and data.inherited:
        lists.update(_empty_lists())
    elif isinstance(data, v.InboxSpliced):
        lists[data.target][data.start : data.start + data.removed_count] = data.inserted


def lists_of(events: Iterable[v.Event]) -> dict[str, list[v.UserMessage]]:
    """Pending input after a legal log."""
    lists = _empty_lists()
    for event in events:
        _take_splice(lists, event)
    return lists


# --- single changes ---------------------------------------------------------------------


def renumbered(events: Iterable[v.Event]) -> list[v.Event]:
    """*events* numbered from 0; citations follow their events, those of dropped ones go."""
    events = list(events)
    new: dict[int, int] = {}
    for index, event in enumerate(events):
        new.setdefault(event.seq, index)
    result = []
    for index, event in enumerate(events):
        sources, op, data = event.sources, event.surface_op, event.data
        if sources is not None:
            sources = tuple(new[seq] for seq in sources if seq in new)
        if isinstance(op, v.Replace):
            op = v.Replace(new.get(op.start, op.start), new.get(op.end, op.end))
        if isinstance(data, v.DeveloperMessageEvent) and data.header_seq is not None:
            data = evolve(data, header_seq=new.get(data.header_seq))
        result.append(evolve(event, seq=index, sources=sources, surface_op=op, data=data))
    return result


def _changed(events: Sequence[v.Event], index: int, **changes: Any) -> list[v.Event]:
    result = list(events)
    result[index] = evolve(events[index], **changes)
    return result


def _drop(events: Sequence[v.Event], index: int) -> list[v.Event]:
    return renumbered([*events[:index], *events[index + 1 :]])


def _gap(events: Sequence[v.Event], index: int) -> list[v.Event]:
    return [*events[:index], *events[index + 1 :]]


def _swap(events: Sequence[v.Event], index: int) -> list[v.Event] | None:
    if index + 1 == len(events):
        return None
    swapped = [events[index + 1], events[index]]
    return renumbered([*events[:index], *swapped, *events[index + 2 :]])


def _duplicate(events: Sequence[v.Event], index: int) -> list[v.Event]:
    return renumbered([*events[: index + 1], *events[index:]])


def _repeat(events: Sequence[v.Event], index: int) -> list[v.Event]:
    return [*events[: index + 1], *events[index:]]


def _number(name: str, by: int) -> Callable[[Sequence[v.Event], int], list[v.Event] | None]:
    def change(events: Sequence[v.Event], index: int) -> list[v.Event] | None:
        data: Any = events[index].data
        if not hasattr(data, name):
            return None
        return _changed(events, index, data=evolve(data, **{name: getattr(data, name) + by}))

    return change


def _call_id(events: Sequence[v.Event], index: int) -> list[v.Event] | None:
    data: Any = events[index].data
    other = v.CallId("another-call")
    blocks: tuple[Any, ...]
    match data:
        case v.ToolCallEvent():
            return _changed(events, index, data=evolve(data, call_id=other))
        case v.ToolResultEvent():
            blocks = tuple(
                evolve(block, tool_call_id=other) if isinstance(block, v.ToolResultBlock) else block
                for block in data.message.content
            )
        case v.AssistantMessageEvent(message=message) if message.tool_calls:
            blocks = tuple(
                evolve(block, id=other) if isinstance(block, v.ToolCallBlock) else block
                for block in message.content
            )
        case _:
            return None
    return _changed(events, index, data=evolve(data, message=evolve(data.message, content=blocks)))


def _no_sources(events: Sequence[v.Event], index: int) -> list[v.Event] | None:
    return None if not events[index].sources else _changed(events, index, sources=None)


def _cites_itself(events: Sequence[v.Event], index: int) -> list[v.Event]:
    sources = (*(events[index].sources or ()), events[index].seq)
    return _changed(events, index, sources=sources)


def _cites_the_first(events: Sequence[v.Event], index: int) -> list[v.Event] | None:
    return None if index == 0 else _changed(events, index, sources=(0,))


def _flip_surface(events: Sequence[v.Event], index: int) -> list[v.Event]:
    op = None if events[index].surface_op is not None else v.APPEND
    return _changed(events, index, surface_op=op)


def _replaces_itself(events: Sequence[v.Event], index: int) -> list[v.Event]:
    return _changed(events, index, surface_op=v.Replace(index, index), sources=(index,))


def _replaces_the_last_node(events: Sequence[v.Event], index: int) -> list[v.Event] | None:
    nodes = nodes_of(events[:index])
    if not nodes:
        return None
    last = nodes[-1].seq
    return _changed(events, index, surface_op=v.Replace(last, last), sources=(last,))


Mutation: TypeAlias = Callable[[Sequence[v.Event], int], list[v.Event] | None]
MUTATIONS: dict[str, Mutation] = {
    "drop": _drop,
    "gap": _gap,
    "swap": _swap,
    "duplicate": _duplicate,
    "repeat": _repeat,
    "turn + 1": _number("turn", 1),
    "turn - 1": _number("turn", -1),
    "step + 1": _number("step", 1),
    "step - 1": _number("step", -1),
    "call id": _call_id,
    "no sources": _no_sources,
    "cites itself": _cites_itself,
    "cites the first": _cites_the_first,
    "flip surface": _flip_surface,
    "replaces itself": _replaces_itself,
    "replaces the last node": _replaces_the_last_node,
}
"""Each makes one change at an index, or gives None where it does not apply."""
