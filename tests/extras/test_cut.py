"""Where a history may be cut: pure, for every budget (BC-45, C133, C166)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st
from tests.llm.strict import judge

from terzetto import PluginSource, TextBlock, UserMessage, evolve
from terzetto.extras._cut import Cut, choose_cut, estimate_tokens, prunings, replacement, units
from terzetto.llm._openai_wire import encode_request
from terzetto.session import Node, Session
from terzetto.testing import history_is_valid
from terzetto.vocabulary import (
    APPEND,
    AssistantMessage,
    AssistantMessageEvent,
    CallConfig,
    CallId,
    Message,
    ModelSource,
    Request,
    SessionHeader,
    SessionId,
    StepEnd,
    StepStart,
    SystemMessage,
    SystemMessageEvent,
    ToolCallBlock,
    ToolResultBlock,
    ToolResultEvent,
    ToolSource,
    TurnStart,
    UserMessageEvent,
)

PROMPT = SystemMessage((TextBlock("be brief"),), PluginSource("prompt"))
MODEL = ModelSource("p", "m")
WORDS = ("a", "some more words", "x" * 40, "é" * 30, "long " * 300)


class Written:
    """A session, written round by round."""

    def __init__(self) -> None:
        self.session = Session(SessionHeader(id=SessionId("s"), created_ms=0), now_ms=lambda: 0)
        self.session.append(TurnStart(1))
        self.step = self.calls = 0

    def round(self, users: list[str], text: str, calls: int, results: list[str]) -> None:
        session, self.step = self.session, self.step + 1
        session.append(StepStart(1, self.step))
        if self.step == 1:
            session.append(SystemMessageEvent(1, 1, PROMPT), APPEND)
        for user in users:
            session.append(UserMessageEvent(UserMessage(user)), APPEND)
        ids = [CallId(f"c{self.calls + i}") for i in range(calls)]
        self.calls += calls
        blocks = (TextBlock(text), *(ToolCallBlock(i, "echo", '{"x":1}') for i in ids))
        answer = AssistantMessageEvent(1, self.step, AssistantMessage(blocks, MODEL))
        session.append(answer, APPEND, ())
        for call_id, result in zip(ids, results, strict=False):
            block = ToolResultBlock(call_id, (TextBlock(result),))
            message = UserMessage((block,), ToolSource(call_id))
            session.append(ToolResultEvent(1, self.step, message), APPEND)
        session.append(StepEnd(1, self.step))

    def say(self, text: str) -> None:
        self.step += 1
        self.session.append(StepStart(1, self.step))
        self.session.append(UserMessageEvent(UserMessage(text)), APPEND)

    @property
    def nodes(self) -> list[Node]:
        return self.session.surface.nodes


@st.composite
def conversations(draw: st.DrawFn) -> Written:
    written = Written()
    for number in range(draw(st.integers(1, 7))):
        users = draw(st.lists(st.sampled_from(WORDS), min_size=number == 0, max_size=2))
        calls = draw(st.integers(0, 3))
        results = draw(st.lists(st.sampled_from(WORDS), min_size=calls, max_size=calls))
        written.round(
            [f"{u} #{number}.{i}." for i, u in enumerate(users)],
            draw(st.sampled_from(WORDS)),
            calls,
            results,
        )
    if draw(st.booleans()):
        written.say("and a last word")  # steering right after results, or a claimed prompt
    return written


def wire_problems(messages: list[Message]) -> list[str]:
    request = Request(session_id=SessionId("s"), config=CONFIG, messages=messages)
    body = encode_request(request)
    return judge(body if isinstance(body, bytes) else json.dumps(body).encode())


CONFIG = CallConfig(provider="p", model="m")


def latest_of_user(messages: list[Message]) -> str | None:
    found = [m.text for m in messages if isinstance(m, UserMessage) and not _is_result(m)]
    return found[-1] if found else None


def _is_result(message: UserMessage) -> bool:
    return any(isinstance(block, ToolResultBlock) for block in message.content)


def rounds(messages: list[Message]) -> list[AssistantMessage]:
    return [m for m in messages if isinstance(m, AssistantMessage)]


@settings(max_examples=40)
@given(conversations(), st.integers(1, 3), st.data())
def test_every_budget_leaves_two_valid_requests(written: Written, keep: int, data) -> None:
    """BC-45: the request for the summary and the next one, whatever is to stay."""
    before = list(written.session.history())
    total = sum(map(estimate_tokens, before))
    budgets = sorted({0, 1, total, *data.draw(st.lists(st.integers(0, total), max_size=12))})
    pieces = [sum(map(estimate_tokens, before[at:])) for at in range(len(before))]
    for budget in sorted({*budgets, *pieces, *(p - 1 for p in pieces)}):
        cut = choose_cut(written.nodes, keep_tokens=budget, keep_rounds=keep)
        if cut is None:
            continue
        asked = [*cut.prefix, UserMessage("Summarize.")]
        assert history_is_valid(asked) == []
        assert wire_problems(asked) == []
        after = shown_after(written, cut)
        assert history_is_valid(after) == []
        assert wire_problems(after) == []
        assert rounds(after) == rounds(before)[-len(rounds(after)) :]
        assert len(rounds(after)) >= keep
        assert after[0] == PROMPT
        latest = latest_of_user(before)
        assert latest is not None
        assert sum(latest in m.text for m in after if isinstance(m, UserMessage)) == 1


def shown_after(written: Written, cut: Cut, summary: str = "S") -> list[Message]:
    """The history once *cut* is replaced, in a copy of the session."""
    copy = Written()
    copy.session = Session(written.session.header, now_ms=lambda: 0)
    from terzetto.session import replay

    replay(copy.session, written.session.events)
    copy.session.replace(cut.start, cut.end, [replacement(cut, summary)])
    return list(copy.session.history())


@settings(max_examples=40)
@given(conversations(), st.integers(0, 2000))
def test_a_cut_is_the_smallest_that_is_enough(written: Written, budget: int) -> None:
    nodes = written.nodes
    cut = choose_cut(nodes, keep_tokens=budget, keep_rounds=1)
    if cut is None:
        return
    kept = [n for n in nodes if n.seq > cut.end]
    assert sum(estimate_tokens(n.message) for n in kept) <= budget or not _one_more(nodes, cut)
    stops = [unit.stop for unit in units(nodes)]
    position = next(i for i, n in enumerate(nodes) if n.seq == cut.end) + 1
    assert position in stops
    shorter = [s for s in stops if s < position and nodes[s - 1].seq >= cut.start]
    for stop in shorter:  # a smaller cut would leave too much
        assert sum(estimate_tokens(n.message) for n in nodes[stop:]) > budget


def _one_more(nodes: list[Node], cut: Cut) -> bool:
    """Whether the unit behind *cut* could be cut away too."""
    larger = choose_cut(nodes, keep_tokens=0, keep_rounds=1)
    return larger is not None and larger.end > cut.end


@settings(max_examples=40)
@given(conversations(), st.integers(1, 400))
def test_a_smaller_request_for_the_summary(written: Written, most: int) -> None:
    """A cut that is bounded takes at most that much, or one unit."""
    cut = choose_cut(written.nodes, keep_tokens=0, keep_rounds=1, at_most=most)
    if cut is not None and cut.tokens > most:
        whole = [u for u in units(written.nodes) if u.kind != "prompt"]
        first = whole[0]
        assert written.nodes[first.stop - 1].seq == cut.end


@settings(max_examples=40)
@given(conversations(), st.integers(1, 3))
def test_pruned_results_change_content_only_and_shrink(written: Written, keep: int) -> None:
    """C153 C166: applied, the history is valid, smaller, and needs no second pruning."""
    before = list(written.session.history())
    changes = prunings(written.nodes, keep_rounds=keep, over=100)
    old = sum(map(estimate_tokens, before))
    recent = {id(m) for m in before[_start_of_kept(before, keep) :]}
    for seq, message in changes:
        node = next(n for n in written.nodes if n.seq == seq)
        assert id(node.message) not in recent
        written.session.replace(seq, seq, [message])
    after = list(written.session.history())
    assert history_is_valid(after) == []
    assert len(after) == len(before)
    if changes:
        assert sum(map(estimate_tokens, after)) < old
    assert prunings(written.nodes, keep_rounds=keep, over=100) == []


def _start_of_kept(messages: list[Message], keep: int) -> int:
    found = [i for i, m in enumerate(messages) if isinstance(m, AssistantMessage)]
    return found[-keep] if len(found) >= keep else 0


def test_a_round_without_all_its_results_is_never_touched() -> None:
    """C138: older logs hold such rounds; nothing from there on is cut away."""
    written = Written()
    written.round(["one"], "fine", 1, ["r"])
    written.round(["two"], "fine", 1, ["r"])
    written.round(["three"], "fine", 1, ["r"])
    nodes = list(written.nodes)
    broken = [n for n in nodes if not (isinstance(n.data, ToolResultEvent) and n.data.step == 2)]
    assert [u.kind for u in units(broken)] == ["prompt", "input", "round", "input"]
    cut = choose_cut(broken, keep_tokens=0, keep_rounds=1)
    assert cut is not None
    assert cut.end < next(n.seq for n in broken if getattr(n.data, "step", 0) == 2)


def test_a_stray_result_is_never_touched() -> None:
    written = Written()
    written.round(["one"], "fine", 1, ["r"])
    nodes = [n for n in written.nodes if not isinstance(n.data, AssistantMessageEvent)]
    assert [u.kind for u in units(nodes)] == ["prompt", "input"]


def test_the_latest_message_is_carried_again_and_again() -> None:
    """One long turn: the request that began it survives every compaction, byte for byte."""
    written = Written()
    written.round(["Please: é \n{exactly} this  "], "ok", 2, ["r", "r"])
    for _ in range(4):
        written.round([], "ok", 1, ["r" * 200])
        cut = choose_cut(written.nodes, keep_tokens=0, keep_rounds=1)
        assert cut is not None
        assert cut.latest == (TextBlock("Please: é \n{exactly} this  "),)
        written.session.replace(cut.start, cut.end, [replacement(cut, "so far")])
        [summary] = [
            m
            for m in written.session.history()
            if isinstance(m, UserMessage) and isinstance(m.source, PluginSource)
        ]
        assert summary.content[-1] == TextBlock("Please: é \n{exactly} this  ")
        assert summary.text.count("exactly") == 1


def test_a_message_that_is_about_to_enter_is_the_latest() -> None:
    written = Written()
    written.round(["giant " * 1000], "ok", 0, [])
    written.round([], "ok", 0, [])
    with_it = choose_cut(written.nodes, keep_tokens=0, keep_rounds=1)
    without = choose_cut(written.nodes, keep_tokens=0, keep_rounds=1, newer_input=True)
    assert with_it is not None
    assert without is not None
    assert with_it.latest is not None
    assert without.latest is None


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 4), ("a", 5), ("abcd", 5), ("abcde", 6), ("日本", 6), ("日a", 6)]
)
def test_tokens_are_estimated(text: str, tokens: int) -> None:
    assert estimate_tokens(UserMessage(text)) == tokens


def test_every_kind_of_block_counts() -> None:
    written = Written()
    written.round(["hello"], "text", 1, ["result " * 10])
    sizes = [estimate_tokens(m) for m in written.session.history()]
    assert sizes == [6, 6, 8, 22]
    assert estimate_tokens(evolve(PROMPT, content=())) == 4
