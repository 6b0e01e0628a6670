"""The block assembler: laws of streams (C106-C111)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, strategies as st
from tests.strategies import json_objects
from tests.strategies_logs import CALL_IDS, COMPLETE, FAILED, INDICES, PIECES

from terzetto.vocabulary import (
    AbortedFinish,
    AssistantBlock,
    BlockAssembler,
    BlockEnd,
    BlockStart,
    CallId,
    ErrorFinish,
    Finish,
    JsonObject,
    MaxTokens,
    ReasoningBlock,
    ReasoningDelta,
    Stop,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCalls,
    Usage,
    UsageChunk,
    assemble,
    freeze_json,
    is_complete,
)

TEXT = "one \U0001f600 two\u0301 \t\n three"


def blocks() -> st.SearchStrategy[AssistantBlock]:
    text = st.sampled_from(PIECES)
    return (
        st.builds(TextBlock, text)
        | st.builds(ReasoningBlock, text)
        | st.builds(ToolCallBlock, st.sampled_from(CALL_IDS), st.just("tool"), text)
    )


def deltas() -> st.SearchStrategy[StreamChunk]:
    index, text = st.sampled_from(INDICES), st.sampled_from(PIECES)
    return (
        st.builds(TextDelta, index, text)
        | st.builds(ReasoningDelta, index, text)
        | st.builds(
            ToolCallDelta, index, st.sampled_from(CALL_IDS), text, st.sampled_from([None, "tool"])
        )
    )


def usages() -> st.SearchStrategy[Usage]:
    return st.builds(Usage, input_tokens=st.integers(0, 9), output_tokens=st.integers(0, 9))


def finishes() -> st.SearchStrategy[Finish]:
    states = st.none() | json_objects()
    return st.builds(Finish, st.sampled_from(COMPLETE + FAILED), states)


def streams(max_size: int = 14) -> st.SearchStrategy[list[StreamChunk]]:
    """Chunks in any order at all."""
    any_chunk = (
        deltas()
        | deltas()
        | st.builds(
            BlockStart,
            st.sampled_from(INDICES),
            st.sampled_from(["text", "reasoning", "tool-call"]),
        )
        | st.builds(BlockEnd, st.sampled_from(INDICES), blocks())
        | st.builds(UsageChunk, usages())
        | finishes()
    )
    return st.lists(any_chunk, max_size=max_size)


def content(chunks: Sequence[StreamChunk]) -> tuple[AssistantBlock, ...]:
    """The content, whatever the finish says of calls."""
    return assemble([c for c in chunks if not isinstance(c, Finish)]).assembled().content


def indices(chunks: Sequence[StreamChunk]) -> list[int]:
    """Of the blocks, by first appearance."""
    return list(dict.fromkeys(c.index for c in chunks if hasattr(c, "index")))


# --- text -----------------------------------------------------------------------------------

MAKERS: dict[str, tuple[Callable[[str], StreamChunk], Callable[[str], AssistantBlock]]] = {
    "text": (lambda t: TextDelta(0, t), TextBlock),
    "reasoning": (lambda t: ReasoningDelta(0, t), ReasoningBlock),
    "tool-call": (
        lambda t: ToolCallDelta(0, CallId("c"), t, "tool"),
        lambda t: ToolCallBlock(CallId("c"), "tool", t),
    ),
}


@given(st.sampled_from(sorted(MAKERS)), st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_splitting_deltas_differently_gives_the_same_block(kind: str, cuts: list[int]) -> None:
    """C108."""
    delta, block = MAKERS[kind]
    edges = [0, *sorted(cuts), len(TEXT)]
    parts = [TEXT[a:b] for a, b in pairwise(edges)]
    assert content([delta(part) for part in parts]) == (block(TEXT),)
    started = BlockStart(0, kind)  # type: ignore[arg-type]
    assert content([started, *map(delta, parts)]) == (block(TEXT),)


@given(streams(), st.data())
def test_splitting_any_delta_of_any_stream_changes_nothing(
    chunks: list[StreamChunk], data: st.DataObject
) -> None:
    """C108: usage, finish and every block stay what they were."""
    split: list[StreamChunk] = []
    for chunk in chunks:
        if isinstance(chunk, (TextDelta, ReasoningDelta)):
            cut = data.draw(st.integers(0, len(chunk.text)))
            split += [evolve(chunk, text=chunk.text[:cut]), evolve(chunk, text=chunk.text[cut:])]
        elif isinstance(chunk, ToolCallDelta):
            cut = data.draw(st.integers(0, len(chunk.arguments_delta)))
            first, second = chunk.arguments_delta[:cut], chunk.arguments_delta[cut:]
            split.append(evolve(chunk, arguments_delta=first))
            # What continues a call may repeat or blank its identity.
            rest = evolve(chunk, arguments_delta=second)
            split.append(evolve(rest, id=CallId(""), name=None) if cut % 2 else rest)
        else:
            split.append(chunk)
    assert assemble(split).assembled() == assemble(chunks).assembled()
    assert assemble(split).delivered_prefix() == assemble(chunks).delivered_prefix()


@given(st.lists(st.tuples(st.sampled_from(INDICES), st.sampled_from(PIECES)), max_size=12))
def test_interleaved_blocks_are_kept_apart(parts: list[tuple[int, str]]) -> None:
    """C108: in the order in which they first appeared, not that of their numbers."""
    order = list(dict.fromkeys(index for index, _ in parts))
    expected = tuple(TextBlock("".join(t for i, t in parts if i == index)) for index in order)
    assert content([TextDelta(index, text) for index, text in parts]) == expected


@given(streams())
def test_blocks_stand_by_first_appearance(chunks: list[StreamChunk]) -> None:
    """C108: one for each index that was named, starts and ends included."""
    whole = content(chunks)
    assert len(whole) == len(indices(chunks))
    for index, block in zip(indices(chunks), whole, strict=True):
        own = [c for c in chunks if getattr(c, "index", None) == index]
        assert content(own) == (block,)


# --- ends -----------------------------------------------------------------------------------


@given(streams(), blocks(), st.sampled_from(INDICES), streams())
def test_an_end_is_final(
    before: list[StreamChunk],
    block: AssistantBlock,
    index: int,
    after: list[StreamChunk],
) -> None:
    """C108: authoritative over its deltas; deltas, starts and ends after it are ignored."""
    before = [c for c in before if not (isinstance(c, BlockEnd) and c.index == index)]
    chunks = [*before, BlockEnd(index, block), *after]
    assert content(chunks)[indices(chunks).index(index)] == block


@pytest.mark.parametrize(
    "late",
    [
        TextDelta(0, "more"),
        ReasoningDelta(0, "more"),
        ToolCallDelta(0, CallId("late"), "more", "late"),
        BlockStart(0, "tool-call"),
        BlockEnd(0, TextBlock("other")),
    ],
    ids=lambda chunk: type(chunk).__name__,
)
@pytest.mark.parametrize(
    "block", [TextBlock("text"), ToolCallBlock(CallId("c"), "tool", "{}")], ids=["text", "call"]
)
def test_what_comes_after_an_end_is_ignored(late: StreamChunk, block: AssistantBlock) -> None:
    """C108."""
    assert content([BlockEnd(0, block), late]) == (block,)


def test_deltas_of_another_kind_are_ignored() -> None:
    """C108: a block is what it was opened as."""
    chunks: list[StreamChunk] = [
        TextDelta(0, "a"),
        ReasoningDelta(0, "b"),
        ToolCallDelta(0, CallId("c"), "{}", "tool"),
        TextDelta(0, "d"),
    ]
    assert content(chunks) == (TextBlock("ad"),)


def test_an_opened_block_without_deltas_is_empty() -> None:
    """C108."""
    assert content([BlockStart(1, "reasoning"), BlockStart(0, "tool-call")]) == (
        ReasoningBlock(""),
        ToolCallBlock(CallId(""), "", ""),
    )


def test_the_first_identity_of_a_call_stands() -> None:
    """C108: continuations repeat it, blank it, or bring it late."""
    chunks: list[StreamChunk] = [
        ToolCallDelta(0, CallId(""), "{"),
        ToolCallDelta(0, CallId("c1"), '"a"', ""),
        ToolCallDelta(0, CallId("c2"), ":1", "tool"),
        ToolCallDelta(0, CallId(""), "}", "other"),
    ]
    assert content(chunks) == (ToolCallBlock(CallId("c1"), "tool", '{"a":1}'),)


# --- usage and finish -----------------------------------------------------------------------


@given(streams())
def test_the_last_finish_and_the_last_usage_win(chunks: list[StreamChunk]) -> None:
    """C106, REFERENCE 2.9: chunks after a finish are assembled too."""
    assembler = assemble(chunks)
    finishes = [c for c in chunks if isinstance(c, Finish)]
    usages = [c.usage for c in chunks if isinstance(c, UsageChunk)]
    assert assembler.finish == (finishes[-1] if finishes else None)
    assert assembler.usage == (usages[-1] if usages else None)
    assembled = assembler.assembled()
    assert assembled.usage == assembler.usage
    if not finishes or not isinstance(finishes[-1].reason, MaxTokens):
        assert assembled.content == content(chunks)
        assert assembled.replay_state == (finishes[-1].replay_state if finishes else None)


def test_a_later_finish_brings_calls_back() -> None:
    """REFERENCE 2.9."""
    call = BlockEnd(0, ToolCallBlock(CallId("c"), "tool", "{}"))
    assert assemble([call, Finish(Stop()), Finish(MaxTokens())]).assembled().content == ()
    assert assemble([call, Finish(MaxTokens()), Finish(Stop())]).assembled().content != ()


@given(streams())
def test_max_tokens_drops_every_call_and_nothing_else(chunks: list[StreamChunk]) -> None:
    """C110."""
    cut = assemble([*chunks, Finish(MaxTokens())]).assembled()
    assert cut.content == tuple(b for b in content(chunks) if not isinstance(b, ToolCallBlock))


@given(st.lists(blocks(), max_size=5), st.booleans())
def test_replay_entries_go_with_their_blocks(found: list[AssistantBlock], cut: bool) -> None:
    """C111: entries of dropped blocks are dropped, all else of the state stays."""
    entries = [{"of": number} for number in range(len(found))]
    state = freeze_json({"blocks": entries, "id": "r1"})
    ends: list[StreamChunk] = [BlockEnd(i, block) for i, block in enumerate(found)]
    chunks = [*ends, Finish(MaxTokens() if cut else ToolCalls(), state)]
    assembled = assemble(chunks).assembled()
    kept = [
        entry
        for entry, block in zip(entries, found, strict=True)
        if not (cut and isinstance(block, ToolCallBlock))
    ]
    assert assembled.replay_state == freeze_json({"blocks": kept, "id": "r1"})
    assert len(assembled.content) == len(kept)
    visible = [
        entry
        for entry, block in zip(entries, found, strict=True)
        if not isinstance(block, ToolCallBlock) and block.text.strip()
    ]
    prefix = assemble(chunks).delivered_prefix()
    assert (prefix is None) == (not visible)
    if prefix is not None:
        assert prefix.replay_state == freeze_json({"blocks": visible, "id": "r1"})


@pytest.mark.parametrize(
    "state",
    [None, "opaque", 7, [1, 2], {}, {"id": 1}, {"blocks": "x"}, {"blocks": [1]}, {"blocks": {}}],
    ids=repr,
)
def test_other_replay_states_are_kept_as_they_are(state: Any) -> None:
    """C111: they are the adapter's own."""
    frozen = freeze_json(state)
    chunks: list[StreamChunk] = [
        BlockEnd(0, TextBlock("a")),
        BlockEnd(1, ToolCallBlock(CallId("c"), "tool", "{}")),
        Finish(MaxTokens(), frozen),
    ]
    assert assemble(chunks).assembled().replay_state == frozen
    assert assemble(chunks[:2]).assembled().replay_state is None


def test_pruning_leaves_the_logged_state_alone() -> None:
    """C111: the chunk in the log keeps what the provider sent."""
    state = freeze_json({"blocks": [1, 2]})
    finish = Finish(MaxTokens(), state)
    call = BlockEnd(1, ToolCallBlock(CallId("c"), "tool", "{}"))
    assembled = assemble([BlockEnd(0, TextBlock("a")), call, finish]).assembled()
    assert assembled.replay_state == JsonObject({"blocks": (1,)})
    assert finish.replay_state == freeze_json({"blocks": [1, 2]})


# --- the delivered prefix -------------------------------------------------------------------


@given(streams())
def test_the_delivered_prefix_is_what_a_reader_saw(chunks: list[StreamChunk]) -> None:
    """C107: the text and reasoning that are not blank, verbatim, and never a call."""
    prefix = assemble(chunks).delivered_prefix()
    shown = tuple(
        block
        for block in content(chunks)
        if not isinstance(block, ToolCallBlock) and block.text.strip()
    )
    if prefix is None:
        assert shown == ()
    else:
        assert prefix.content == shown
        assert shown
        assert prefix.usage == assemble(chunks).usage


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [TextDelta(0, "")],
        [TextDelta(0, " \t\r\n\u00a0\u2003")],
        [ReasoningDelta(0, "\n"), TextDelta(1, " ")],
        [ToolCallDelta(0, CallId("c"), '{"a"', "tool")],
        [BlockEnd(0, ToolCallBlock(CallId("c"), "tool", "{}"))],
        [BlockStart(0, "text"), BlockStart(1, "reasoning")],
        [UsageChunk(Usage(input_tokens=1, output_tokens=1))],
    ],
    ids=["nothing", "empty", "blank", "both blank", "half call", "call", "started", "usage"],
)
def test_nothing_visible_is_no_prefix(chunks: list[StreamChunk]) -> None:
    """C107."""
    assert assemble(chunks).delivered_prefix() is None


def test_a_prefix_is_verbatim() -> None:
    """C107: not stripped, not closed, in order."""
    chunks: list[StreamChunk] = [
        TextDelta(2, "  a"),
        ToolCallDelta(0, CallId("c"), "{", "tool"),
        ReasoningDelta(1, "b\n"),
        TextDelta(2, " "),
        TextDelta(3, " "),
    ]
    prefix = assemble(chunks).delivered_prefix()
    assert prefix is not None
    assert prefix.content == (TextBlock("  a "), ReasoningBlock("b\n"))
    assert prefix.replay_state is None


# --- feeding --------------------------------------------------------------------------------


@given(streams())
def test_looking_does_not_disturb(chunks: list[StreamChunk]) -> None:
    """The assembler may be read at any moment, and goes on."""
    assembler = BlockAssembler()
    for length, chunk in enumerate(chunks, 1):
        assembler.push(chunk)
        assert assembler.assembled() == assemble(chunks[:length]).assembled()
        assert assembler.delivered_prefix() == assemble(chunks[:length]).delivered_prefix()


@given(streams())
def test_a_longer_prefix_only_grows(chunks: list[StreamChunk]) -> None:
    """C107: while no end rewrites a block, what was delivered stays delivered."""
    deltas = [c for c in chunks if not isinstance(c, (BlockEnd, Finish))]
    before: dict[int, str] = {}
    for length in range(len(deltas) + 1):
        fed = deltas[:length]
        shown = {
            index: block.text
            for index, block in zip(indices(fed), content(fed), strict=True)
            if not isinstance(block, ToolCallBlock) and block.text.strip()
        }
        prefix = assemble(fed).delivered_prefix()
        assert len(shown) == (len(prefix.content) if prefix else 0)
        assert all(shown[index].startswith(text) for index, text in before.items())
        before = shown


class CountingParts(list[str]):
    """A list of parts that counts what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.appends = 0
        self.reads = 0

    def append(self, part: str) -> None:
        self.appends += 1
        super().append(part)

    def __iter__(self) -> Any:
        self.reads += 1
        return super().__iter__()


def test_many_tiny_deltas_cost_one_step_each() -> None:
    """Linear: each delta is put on a list and joined once, and the text is made once, when it
    is asked for. What is kept meanwhile is few parts, however many deltas they came in."""
    count = 200_000
    assembler = BlockAssembler()
    assembler.push(TextDelta(0, ""))
    (building,) = assembler._blocks.values()
    parts = building.parts = CountingParts()
    delta = TextDelta(0, "x")
    for _ in range(count):
        assembler.push(delta)
    assert (parts.appends, parts.reads) == (count, 0)
    assert len(parts) < count / 200
    assert sum(len(parts[i]) for i in range(len(parts))) == count
    assert len(assembler._blocks) == 1
    assert assembler.assembled().content == (TextBlock("x" * count),)
    assert parts.reads <= 1


def test_the_state_grows_with_the_deltas_and_no_faster() -> None:
    """Linear: twice the deltas are twice the parts, of the same size."""

    def size(count: int) -> int:
        assembler = assemble([ReasoningDelta(n % 3, "ab") for n in range(count)])
        return sum(len(part) for b in assembler._blocks.values() for part in b.parts)

    assert size(2_000) == 2 * size(1_000) == 4_000


@pytest.mark.parametrize("reason", COMPLETE + FAILED, ids=repr)
def test_failures_are_not_answers(reason: Any) -> None:
    """C109."""
    assert is_complete(reason) is not isinstance(reason, (ErrorFinish, AbortedFinish))
