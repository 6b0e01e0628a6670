"""The tables of docs/explanation/admission.md are what the code does (C80, C89-C98, C102, C103).

Three views of one thing are compared with each other, in every situation of a small world:
the rows as the page has them, the functions that decide, and an oracle in the words of the
format's description. Then whole agents are played, and their logs are foretold by the page.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from attrs import define, evolve, field, frozen
from hypothesis import given, settings, strategies as st
from tests.agent.kit import check, engine_on, play
from tests.agent.rig import Fussy
from tests.agent.test_headers import named
from tests.prompt.test_admission import nodes_of
from tests.prompt.test_context import owed
from tests.tables import table

from terzetto import Agent, MemoryStore, ModelInfo, Session, UserMessage
from terzetto.agent._decisions import HeaderDecision, header_needed
from terzetto.prompt import PromptChange, admit_prompt, snapshot_text
from terzetto.vocabulary import (
    CallConfig,
    ContextSection,
    Replace,
    RequestHeader,
    RequestHeaderEvent,
    SystemMessageEvent,
    UserMessageEvent,
)

PAGE = "explanation/admission.md"
PROMPTS = table(PAGE, "The system prompt")
HEADERS = table(PAGE, "The header")
CONTEXTS = table(PAGE, "Runtime context")

# --- the system prompt -----------------------------------------------------------------------


@frozen
class World:
    """One situation: the texts of the nodes, and what asks for admission."""

    nodes: tuple[str, ...]
    prompt: str
    in_history: bool
    series: bool

    @property
    def force(self) -> str:
        """The text in force; of no node or only empty ones, none."""
        return next((text for text in reversed(self.nodes) if text), "")

    def admitted(self) -> list[PromptChange]:
        return admit_prompt(
            nodes_of(self.nodes),
            self.prompt,
            in_history=self.in_history,
            starts_series=self.series,
        )


def worlds() -> Iterator[World]:
    """Every list of up to three nodes, every prompt, route and request."""
    texts = ("", "same", "other", "third")
    for length in range(4):
        for nodes in itertools.product(texts, repeat=length):
            for prompt, in_history, series in itertools.product(
                ("", "same"), (False, True), (False, True)
            ):
                yield World(nodes, prompt, in_history, series)


CELLS: dict[str, dict[str, Callable[[World], bool]]] = {
    "Nodes": {"none": lambda w: not w.nodes, "some": lambda w: bool(w.nodes)},
    "Prompt": {
        "any": lambda w: True,
        "empty": lambda w: not w.prompt,
        "not empty": lambda w: bool(w.prompt),
        "in force": lambda w: bool(w.prompt) and w.prompt == w.force,
        "another": lambda w: bool(w.prompt) and w.prompt != w.force,
    },
    "Route": {
        "any": lambda w: True,
        "in-history": lambda w: w.in_history,
        "plain": lambda w: not w.in_history,
    },
    "Request": {
        "any": lambda w: True,
        "goes on": lambda w: not w.series,
        "starts a series": lambda w: w.series,
    },
}


def holds(row: dict[str, str], world: World) -> bool:
    return all(meaning[row[column]](world) for column, meaning in CELLS.items())


def written(words: str, world: World) -> list[PromptChange]:
    """The last column, done by hand."""
    seqs = [node.seq for node in nodes_of(world.nodes)]
    if words == "nothing":
        return []
    if words == "append it":
        return [PromptChange(world.prompt)]
    assert words in (
        "empty the later ones, then the head",
        "empty the later ones, then rewrite the head",
    )
    changes = [
        PromptChange("", seq)
        for seq, text in zip(seqs[1:], world.nodes[1:], strict=True)
        if text != ""
    ]
    head = "" if words.endswith("then the head") else world.prompt
    return changes if world.nodes[0] == head else [*changes, PromptChange(head, seqs[0])]


def oracle(world: World) -> list[PromptChange]:
    """The rules as the format's description numbers them, with its open point as its text has
    it: a capable route keeps what already holds the rendering, also when a series starts."""
    nodes = nodes_of(world.nodes)
    if len(nodes) == 0:  # 1
        return [PromptChange(world.prompt, None)]
    head, *later = nodes
    nonempty = [node for node in nodes if node.message.content]
    effective = (nonempty or [head])[-1]

    def text(node: Any) -> str:
        return "".join(block.text for block in node.message.content)

    if world.in_history and world.prompt and text(effective) == world.prompt:  # open point, 3
        return []
    if not world.in_history or world.series or world.prompt == "":  # 2
        found = [PromptChange("", node.seq) for node in later if node.message.content]
        if text(head) != world.prompt:
            found.append(PromptChange(world.prompt, head.seq))
        return found
    return [PromptChange(world.prompt, None)]  # 3


@pytest.mark.parametrize("case", PROMPTS)
def test_prompt_row(case: str) -> None:
    """C89-C95, C98: the row is what the code does wherever it holds, and the oracle says so."""
    row = PROMPTS[case]
    held = [world for world in worlds() if holds(row, world)]
    assert held, "no situation: the row says nothing"
    for world in held:
        changes = world.admitted()
        assert changes == written(row["What is written"], world), world
        assert changes == oracle(world), world


def test_prompt_rows_are_complete_and_exclude_each_other() -> None:
    every = list(worlds())
    assert len(every) == (1 + 4 + 16 + 64) * 8
    for world in every:
        assert len([case for case, row in PROMPTS.items() if holds(row, world)]) == 1, world


# --- the header ------------------------------------------------------------------------------


def plain_header(model: str = "m") -> RequestHeader:
    return RequestHeader(config=CallConfig(provider="p", model=model))


@frozen
class Asking:
    first: bool
    last: RequestHeader | None
    now: RequestHeader
    series: bool

    def decided(self) -> HeaderDecision | None:
        return header_needed(
            last=self.last,
            header=self.now,
            first_of_instance=self.first,
            starts_series=self.series,
        )


def askings() -> Iterator[Asking]:
    """An agent that has written a header finds one in the log; else all of them."""
    for first, last, now, series in itertools.product(
        (True, False),
        (None, plain_header(), plain_header("other")),
        (plain_header(), plain_header("other")),
        (True, False),
    ):
        if first or last is not None:
            yield Asking(first, last, now, series)


HEADER_CELLS: dict[str, dict[str, Callable[[Asking], bool]]] = {
    "First of its agent": {"yes": lambda a: a.first, "no": lambda a: not a.first},
    "Header in the log": {"yes": lambda a: a.last is not None, "no": lambda a: a.last is None},
    "Configuration and tools": {
        "any": lambda a: True,
        "other": lambda a: a.last != a.now,
        "the same": lambda a: a.last == a.now,
    },
    "Messages": {
        "any": lambda a: True,
        "start a series": lambda a: a.series,
        "go on": lambda a: not a.series,
    },
}


def header_rows(asking: Asking) -> list[str]:
    return [
        case
        for case, row in HEADERS.items()
        if all(meaning[row[column]](asking) for column, meaning in HEADER_CELLS.items())
    ]


def header_oracle(asking: Asking) -> tuple[str, bool] | None:
    """Reason and mark: "first of this instance `initial` or `resume`; changed `change`, both
    marked when a series starts; unchanged but a series starts `series`; else none"."""
    if asking.first:
        return ("resume" if asking.last else "initial", asking.series)
    if asking.last != asking.now:
        return ("change", asking.series)
    return ("series", False) if asking.series else None


@pytest.mark.parametrize("case", HEADERS)
def test_header_row(case: str) -> None:
    """C80, C96, C150."""
    held = [asking for asking in askings() if header_rows(asking) == [case]]
    assert held
    for asking in held:
        decision = asking.decided()
        words = HEADERS[case]["Header, with its reason"]
        assert (decision.reason if decision else "none") == words
        found = (decision.reason, decision.starts_series) if decision else None
        assert found == header_oracle(asking)


def test_header_rows_are_complete_and_exclude_each_other() -> None:
    assert [len(header_rows(asking)) for asking in askings()] == [1] * 20


# --- runtime context ----------------------------------------------------------------------------

SECTIONS = [(), (ContextSection("c", "a"),), (ContextSection("c", "b"),)]


@pytest.mark.parametrize("case", CONTEXTS)
def test_context_row(case: str) -> None:
    """C102, C103."""
    held = 0
    for sections, retained in itertools.product(
        SECTIONS,
        [(), *itertools.product(SECTIONS, repeat=1), *itertools.product(SECTIONS, repeat=2)],
    ):
        texts = [snapshot_text(one) for one in retained]
        if context_rows(sections, texts) != [case]:
            continue
        held += 1
        message = owed(sections, texts)
        match CONTEXTS[case]["What enters with the messages"]:
            case "nothing":
                assert message is None
            case "a snapshot":
                assert message is not None
                assert message.text.endswith(f"\n\n{sections[0].text}")
            case "the text that says that there is none":
                assert message is not None
                assert message.text == (
                    "Current runtime context: none. "
                    "Earlier runtime-context snapshots no longer apply."
                )
            case other:
                raise AssertionError(other)
    assert held


def context_rows(sections: Sequence[ContextSection], retained: Sequence[str]) -> list[str]:
    now = snapshot_text(sections)
    context = {"any": True, "empty": not sections, "some": bool(sections)}
    last = {
        "none": not retained,
        "says the same": retained[-1:] == [now],
        "none or another": retained[-1:] != [now],
        "says something": bool(retained) and retained[-1] != snapshot_text(()),
    }
    return [
        case
        for case, row in CONTEXTS.items()
        if context[row["Context"]] and last[row["Last snapshot on the surface"]]
    ]


def test_context_rows_are_complete_and_exclude_each_other() -> None:
    for sections in SECTIONS:
        for retained in [(), *itertools.product(SECTIONS, repeat=2)]:
            texts = [snapshot_text(one) for one in retained]
            assert len(context_rows(sections, texts)) == 1


# --- whole agents -------------------------------------------------------------------------------


@frozen
class Turn:
    """What is so when a turn of one step begins."""

    prompt: str
    in_history: bool
    tool_update: bool
    tool: bool
    model: str
    series: bool
    replaced: bool
    resumed: bool


def turns() -> st.SearchStrategy[Turn]:
    rarely = st.sampled_from((False, False, False, True))
    return st.builds(
        Turn,
        prompt=st.sampled_from(("", "A", "B")),
        in_history=st.booleans(),
        tool_update=st.booleans(),
        tool=rarely,
        model=st.sampled_from(("m", "m", "n")),
        series=rarely,
        replaced=rarely,
        resumed=rarely,
    )


@define(eq=False)
class Foretold:
    """What the page says of a session, turn by turn. It knows no code but the rows."""

    nodes: list[str] = field(factory=list)
    header: tuple[str, bool] | None = None
    fresh: bool = True

    def turn(self, turn: Turn) -> tuple[list[tuple[str, int | None]], tuple[str, bool] | None]:
        """The system messages it writes, each with the node that it replaces, and the header."""
        now = (turn.model, turn.tool)
        moved = turn.series or (turn.replaced and self.header is not None)
        other_tools = self.header is not None and self.header[1] != turn.tool
        world = World(
            tuple(self.nodes),
            turn.prompt,
            turn.in_history,
            moved or (other_tools and not turn.tool_update),
        )
        (row,) = [row for row in PROMPTS.values() if holds(row, world)]
        seqs = [node.seq for node in nodes_of(world.nodes)]
        prompts: list[tuple[str, int | None]] = []
        for change in written(row["What is written"], world):
            place = None if change.replaces is None else seqs.index(change.replaces)
            prompts.append((change.text, place))
            if place is None:
                self.nodes.append(change.text)
            else:
                self.nodes[place] = change.text
        moved = moved or any(place is not None for _, place in prompts)
        last = None if self.header is None else plain_header(repr(self.header))
        asking = Asking(self.fresh, last, plain_header(repr(now)), moved)
        (case,) = header_rows(asking)
        reason = HEADERS[case]["Header, with its reason"]
        self.header, self.fresh = now, False
        if reason == "none":
            return prompts, None
        return prompts, (reason, moved and reason != "series")


@settings(max_examples=150, deadline=None)
@given(st.lists(turns(), min_size=1, max_size=6))
def test_logs_are_foretold_by_the_page(plan: list[Turn]) -> None:
    """C77, C80, C89-C98, C150: nodes, reasons and marks of whole sessions."""
    play(live, plan)


async def live(plan: list[Turn]) -> None:
    store = MemoryStore()
    model = Fussy(["ok"] * len(plan))
    foretold = Foretold()
    prompt, series = "", False

    def compose(agent: Agent) -> None:
        agent.scope.add_section("who", lambda agent: prompt)

        async def decide(value: Any, proceed: Any) -> Any:
            decision = await proceed()
            return evolve(decision, starts_series=True) if series else decision

        agent.scope.hooks.pre_step.listen(decide)

    lives = [[plan[0]]]
    for turn in plan[1:]:
        if turn.resumed:
            lives.append([])
        lives[-1].append(turn)
    for number, part in enumerate(lives):
        foretold.fresh = True
        where: dict[str, Any] = {"resume": "S"} if number else {"session_id": "S"}
        async with (
            engine_on(model, store=store) as engine,
            engine.open_agent(provider="scripted", model="m", setup=compose, **where) as agent,
        ):
            for turn in part:
                prompt, series = turn.prompt, turn.series
                info = ModelInfo(
                    system_prompt_update="in-history" if turn.in_history else None,
                    tool_update=turn.tool_update,
                )
                model.infos = {"m": info, "n": info}
                agent.model.select("scripted", turn.model)
                registration = agent.scope.add_tool(named("extra")) if turn.tool else None
                users = [n for n in agent.session.surface.nodes if _said(n.message)]
                if turn.replaced and users:
                    seq = users[0].seq
                    agent.session.replace(seq, seq, [UserMessage("user, short")])
                before = len(agent.session.events)
                heads = [node.seq for node in agent.session.surface.system]
                await agent.ask("user")
                if registration is not None:
                    registration.remove()
                assert seen(agent.session, before, heads) == foretold.turn(turn)
            check(agent.session)


def _said(message: Any) -> bool:
    return isinstance(message, UserMessage) and message.text.startswith("user")


def seen(
    session: Session, before: int, heads: list[int]
) -> tuple[list[tuple[str, int | None]], tuple[str, bool] | None]:
    prompts: list[tuple[str, int | None]] = []
    header: tuple[str, bool] | None = None
    for event in list(session.events)[before:]:
        if isinstance(event.data, SystemMessageEvent):
            op = event.surface_op
            place = heads.index(op.start) if isinstance(op, Replace) else None
            prompts.append((event.data.message.text, place))
            assert header is None
        elif isinstance(event.data, RequestHeaderEvent):
            assert header is None
            header = (event.data.reason, event.data.starts_series)
        elif isinstance(event.data, UserMessageEvent):
            assert header is None, "messages come before the header"
    return prompts, header
