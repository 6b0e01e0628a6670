"""The facts that the turn machine keeps beside its state, and how each kind of event moves them.

Written from the contract, and not from the engine's own table of order (`session/_order.py`):
the two are compared event by event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define, evolve, field

from ..session import asks_again
from ..vocabulary import (
    Append,
    AssistantChunk,
    AssistantMessageEvent,
    CompactionStart,
    EndSeed,
    Event,
    InboxSpliced,
    LlmRetry,
    MaxTokens,
    MessageId,
    RequestContextEvent,
    RequestHeader,
    RequestHeaderEvent,
    StreamChunk,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultEvent,
    UserMessageEvent,
    assemble,
)
from ._turn_kinds import CUT_SHORT, ENDINGS, Kind


@define(eq=False)
class Call:
    """A call of the open step. *seq*: of its ``tool/call``; *shared*: others ran beside it."""

    block: ToolCallBlock
    seq: int | None = None
    shared: bool = False


def _lists() -> dict[str, list[MessageId]]:
    return {"next-step": [], "next-turn": []}


@define(eq=False)
class Facts:
    """What the guards ask. Numbers of turns and steps, the inbox, the attempt, the calls.

    *due*: input that this boundary has to claim. *claimed*: taken out of the
    inbox, not entered and not consumed yet. *closing*: claimed input was put back, which only
    the end of a turn does. *asked*: the latest step called tools. *concludes*: one of them may
    have ended the turn. *headed*: this life of the session has sent a request.
    """

    exclusive: frozenset[str] = frozenset()
    capacity: int | None = None
    next_seq: int = 0
    time_ms: int = 0
    last: Kind = ""
    turn: int = 0
    step: int = 0
    # the inbox
    lists: dict[str, list[MessageId]] = field(factory=_lists)
    claimed: dict[str, list[MessageId]] = field(factory=_lists)
    due: set[MessageId] = field(factory=set)
    entered: set[MessageId] = field(factory=set)
    prompted: bool = False
    closing: bool = False
    edited: bool = False
    # the turn
    asked: bool = False
    concludes: bool = False
    answered: bool = False
    failed_steps: int = 0
    hit_max: bool = False
    # the step
    attempt: int = 1
    admitted: int = 0
    prompts: int = 0
    owed_request: bool = False
    signed: bool = False
    chunks: list[tuple[int, StreamChunk]] = field(factory=list)
    retry_id: str = ""
    calls: list[Call] = field(factory=list)
    recorded: int = 0
    settled: int = 0
    succeeded: bool = False
    failing: bool = False
    # the session
    headed: bool = False
    header: RequestHeader | None = None
    before: RequestHeader | None = None
    header_seq: int = -1
    context: RequestContextEvent | None = None
    has_prompt: bool = False
    compaction: str | None = None

    def fork(self) -> Facts:
        """A copy that moves on its own."""
        return evolve(
            self,
            lists={name: list(ids) for name, ids in self.lists.items()},
            claimed={name: list(ids) for name, ids in self.claimed.items()},
            due=set(self.due),
            entered=set(self.entered),
            chunks=list(self.chunks),
            calls=[evolve(call) for call in self.calls],
        )

    def delivered(self) -> bool:
        """Whether the attempt has non-blank text or reasoning."""
        return assemble([chunk for _, chunk in self.chunks]).delivered_prefix() is not None

    def pending(self, message_id: MessageId) -> bool:
        return any(message_id in ids for ids in self.lists.values())

    def move(self, kind: Kind, event: Event) -> None:
        """Take *event*, which a row let pass."""
        effect = _EFFECTS.get(kind)
        if effect is not None:
            effect(self, event)
        self.next_seq, self.time_ms, self.last = event.seq + 1, event.time_ms, kind

    def expect_claim(self) -> None:
        self.due = set(self.lists["next-step"])

    def sign(self) -> None:
        """Admission is complete: what was claimed has entered or was set aside."""
        self.signed = True
        self.claimed = _lists()

    def begin_attempt(self) -> None:
        self.chunks = []
        self.prompts = 0


# --- effects --------------------------------------------------------------------------------


def _turn_start(f: Facts, event: Event) -> None:
    f.turn, f.step = f.turn + 1, 0
    f.prompted = f.closing = f.hit_max = f.asked = f.concludes = f.edited = False
    f.failed_steps = 0
    f.answered = True
    f.claimed = _lists()
    f.expect_claim()
    f.due.update(f.lists["next-turn"][:1])


def _turn_end(f: Facts, event: Event) -> None:
    f.claimed, f.due, f.closing = _lists(), set(), False


def _step_start(f: Facts, event: Event) -> None:
    f.step += 1
    f.owed_request = f.asked
    f.attempt, f.admitted, f.signed = 1, 0, False
    f.begin_attempt()
    f.asked = f.concludes = f.answered = f.edited = f.succeeded = f.failing = False
    f.calls, f.recorded, f.settled = [], 0, 0


def _step_end(f: Facts, event: Event) -> None:
    f.asked = bool(f.calls)
    f.failed_steps += f.failing and not f.succeeded
    f.concludes = f.succeeded or f.failed_steps > 1
    f.calls, f.chunks = [], []
    f.expect_claim()


def _splice(f: Facts, event: Event) -> None:
    data = event.data
    assert isinstance(data, InboxSpliced)
    pending = f.lists[data.target]
    end = data.start + data.removed_count
    removed = pending[data.start : end]
    pending[data.start : end] = [message.id for message in data.inserted]
    f.due.difference_update(removed)
    back = {message.id for message in data.inserted}
    for ids in f.claimed.values():
        if not back.isdisjoint(ids):
            f.closing = True
            ids[:] = [i for i in ids if i not in back]


def _edit(f: Facts, event: Event) -> None:
    _splice(f, event)
    f.edited = True


def _claim(f: Facts, event: Event) -> None:
    data = event.data
    assert isinstance(data, InboxSpliced)
    f.claimed[data.target] += f.lists[data.target][: data.removed_count]
    f.prompted = f.prompted or data.target == "next-turn"
    _splice(f, event)


def _system(f: Facts, event: Event) -> None:
    f.prompts += isinstance(event.surface_op, Append)
    f.has_prompt = True


def _user(f: Facts, event: Event) -> None:
    data = event.data
    assert isinstance(data, UserMessageEvent)
    f.admitted += 1
    f.failed_steps += asks_again(data.message)
    f.entered.add(data.message.id)
    for ids in f.claimed.values():
        if data.message.id in ids:
            ids.remove(data.message.id)


def _header(f: Facts, event: Event) -> None:
    data = event.data
    assert isinstance(data, RequestHeaderEvent)
    f.before, f.header, f.header_seq = f.header, data.header, event.seq
    f.headed = True
    f.sign()


def _developer(f: Facts, event: Event) -> None:
    f.before = None
    f.sign()


def _context(f: Facts, event: Event) -> None:
    assert isinstance(event.data, RequestContextEvent)
    f.context = event.data
    f.sign()


def _chunk(f: Facts, event: Event) -> None:
    assert isinstance(event.data, AssistantChunk)
    f.chunks.append((event.seq, event.data.chunk))
    f.before = None
    f.sign()


def _failed(f: Facts, event: Event) -> None:
    f.sign()
    f.begin_attempt()
    f.attempt += 1


def _message(f: Facts, event: Event) -> None:
    data = event.data
    assert isinstance(data, AssistantMessageEvent)
    finish = assemble([chunk for _, chunk in f.chunks]).finish
    f.hit_max = f.hit_max or (finish is not None and isinstance(finish.reason, MaxTokens))
    f.calls = [Call(call) for call in data.message.tool_calls]
    f.answered = True
    f.sign()


def _call(f: Facts, event: Event) -> None:
    call = f.calls[f.recorded]
    call.seq = event.seq
    running = f.calls[f.settled : f.recorded]
    call.shared = bool(running)
    for other in running:
        other.shared = True
    f.recorded += 1


def _result(f: Facts, event: Event) -> None:
    data = event.data
    assert isinstance(data, ToolResultEvent)
    is_error = any(b.is_error for b in data.message.content if isinstance(b, ToolResultBlock))
    f.settled += 1
    f.recorded = max(f.recorded, f.settled)
    if not is_error:
        f.succeeded = True
    elif data.error is None or data.error.code not in CUT_SHORT:
        f.failing = True


def _retry(f: Facts, event: Event) -> None:
    assert isinstance(event.data, LlmRetry)
    f.retry_id = event.data.retry_id


def _end_seed(f: Facts, event: Event) -> None:
    assert isinstance(event.data, EndSeed)
    f.headed = False
    if event.data.inherited:
        f.lists = _lists()


def _compaction(f: Facts, event: Event) -> None:
    data = event.data
    f.compaction = data.id if isinstance(data, CompactionStart) else None


_EFFECTS: Final[dict[Kind, Callable[[Facts, Event], None]]] = {
    "turn/start": _turn_start,
    **dict.fromkeys(ENDINGS.values(), _turn_end),
    "step/start": _step_start,
    "step/end": _step_end,
    "inbox/insert": _splice,
    "inbox/edit": _edit,
    "inbox/claim": _claim,
    "system/message": _system,
    "user/message": _user,
    "request/header": _header,
    "developer/message": _developer,
    "request/context": _context,
    "assistant/chunk": _chunk,
    "finish": _chunk,
    "finish failed": _failed,
    "assistant/message": _message,
    "assistant/message interrupted": _message,
    "tool/call": _call,
    "tool/result": _result,
    "tool/result recovered": _result,
    "llm/retry": _retry,
    "session/end-seed": _end_seed,
    "compaction/start": _compaction,
    "compaction/end": _compaction,
}
