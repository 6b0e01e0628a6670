"""Hypothesis strategies of whole logs that a session accepts.

Logs are made from the top down: turns of steps, steps of attempts, attempts of chunks, with
edits of the inbox, replacements and facts of extras wherever those may come. Everything odd
that the order allows is in them: duplicate call ids, results without calls, retries, chunks
after a finish, rewritten and dropped input, partial claims.

One draw makes a whole log: its choices are read from a tape of bytes, and an exhausted tape
reads as zeros, the plainest choices. So a log costs little and shrinks well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from attrs import define, evolve, field
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from .. import vocabulary as v

T = TypeVar("T")
Log: TypeAlias = tuple[v.Event, ...]
START_MS = 1_700_000_000_000
LIMIT = v.Failure(message="slow down", code="RATE_LIMIT")
PIECES = ("a", "b ", "", " ", "\n\t", " é", "\U0001f600")
CALL_IDS = tuple(map(v.CallId, ("c1", "c2", "c3")))
INDICES = (0, 1, 2, 3)
COMPLETE: tuple[v.FinishReason, ...] = (v.Stop(), v.ToolCalls(), v.MaxTokens())
FAILED: tuple[v.FinishReason, ...] = (v.ErrorFinish(LIMIT), v.AbortedFinish(LIMIT))


@define(eq=False)
class Tape:
    """Choices, one byte each."""

    data: bytes
    read: int = 0

    def below(self, limit: int) -> int:
        byte = self.data[self.read] if self.read < len(self.data) else 0
        self.read += 1
        return byte % limit

    def chance(self, percent: int) -> bool:
        return self.below(256) * 100 >= (100 - percent) * 256

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]


def tapes(max_size: int = 300) -> SearchStrategy[Tape]:
    sized = st.integers(0, max_size).flatmap(lambda n: st.binary(min_size=n, max_size=n))
    return sized.map(Tape)


def block(tape: Tape) -> v.AssistantBlock:
    kinds = (v.TextBlock, v.ReasoningBlock, v.ToolCallBlock)
    match tape.below(len(kinds)):
        case 0:
            return v.TextBlock(tape.pick(PIECES))
        case 1:
            return v.ReasoningBlock(tape.pick(PIECES))
        case _:
            return v.ToolCallBlock(tape.pick(CALL_IDS), tape.pick(("tool", "other")), "{}")


def chunk(tape: Tape) -> v.StreamChunk:
    """Any chunk but a finish."""
    index = tape.pick(INDICES)
    match tape.below(8):
        case 0 | 1:
            return v.TextDelta(index, tape.pick(PIECES))
        case 2:
            return v.ReasoningDelta(index, tape.pick(PIECES))
        case 3 | 4:
            name = tape.pick((None, "tool", "other"))
            return v.ToolCallDelta(index, tape.pick(CALL_IDS), tape.pick(PIECES), name)
        case 5:
            return v.BlockStart(index, tape.pick(("text", "reasoning", "tool-call")))
        case 6:
            return v.BlockEnd(index, block(tape))
        case _:
            usage = v.Usage(input_tokens=tape.below(9), output_tokens=tape.below(9))
            return v.UsageChunk(usage)


@define(eq=False)
class _Writer:
    """A log in the making, with as much of its state as is needed to go on legally."""

    tape: Tape
    splitting: bool
    events: list[v.Event] = field(factory=list)
    lists: dict[Any, list[v.UserMessage]] = field(
        factory=lambda: {"next-step": [], "next-turn": []}
    )
    nodes: list[v.Event] = field(factory=list)
    turn: int = 0
    step: int = 0
    ids: int = 0

    def add(
        self,
        data: v.EventData,
        op: v.SurfaceOp | None = None,
        sources: tuple[int, ...] | None = None,
        *,
        ignorable: bool = False,
    ) -> int:
        seq = len(self.events)
        time_ms = START_MS + seq // 3  # several events share a millisecond
        event = v.Event(seq, time_ms, data, op, sources, ignorable)
        self.events.append(event)
        if isinstance(op, v.Append):
            self.nodes.append(event)
        elif isinstance(op, v.Replace):
            seqs = [node.seq for node in self.nodes]
            self.nodes[seqs.index(op.start) : seqs.index(op.end) + 1] = [event]
        return seq

    def new_id(self) -> v.MessageId:
        self.ids += 1
        return v.MessageId(f"m{self.ids}")

    def message(self, text: str | None = None) -> v.UserMessage:
        text = self.tape.pick(PIECES) if text is None else text
        return v.UserMessage(text, v.USER, self.new_id())

    # --- anywhere -----------------------------------------------------------------------

    def asides(self) -> None:
        """Nothing mostly, or events that may come anywhere."""
        while self.tape.chance(12):
            self.tape.pick([self.edit, self.edit, self.fact, self.replacement])()

    def edit(self) -> None:
        target = self.tape.pick(("next-turn", "next-step"))
        pending = self.lists[target]
        inserted = tuple(self.message() for _ in range(2 - self.tape.below(3)))
        start = self.tape.below(len(pending) + 1)
        removed = self.tape.below(min(2, len(pending) - start) + 1)
        if removed or inserted:
            self.splice(target, start, removed, inserted, "canceled" if removed else None)

    def splice(
        self,
        target: Any,
        start: int,
        removed: int,
        inserted: tuple[v.UserMessage, ...] = (),
        outcome: Any = None,
    ) -> list[v.UserMessage]:
        gone = self.lists[target][start : start + removed]
        self.lists[target][start : start + removed] = inserted
        self.add(v.InboxSpliced(target, start, removed, inserted, outcome))
        return gone

    def fact(self) -> None:
        facts: list[v.EventData] = [
            v.Extension("app/note", v.freeze_object({"n": len(self.events)})),
            v.ModelSelected(v.ModelSelection("p", f"m{self.turn}")),
            v.CompactionStart("k"),
            v.CompactionSummary("k", "short"),
            v.CompactionEnd("k"),
        ]
        self.add(self.tape.pick(facts), ignorable=self.tape.chance(50))

    def replacement(self) -> None:
        """A user message for nodes, or a tool result with other content.

        Without *splitting* no call is separated from its result.
        """
        results = [n for n in self.nodes if isinstance(n.data, v.ToolResultEvent)]
        if results and self.tape.chance(50):
            node = self.tape.pick(results)
            data: Any = node.data
            blocks = (evolve(data.message.content[0], content=(v.TextBlock("pruned"),)),)
            pruned = evolve(data, message=evolve(data.message, content=blocks))
            self.add(pruned, v.Replace(node.seq, node.seq), (node.seq,))
            return
        spans = [
            self.nodes[i : j + 1]
            for i in range(len(self.nodes))
            for j in range(i, min(i + 4, len(self.nodes)))
        ]
        if not self.splitting:
            spans = [
                span
                for span in spans
                if all(isinstance(node.data, v.UserMessageEvent) for node in span)
            ]
        if spans:
            seqs = tuple(node.seq for node in self.tape.pick(spans))
            extra = (0,) if self.tape.chance(20) and 0 not in seqs else ()
            message = self.message("instead")
            if self.tape.chance(30):
                message = evolve(message, content=())
            self.add(v.UserMessageEvent(message), v.Replace(seqs[0], seqs[-1]), (*extra, *seqs))

    # --- turns --------------------------------------------------------------------------

    def one_turn(self) -> None:
        self.turn, self.step = self.turn + 1, 0
        self.add(v.TurnStart(self.turn))
        self.asides()
        claimed = self.claim("next-step", not self.tape.chance(10))
        claimed += self.claim("next-turn", True, 1)
        self.asides()
        for _ in range(self.tape.pick((1, 2, 0, 3))):
            self.one_step(claimed)
            self.asides()
            claimed = self.claim("next-step", not self.tape.chance(10))
        endings: list[v.TurnEnding] = [
            v.Completed(),
            v.Blocked(),
            v.Aborted(v.UserCause()),
            v.Failed(LIMIT),
            v.EndedAtMaxTokens(),
            v.Interrupted(),
        ]
        self.add(v.TurnEnd(self.turn, self.tape.pick(endings)))

    def claim(self, target: Any, take: bool, count: int | None = None) -> list[v.UserMessage]:
        size = len(self.lists[target])
        count = size if count is None else min(count, size)
        return self.splice(target, 0, count) if take and count else []

    def one_step(self, claimed: list[v.UserMessage]) -> None:
        self.step += 1
        here = {"turn": self.turn, "step": self.step}
        self.add(v.StepStart(**here))
        self.asides()
        batch = self.batch(claimed)
        while True:
            self.request(here, batch)
            self.asides()
            attempt = self.stream(here)
            if not self.tape.chance(25):
                break
            failed = v.Finish(self.tape.pick(FAILED))
            self.add(v.AssistantChunk(**here, chunk=failed))
            self.asides()
            batch = []
            if self.tape.chance(50):
                self.add(v.LlmRetry(**here, retry_id="r", attempt=1, delay_ms=5, failure=LIMIT))
                self.add(v.LlmRetryStarted(**here, retry_id="r"))
        if not self.tape.chance(15):
            self.answer(here, attempt)
        self.add(v.StepEnd(**here))

    def batch(self, claimed: list[v.UserMessage]) -> list[v.UserMessage]:
        """What is entered of *claimed*: some dropped, some rewritten, some new."""
        entered = [message for message in claimed if not self.tape.chance(15)]
        entered = [
            evolve(message, content="rewritten") if self.tape.chance(10) else message
            for message in entered
        ]
        return entered + ([self.message("added")] if self.tape.chance(20) else [])

    def request(self, here: dict[str, int], batch: list[v.UserMessage]) -> None:
        if self.tape.chance(40):
            self.system(here)
        for message in batch:
            self.add(v.UserMessageEvent(message), v.APPEND)
        if self.tape.chance(50):
            config = v.CallConfig(provider="p", model=f"m{len(self.events)}")
            header = v.RequestHeader(config=config)
            seq = self.add(v.RequestHeaderEvent(header, "change"))
            if self.tape.chance(30):
                blocks = (v.ToolAdditionBlock("tool"),)
                added = v.DeveloperMessage(blocks, id=self.new_id())
                self.add(v.DeveloperMessageEvent(**here, message=added, header_seq=seq), v.APPEND)
        if self.tape.chance(30):
            self.add(v.RequestContextEvent("p", f"m{len(self.events)}"))

    def system(self, here: dict[str, int]) -> None:
        content = () if self.tape.chance(30) else (v.TextBlock("prompt"),)
        source = v.PluginSource(v.texts.SYSTEM_PROMPT_PLUGIN)
        message = v.SystemMessage(content, source, self.new_id())
        event = v.SystemMessageEvent(**here, message=message)
        nodes = [n for n in self.nodes if isinstance(n.data, v.SystemMessageEvent)]
        if nodes and self.tape.chance(60):
            seq = self.tape.pick(nodes).seq
            self.add(event, v.Replace(seq, seq), (seq,))
        else:
            self.add(event, v.APPEND)

    def stream(self, here: dict[str, int]) -> tuple[int, ...]:
        chunks = [chunk(self.tape) for _ in range(self.tape.below(7))]
        if self.tape.chance(60):
            state = v.freeze_json({"blocks": [1, 2]}) if self.tape.chance(30) else None
            chunks.append(v.Finish(self.tape.pick(COMPLETE), state))
            if self.tape.chance(15):
                chunks.append(chunk(self.tape))
        seqs = []
        for each in chunks:
            seqs.append(self.add(v.AssistantChunk(**here, chunk=each)))
            self.asides()
        return tuple(seqs)

    def answer(self, here: dict[str, Any], attempt: tuple[int, ...]) -> None:
        blocks = tuple(block(self.tape) for _ in range(self.tape.below(5)))
        message = v.AssistantMessage(blocks, v.ModelSource("p", "m"), self.new_id())
        self.add(v.AssistantMessageEvent(**here, message=message), v.APPEND, attempt)
        self.asides()
        calls = message.tool_calls
        recorded_at: dict[int, int] = {}
        called = 0
        for index, call in enumerate(calls):
            called = max(called, index)
            while called < len(calls) and self.tape.chance(60):
                recorded_at[called] = self.call(here, calls[called])
                called += 1
            self.result(here, call, recorded_at.get(index))

    def call(self, here: dict[str, int], call: v.ToolCallBlock) -> int:
        data = v.ToolCallEvent(**here, call_id=call.id, name=call.name, arguments=call.arguments)
        seq = self.add(data)
        self.asides()
        return seq

    def result(self, here: dict[str, int], call: v.ToolCallBlock, cited: int | None) -> None:
        is_error = self.tape.chance(20)
        answer = v.ToolResultBlock(call.id, (v.TextBlock("ok"),), is_error)
        message = v.UserMessage((answer,), v.ToolSource(call.id), self.new_id())
        error = v.ToolErrorInfo("E", "CODE") if is_error else None
        sources = None if cited is None else (cited,)
        self.add(v.ToolResultEvent(**here, message=message, error=error), v.APPEND, sources)
        self.asides()


def written(tape: Tape, *, splitting: bool) -> Log:
    writer = _Writer(tape, splitting)
    for _ in range(tape.pick((1, 2, 0, 3))):
        for _ in range(tape.below(3)):
            writer.edit()
        writer.asides()
        if tape.chance(15):
            inherited = tape.chance(50)
            writer.add(v.EndSeed(inherited))
            if inherited:
                writer.lists = {"next-step": [], "next-turn": []}
        writer.one_turn()
    return tuple(writer.events)


def legal_logs(*, splitting: bool = False) -> SearchStrategy[Log]:
    """Balanced logs that a live session would accept.

    With *splitting*, replacements may also part calls from their results.
    """
    return tapes().map(lambda tape: written(tape, splitting=splitting))


@st.composite
def open_logs(draw: DrawFn, *, splitting: bool = False) -> Log:
    """Legal logs cut anywhere."""
    log = draw(legal_logs(splitting=splitting))
    return log[: draw(st.integers(0, len(log)))]
