"""How much of each request the one before had said already, and what broke it off.

The canonical sequence of a request is what a model can see of it: its tools, then its messages,
as lines of JSON without ids. Adapters write their own bytes from the same values in the same
order, so where one canonical sequence extends another their sequences do, too. A provider that
caches prefixes pays for what is new only.

An event that replaces a message, or a header with other tools, breaks the prefix, and is named.
A break that no event explains would be a defect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import define, evolve, field, frozen

from ..vocabulary import (
    AssistantMessage,
    CompactionSummary,
    Event,
    Message,
    Replace,
    Request,
    RequestHeaderEvent,
    SessionHeader,
    SystemMessageEvent,
    ToolResultEvent,
    ToolSchema,
)
from ._codec import TAGS, dumps_json, encode_message, encode_tool
from ._rebuild import RequestFold, SentRequest


def canonical(request: Request) -> bytes:
    """What a model can see of *request*, as bytes: a line of JSON for each tool, then for each
    message its role, its content and what the provider wants back with it.

    A function of the request alone: no ids, no times, no order that could differ.
    """
    return b"".join((*map(_tool_line, request.tools), *map(_message_line, request.messages)))


@frozen(kw_only=True)
class Cause:
    """The event *seq*, of this *type* in the log, broke the prefix. *what* it did, in words."""

    seq: int
    type: str
    what: str


@frozen(kw_only=True, eq=False)
class Growth:
    """A request beside the one before it.

    *size* counts the bytes of its canonical sequence, *shared* those with which the sequence
    before begins as well; for the first request that is 0. *broken*: the sequence before is not
    a prefix of this one. *causes* are then the events that explain it, one for the tools and one
    for the messages at most; where one is missing *unexplained* is true.

    A request that was not answered is measured and is not counted as one that came before.
    """

    sent: SentRequest
    size: int
    shared: int
    broken: bool = False
    causes: tuple[Cause, ...] = ()
    unexplained: bool = False

    @property
    def new(self) -> int:
        """The bytes that the request before had not said."""
        return self.size - self.shared


def growths(header: SessionHeader, events: Iterable[Event]) -> Iterator[Growth]:
    """Every request of a log, measured. Takes and raises what `rebuild` does.

    Costs as much as the log is long, and a walk over the surface for each break.
    """
    fold, meter = RequestFold(header), _Meter()
    for event in events:
        meter.note(event)
        for sent in fold.push(event):
            yield meter.measure(sent, fold)
    for sent in fold.end():
        yield meter.measure(sent, fold)


def _tool_line(tool: ToolSchema) -> bytes:
    return dumps_json(encode_tool(tool)) + b"\n"


def _message_line(message: Message) -> bytes:
    whole = encode_message(message)
    seen = {"role": whole["role"], "content": whole["content"]}
    if isinstance(message, AssistantMessage) and isinstance(source := whole["source"], dict):
        # What a provider signed or sealed goes back to it.
        seen |= {"replayState": source["replayState"]} if "replayState" in source else {}
    return dumps_json(seen) + b"\n"


@define(eq=False)
class _Sizes:
    """Lengths of the lines of one surface, added up; they grow as the surface does."""

    nodes: list[int]
    sums: list[int] = field(factory=lambda: [0])

    def cover(self, messages: Sequence[Message]) -> None:
        """Add up *messages*, the beginning of the surface, as far as that is not done."""
        for at in range(len(self.sums) - 1, len(messages)):
            self.sums.append(self.sums[-1] + len(_message_line(messages[at])))


@define(eq=False)
class _Meter:
    _before: Growth | None = None
    _before_tools: list[bytes] = field(factory=list)
    _sizes: _Sizes | None = None
    _tools: tuple[tuple[ToolSchema, ...], list[bytes]] = ((), [])
    _by_summary: set[int] = field(factory=set)
    _summarised: bool = False

    def note(self, event: Event) -> None:
        """Remember which replacement belongs to a compaction: the one after its summary."""
        if self._summarised and isinstance(event.surface_op, Replace):
            self._by_summary.add(event.seq)
        self._summarised = isinstance(event.data, CompactionSummary)

    def measure(self, sent: SentRequest, fold: RequestFold) -> Growth:
        tools = self._tool_lines(sent.request.tools)
        sizes = self._message_sizes(sent)
        size = sum(map(len, tools)) + sizes.sums[len(sent.request.messages)]
        growth = Growth(sent=sent, size=size, shared=0)
        if self._before is not None:
            growth = self._compare(self._before, growth, tools, sizes, fold)
        if sent.answered:
            self._before, self._before_tools = growth, tools
        return growth

    def _tool_lines(self, tools: tuple[ToolSchema, ...]) -> list[bytes]:
        if self._tools[0] is not tools:
            self._tools = (tools, [_tool_line(tool) for tool in tools])
        return self._tools[1]

    def _message_sizes(self, sent: SentRequest) -> _Sizes:
        if self._sizes is None or self._sizes.nodes is not sent._nodes:
            self._sizes = _Sizes(sent._nodes)
        self._sizes.cover(sent.request.messages)
        return self._sizes

    def _compare(
        self, old: Growth, new: Growth, tools: list[bytes], sizes: _Sizes, fold: RequestFold
    ) -> Growth:
        before, sent = old.sent, new.sent
        at = _first_change(before, sent)
        other_tools = self._before_tools != tools
        if at is None and not other_tools:
            return evolve(new, shared=old.size)
        causes: list[Cause | None] = []
        if other_tools:
            causes.append(self._other_tools(before, sent))
        if at is not None:
            causes.append(self._replaced(before, sent, at, fold))
        if other_tools:
            shared = _common(_start(self._before_tools, before), _start(tools, sent))
        else:
            shared = sum(map(len, tools)) + sizes.sums[at or 0]
            shared += _common(*(_lines_from(one, at or 0) for one in (before, sent)))
        return evolve(
            new,
            shared=shared,
            broken=True,
            causes=tuple(cause for cause in causes if cause is not None),
            unexplained=None in causes,
        )

    def _other_tools(self, before: SentRequest, sent: SentRequest) -> Cause | None:
        if not before.seq < sent.header_seq <= sent.seq:
            return None
        was = {tool.name: tool for tool in before.request.tools}
        now = {tool.name: tool for tool in sent.request.tools}
        added = [f"+{name}" for name in now if name not in was]
        removed = [f"-{name}" for name in was if name not in now]
        changed = [f"~{name}" for name in now if name in was and now[name] != was[name]]
        what = " ".join([*added, *removed, *changed]) or "in another order"
        return Cause(seq=sent.header_seq, type=TAGS[RequestHeaderEvent], what=f"tools {what}")

    def _replaced(
        self, before: SentRequest, sent: SentRequest, at: int, fold: RequestFold
    ) -> Cause | None:
        """The replacement at message *at*: of what stood there, or by what stands there."""
        gone = fold.shadowed.get(before._nodes[at])
        here = sent._nodes[at] if at < len(sent.request.messages) else None
        # The second: an empty node is in no request; filled, it moves what follows.
        for seq in (gone, here):
            if seq is not None and before.seq < seq <= sent.seq and seq in fold.replacements:
                event, count = fold.replacements[seq]
                what = _did(event, count, by_summary=seq in self._by_summary)
                return Cause(seq=seq, type=TAGS[type(event.data)], what=what)
        return None


def _did(event: Event, count: int, *, by_summary: bool) -> str:
    match event.data:
        case SystemMessageEvent(message=message):
            return "the prompt was rewritten" if message.text else "a prompt was emptied"
        case ToolResultEvent():
            return "a tool result was replaced"
        case _:
            what = "1 message was" if count == 1 else f"{count} messages were"
            return f"{what} replaced" + (" by a summary" if by_summary else "")


def _first_change(before: SentRequest, sent: SentRequest) -> int | None:
    """The first message of *before* that *sent* does not have in its place."""
    if sent.same_surface(before):
        return None
    old, new = before.request.messages, sent.request.messages
    for at in range(len(old)):
        if at >= len(new):
            return at
        same = before._nodes[at] == sent._nodes[at]
        if not same and _message_line(old[at]) != _message_line(new[at]):
            return at
    return None


def _lines_from(sent: SentRequest, at: int) -> bytes:
    """The message *at*, or nothing behind the last one."""
    return b"".join(map(_message_line, sent.request.messages[at : at + 1]))


def _start(tools: list[bytes], sent: SentRequest) -> bytes:
    """The tools and the first message: as far as two requests with other tools can agree."""
    return b"".join((*tools, *map(_message_line, sent.request.messages[:1])))


def _common(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:  # what is before *low* is equal
            low = middle
        else:
            high = middle - 1
    return low
