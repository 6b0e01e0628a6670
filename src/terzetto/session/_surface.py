"""The surface: ordered events the model sees; and what is folded from the log.

A replacement shadows a range of nodes; nothing is deleted. `Messages` is an O(1)
immutable view of the derived history, so a step costs the same at step 5 and at
step 5,000: the list under it only grows, and a replacement starts a new one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import overload

from attrs import define, frozen

from ..vocabulary import (
    SURFACE_TYPES,
    Append,
    Event,
    EventData,
    IllegalEvent,
    JsonValue,
    Message,
    ModelSelected,
    ModelSelection,
    ModelSource,
    PluginSource,
    Replace,
    RequestContextEvent,
    RequestHeader,
    RequestHeaderEvent,
    SurfaceData,
    SystemMessage,
    ToolHistory,
    ToolResultBlock,
    ToolResultEvent,
    ToolSchema,
    UserMessage,
    texts,
)
from ..vocabulary._seqs import bounds
from ._few import added


class Messages(Sequence[Message]):
    """The derived history at one moment; later events do not change it."""

    __slots__ = ("_items", "_length")

    def __init__(self, items: Sequence[Message], length: int) -> None:
        self._items = items
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(index, slice):
            return tuple(self._items[i] for i in range(*index.indices(self._length)))
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._items[index if index >= 0 else index + self._length]

    def __iter__(self) -> Iterator[Message]:
        items = self._items
        return (items[i] for i in range(self._length))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Messages, list, tuple)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to lists, like a list

    def __repr__(self) -> str:
        return f"<Messages: {self._length}>"


@frozen
class Node:
    """One node of the surface."""

    seq: int
    data: SurfaceData

    @property
    def message(self) -> Message:
        return self.data.message


class Nodes(Sequence[Node]):
    """The nodes of a surface in order, each made when it is asked for. Grows with it, until a
    replacement starts a new one."""

    __slots__ = ("_data", "_seqs")

    def __init__(self, seqs: Sequence[int], data: Sequence[SurfaceData]) -> None:
        self._seqs = seqs
        self._data = data

    def __len__(self) -> int:
        return len(self._seqs)

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> list[Node]: ...
    def __getitem__(self, index: int | slice) -> Node | list[Node]:
        if isinstance(index, slice):
            return list(map(Node, self._seqs[index], self._data[index]))
        return Node(self._seqs[index], self._data[index])

    def __iter__(self) -> Iterator[Node]:
        return map(Node, self._seqs, self._data)

    def __repr__(self) -> str:
        return f"<Nodes: {len(self)}>"


def is_snapshot(message: Message) -> bool:
    """Whether *message* is a runtime-context snapshot of ours, or the cleared marker."""
    return (
        isinstance(message, UserMessage)
        and isinstance(message.source, PluginSource)
        and message.source.plugin == texts.SYSTEM_PROMPT_PLUGIN
    )


@define(eq=False)
class Surface:
    """Nodes in order, and the history derived from them.

    *generation* counts replacements: a request after one starts a new series (C96).
    """

    generation: int = 0
    system: Sequence[Node] = ()
    snapshots: Sequence[Node] = ()
    # Of each node: two lists, and not an object that the collector looks at for each.
    _seqs: Sequence[int] = ()
    _data: Sequence[SurfaceData] = ()
    _positions: dict[int, int] | None = None
    """Where the node of a seq is, once something was replaced; before that they ascend."""
    _messages: Sequence[Message] = ()
    _empty: Sequence[int] = ()
    """The positions of nodes without content, ascending."""

    @property
    def nodes(self) -> Nodes:
        """What the model sees, as events: their seqs and data."""
        return Nodes(self._seqs, self._data)

    def history(self) -> Messages:
        """The messages the model sees now; nodes with empty content are left out."""
        return Messages(self._messages, len(self._messages))

    def shows(self, messages: Sequence[Message]) -> bool:
        """Whether *messages* is the view that `history` gives now. Costs nothing."""
        return (
            isinstance(messages, Messages)
            and messages._items is self._messages
            and len(messages) == len(self._messages)
        )

    def span(self, start: int, end: int) -> Sequence[Node] | None:
        """The nodes from seq *start* to seq *end*, or None if they are no range."""
        first, last = self._position(start), self._position(end)
        if first is None or last is None or first > last:
            return None
        return self.nodes[first : last + 1]

    def _position(self, seq: int) -> int | None:
        """Where the node of *seq* is."""
        if self._positions is not None:
            return self._positions.get(seq)
        index = bisect_left(self._seqs, seq)
        return index if index < len(self._seqs) and self._seqs[index] == seq else None

    def judge(self, event: Event) -> None:
        """Raise `IllegalEvent` unless the event's surface operation is possible."""
        op, sources = event.surface_op, event.sources
        if isinstance(event.data, SURFACE_TYPES) != (op is not None):
            wanted = "a surface operation" if op is None else "no surface operation"
            raise IllegalEvent(event.seq, type(event.data).__name__, wanted)
        if type(op) is Replace:
            self._judge_replace(event, op.start, op.end)
        if sources:
            least, most = bounds(sources)
            if not 0 <= least <= most < event.seq:
                name = type(event.data).__name__
                raise IllegalEvent(event.seq, name, "sources that are earlier events")

    def _judge_replace(self, event: Event, start: int, end: int) -> None:
        what = f"a replacement of {start}..{end}"
        shadowed = self.span(start, end)
        if shadowed is None:
            raise IllegalEvent(event.seq, what, "a range of nodes that are on the surface")
        missing = {node.seq for node in shadowed} - set(event.sources or ())
        if missing:
            raise IllegalEvent(
                event.seq, what, f"sources that cite every shadowed node, {sorted(missing)} too"
            )
        if isinstance(event.data, ToolResultEvent):
            old = shadowed[0].data
            if len(shadowed) != 1 or not isinstance(old, ToolResultEvent):
                raise IllegalEvent(event.seq, what, "exactly one tool result to replace")
            if _identity(old) != _identity(event.data):
                raise IllegalEvent(event.seq, what, "a tool result that differs in content only")

    def move(self, event: Event) -> None:
        """Take *event*, which `judge` let pass."""
        op, data = event.surface_op, event.data
        if op is None:
            return
        if type(op) is Append:
            self.push(event.seq, data)  # type: ignore[arg-type]  # `judge` has looked
            return
        assert isinstance(op, Replace)
        node = Node(event.seq, data)  # type: ignore[arg-type]
        first, last = self._position(op.start), self._position(op.end)
        assert first is not None  # `judge` has looked
        assert last is not None
        self.generation += 1
        nodes = self.nodes
        if first == last and not _listed(node) and not _listed(nodes[first]):
            self._exchange(first, node)
            return
        left = [*nodes[:first], node, *nodes[last + 1 :]]
        self._seqs, self._data, self._messages, self._empty = (), (), (), ()
        self._positions, self.system, self.snapshots = {}, (), ()
        for kept in left:
            self.push(kept.seq, kept.data)

    def _exchange(self, position: int, node: Node) -> None:
        """Put *node* in the place of one other: the lists are copied, and nothing is done
        for each of their items. One result after another is shortened so."""
        old = self.nodes[position]
        seqs, data = [*self._seqs], [*self._data]
        messages, empty = [*self._messages], [*self._empty]
        seqs[position], data[position] = node.seq, node.data
        if self._positions is None:
            self._positions = {seq: index for index, seq in enumerate(self._seqs)}
        del self._positions[old.seq]
        self._positions[node.seq] = position
        before = bisect_left(empty, position)
        index = position - before
        if old.message.content:
            del messages[index]
        else:
            del empty[before]
        if node.message.content:
            messages.insert(index, node.message)
        else:
            empty.insert(before, position)
        self._seqs, self._data, self._messages, self._empty = seqs, data, messages, empty

    def push(self, seq: int, data: SurfaceData) -> None:
        """The node of event *seq* comes to the end."""
        message = data.message
        kind = type(message)
        if kind is SystemMessage:
            self.system = added(self.system, Node(seq, data))
        elif kind is UserMessage and is_snapshot(message):
            self.snapshots = added(self.snapshots, Node(seq, data))
        seqs, messages = self._seqs, self._messages
        if self._positions is not None:
            self._positions[seq] = len(seqs)
        if not message.content:
            self._empty = added(self._empty, len(seqs))
        elif isinstance(messages, list):  # as `added`, for most events of most steps
            messages.append(message)
        else:
            self._messages = [message]
        if isinstance(seqs, list):
            seqs.append(seq)
            self._data.append(data)  # type: ignore[attr-defined]  # a list as well
        else:
            self._seqs, self._data = [seq], [data]


def _listed(node: Node) -> bool:
    return isinstance(node.message, SystemMessage) or is_snapshot(node.message)


def _identity(data: ToolResultEvent) -> tuple[object, ...]:
    flags = tuple(
        (b.tool_call_id, b.is_error) for b in data.message.content if isinstance(b, ToolResultBlock)
    )
    return (data.turn, data.step, data.message.id, data.message.source, data.error, flags)


FOLDED = frozenset({RequestHeaderEvent, RequestContextEvent, ModelSelected})
"""The events that move `Folds`."""


@define(eq=False)
class Folds:
    """The latest header, context and model selection; every tool ever declared."""

    header: RequestHeader | None = None
    header_seq: int | None = None
    context: RequestContextEvent | None = None
    selection: ModelSelection | None = None
    _history: ToolHistory = ToolHistory()
    _source: ModelSource | None = None

    def model_source(self, replay_state: JsonValue) -> ModelSource:
        """Who answers the requests of the header."""
        known = self._source
        if replay_state is None and known is not None:
            return known
        config = self.header.config if self.header else None
        made = ModelSource(
            config.provider if config else "unknown",
            config.model if config else "unknown",
            replay_state,
        )
        if replay_state is None:
            self._source = made
        return made

    def move(self, event: Event) -> None:
        data: EventData = event.data
        match data:
            case RequestHeaderEvent(header=header):
                self.header, self.header_seq, self._source = header, event.seq, None
                self._declare(header.tools)
            case RequestContextEvent():
                self.context = data
            case ModelSelected(selection=selection):
                self.selection = selection
            case _:
                pass

    def _declare(self, tools: tuple[ToolSchema, ...]) -> None:
        declared = {tool.name: tool for tool in self._history.declared}
        changed = False
        for tool in tools:
            if declared.get(tool.name) != tool:
                declared[tool.name] = tool
                changed = True
        if changed:
            known = tuple(declared.values())
            self._history = ToolHistory(declared=tools if known == tools else known)

    def tool_history(self) -> ToolHistory:
        return self._history
