"""What can be wrong with a stored session, from its bytes to its history. Pure.

Each check trusts nothing that an earlier one has not found good, and what is found first is
said first. A log has no checksum: what is checked is what a log says twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from attrs import frozen

from ..session import Place, Session, replay, unfinished_seed
from ..session._codec import (
    decode_event,
    decode_header,
    dumps_event,
    encode_event,
    encode_header,
    encode_message,
    loads_event,
    loads_json,
)
from ..vocabulary import (
    Append,
    AssistantMessageEvent,
    EndSeed,
    Event,
    IllegalEvent,
    InvalidValue,
    SessionHeader,
    StoreError,
    ToolCallEvent,
)
from ._stored import Stored

MOST = 10
"""Findings that are told of one session."""


@frozen
class Finding:
    """Something about a session. What is no *problem* is only worth knowing."""

    where: str
    what: str
    problem: bool = True


@frozen
class Checked:
    """A session that was looked at from end to end."""

    name: str
    events: int
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> int:
        return sum(finding.problem for finding in self.findings)


def check(stored: Stored, extensions: Collection[str] = ()) -> Checked:
    """Everything that is wrong with *stored*, and what state it was left in."""
    findings = [Finding(where, what) for where, what in stored.faults]
    if stored.owner is not None:
        findings.append(Finding("lock", f"in use by process {stored.owner}", problem=False))
    if stored.torn:
        text = f"torn: {stored.torn} bytes of an unfinished record"
        if stored.owner is not None:
            findings.append(Finding("end", f"{text}, being written now", problem=False))
        else:
            findings.append(Finding("end", f"{text}; the next resume cuts them off"))
    if not any(finding.problem and finding.where != "end" for finding in findings):
        findings += _content(stored, extensions)
    return Checked(stored.name, len(stored.records), tuple(findings))


def _content(stored: Stored, extensions: Collection[str]) -> list[Finding]:
    try:
        header = decode_header(loads_json(stored.header))
        if decode_header(encode_header(header)) != header:
            raise InvalidValue("it does not survive being written again")
    except (InvalidValue, StoreError) as error:
        return [Finding("header", str(error))]
    findings: list[Finding] = []
    events: list[Event] = []
    for seq, record in enumerate(stored.records):
        try:
            events.append(_event(seq, record, extensions))
        except InvalidValue as error:
            findings.append(Finding(stored.place(seq), str(error)))
    if findings:  # what follows from an incomplete log would only repeat it
        return findings
    try:
        return list(_whole(header, events, stored))
    except IllegalEvent as error:
        return [Finding(stored.place(error.seq), str(error))]


def _event(seq: int, record: bytes, extensions: Collection[str]) -> Event:
    event = loads_event(record, seq_hint=seq, extensions=extensions)
    if event.seq != seq:
        raise InvalidValue(f"seq {event.seq} where {seq} comes next")
    if dumps_event(event) != record:  # spelled otherwise than we do; it may mean the same
        again = decode_event(encode_event(event), seq_hint=seq, extensions=extensions)
        if again != event:
            raise InvalidValue(f"event {seq} does not survive being written again")
    return event


def _whole(header: SessionHeader, events: Sequence[Event], stored: Stored) -> Iterator[Finding]:
    """What can be wrong with events that are each good. Raises `IllegalEvent`."""
    if missing := unfinished_seed(header, len(events)):
        yield Finding("end", missing)
        return
    if header.seed_length and events[header.seed_length].data != EndSeed(inherited=True):
        yield Finding(
            stored.place(header.seed_length),
            f"expected the end of what was inherited from {header.parent_id!r}",
        )
    session = Session(header, lambda: 0)
    replay(session, events)
    yield from _times(events, stored)
    yield from _repeated(events, stored)
    for message in session.history():
        try:
            encode_message(message)
        except InvalidValue as error:
            yield Finding("history", str(error))
    if (turn := session.place.open_turn) is not None:
        text = f"turn {turn} is open"
        if stored.owner is None:
            text += ": its process died, or the end is missing; the next resume closes it"
        yield Finding("end", text, problem=False)
    if session.pending:
        count = sum(map(len, session.pending.lists.values()))
        yield Finding("end", f"pending input: {count}", problem=False)


def _times(events: Sequence[Event], stored: Stored) -> Iterator[Finding]:
    last = 0
    for event in events:
        if event.time_ms < last:
            yield Finding(
                stored.place(event.seq), f"event {event.seq} is older than the one before"
            )
        last = event.time_ms


def _repeated(events: Sequence[Event], stored: Stored) -> Iterator[Finding]:
    """An answer says again what was streamed, and the start of a call what was asked for."""
    place = Place(strict=False)
    for event in events:
        match event.data:
            case AssistantMessageEvent() as answer if isinstance(event.surface_op, Append):
                if event.sources and not _is_streamed(answer, event.sources, place):
                    yield Finding(
                        stored.place(event.seq), f"answer {event.seq} is not what was streamed"
                    )
            case ToolCallEvent(name=name, arguments=arguments):
                call = place.next_call()
                if call is not None and (call.name, call.arguments) != (name, arguments):
                    yield Finding(
                        stored.place(event.seq), f"call {event.seq} is not what was asked for"
                    )
            case _:
                pass
        place.move(event)


def _is_streamed(answer: AssistantMessageEvent, sources: Sequence[int], place: Place) -> bool:
    assembler = place.attempt.content()
    if answer.interrupted:
        prefix = assembler.delivered_prefix()
        content = None if prefix is None else prefix.content
    else:
        content = assembler.assembled().content
    return list(place.attempt.sources()) == list(sources) and answer.message.content == content
