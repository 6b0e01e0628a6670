"""What a step finds out and the next one keeps is what would be found out again (C75, C99)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from hypothesis import given, settings, strategies as st
from tests.session.oracle import new_session

from terzetto import CallConfig, ModelInfo, Tool, tool
from terzetto.agent._request import RequestBuilder
from terzetto.agent._scope import AgentScope
from terzetto.hooks import Registration
from terzetto.llm import ModelRuntime, PreparedCall
from terzetto.prompt import Text
from terzetto.session import AgentView
from terzetto.vocabulary import (
    USER,
    CodedError,
    DefaultField,
    DuplicateName,
    InvalidTool,
    ModelSelection,
    RequestHeader,
    RequestHeaderEvent,
    StepEnd,
    StepStart,
    ToolSchema,
    TurnStart,
    UserMessage,
    freeze_object,
)

NAMES = ("a", "b", "c")
TEXTS = ("", "plain", "{{provider}} and {{a}}", "of {{model}}")


def made(name: str, text: str) -> Tool:
    @tool(name=name, description=text or "Nothing.")
    async def body() -> str:
        return text

    return body


def texts(said: list[str]) -> st.SearchStrategy[Text]:
    """Fixed ones, and functions, one of which says something else at times."""
    functions = [lambda agent: said[0], lambda agent: "always"]
    return st.one_of(st.sampled_from(TEXTS), st.sampled_from(functions))


Act: TypeAlias = Callable[[AgentScope, str, Text, int], Registration]
ACTS: list[Act] = [
    lambda scope, name, text, n: scope.add_section(name, text, order=n % 3),
    lambda scope, name, text, n: scope.set_variable(name, text),
    lambda scope, name, text, n: scope.add_context(name, text, order=-n),
    lambda scope, name, text, n: scope.add_tool(made(name, str(n))),
    lambda scope, name, text, n: scope.restrict(deny=[name]),
    lambda scope, name, text, n: scope.restrict(allow=[name]),
    lambda scope, name, text, n: scope.order_tools([name, "<unlisted-tools>"]),
    lambda scope, name, text, n: scope.tools.lay_over([made(name, "over")]),
]


@given(st.data())
def test_an_assembly_is_the_one_that_would_be_made_anew(data: st.DataObject) -> None:
    """Whatever is registered and removed in between, of the agent's scope or the engine's."""
    said = [""]
    outer = AgentScope("engine")
    inner = AgentScope("agent", outer)
    session = new_session()
    view = cast(AgentView, None)
    builder = RequestBuilder(view, session, inner, ModelRuntime(), None)
    owned: list[Registration] = []
    selection = ModelSelection("p", "m")
    for _ in range(data.draw(st.integers(1, 12))):
        scope = data.draw(st.sampled_from([outer, inner]))
        name, text = data.draw(st.sampled_from(NAMES)), data.draw(texts(said))
        act = data.draw(st.none() | st.sampled_from(ACTS))
        try:
            if act is not None:
                owned.append(act(scope, name, text, len(owned)))
            elif owned:
                owned.pop(data.draw(st.integers(0, len(owned) - 1))).remove()
        except (DuplicateName, InvalidTool):
            pass
        if data.draw(st.booleans()):
            selection = ModelSelection("p", data.draw(st.sampled_from(["m", "n"])))
        said[0] = data.draw(st.sampled_from(["", "one", "other"]))
        kept, context = outcome(builder, selection)
        for layer in (inner.prompt, outer.prompt):
            layer._known = None
        anew = RequestBuilder(view, session, inner, ModelRuntime(), None)
        assert outcome(anew, selection) == (kept, context)


def outcome(builder: RequestBuilder, selection: ModelSelection) -> tuple[object, object]:
    try:
        found: object = builder._own_assembly(selection)
    except CodedError as error:
        found = (error.code, str(error))
    return found, builder._context()


class Prepared:
    """A call that is prepared anew each time."""

    def __init__(
        self, config: CallConfig, defaults: frozenset[DefaultField], info: ModelInfo
    ) -> None:
        self.config = config
        self.adapter_defaults = defaults
        self.info = info


def schemas(order: bool) -> tuple[ToolSchema, ...]:
    keys = ["type", "properties"] if order else ["properties", "type"]
    values: dict[str, object] = {"type": "object", "properties": {}}
    parameters = freeze_object({key: values[key] for key in keys})
    return (ToolSchema(name="t", description="d", parameters=parameters),)


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()), max_size=12))
def test_a_header_is_the_last_one_exactly_when_they_are_equal(
    steps: list[tuple[bool, bool, bool, bool]],
) -> None:
    """C80: to the byte, also where the keys of a schema come in another order."""
    session = new_session()
    builder = RequestBuilder(
        cast(AgentView, None), session, AgentScope("agent"), ModelRuntime(), None
    )
    pool = {order: schemas(order) for order in (False, True)}
    session.append(TurnStart(1))
    session.append(StepStart(1, 1))
    for same_config, fresh_tools, order, defaults in steps:
        selection = ModelSelection("p", "m" if same_config else "n")
        config = builder._own_config(selection)
        assert config == builder._own_config(ModelSelection(selection.provider, selection.model))
        last = session.folds.header
        tools = schemas(order) if fresh_tools else pool[order]
        known: frozenset[DefaultField] = frozenset({"maxTokens"} if defaults else ())
        header = builder._header(
            last, cast(PreparedCall, Prepared(config, known, ModelInfo())), tools
        )
        wanted = RequestHeader(config=config, adapter_defaults=known, tools=tools)
        assert header == wanted
        assert (header is last) is (last == wanted)
        if header is not last:
            session.append(RequestHeaderEvent(header, "initial" if last is None else "change"))


INFOS = (
    ModelInfo(),
    ModelInfo(system_prompt_update="in-history"),
    ModelInfo(system_prompt_update="in-history", tool_update=True, context_window=9),
)


@settings(max_examples=60)
@given(st.data())
def test_an_admission_that_repeats_the_last_one_is_the_one_that_would_be_made_anew(
    data: st.DataObject,
) -> None:
    """C71 C89 C96 C102 C162: the same events and the same request, whatever happened since."""
    said = [""]
    outer = AgentScope("engine")
    inner = AgentScope("agent", outer)
    view = cast(AgentView, None)
    sessions = [new_session(), new_session()]
    builders: list[RequestBuilder] = []
    for session in sessions:
        session.append(TurnStart(1))
        builders.append(RequestBuilder(view, session, inner, ModelRuntime(), None))
    owned: list[Registration] = []
    selection, info = ModelSelection("p", "m"), INFOS[0]
    for step in range(1, data.draw(st.integers(2, 8)) + 1):
        what = data.draw(st.sampled_from(["", "", "", "act", "act", "select", "info", "replace"]))
        if what == "act":
            scope = data.draw(st.sampled_from([outer, inner]))
            name, text = data.draw(st.sampled_from(NAMES)), data.draw(texts(said))
            try:
                if not owned or data.draw(st.booleans()):
                    owned.append(data.draw(st.sampled_from(ACTS))(scope, name, text, len(owned)))
                else:
                    owned.pop(data.draw(st.integers(0, len(owned) - 1))).remove()
            except (DuplicateName, InvalidTool):
                pass
        elif what == "select":
            selection = ModelSelection("p", data.draw(st.sampled_from(["m", "n"])))
        elif what == "info":
            info = data.draw(st.sampled_from(INFOS))
        elif what == "replace" and (nodes := sessions[0].surface.nodes[1:]):
            first, last = sorted(data.draw(st.integers(0, len(nodes) - 1)) for _ in range(2))
            text = data.draw(st.sampled_from(["short", "shorter"]))
            for session in sessions:
                message = UserMessage(text, USER, session.new_id())
                session.replace(nodes[first].seq, nodes[last].seq, [message])
        said[0] = data.draw(st.sampled_from(["", "", "one"]))
        claimed = data.draw(st.sampled_from([(), (), ("go",)]))
        series = data.draw(st.sampled_from([False, False, False, True]))
        builders[1]._repeated = builders[1]._told = None
        came = [
            admitted(
                builder, step, selection, info, claimed, series, quickly=builder is builders[0]
            )
            for builder in builders
        ]
        assert came[0] == came[1]
        assert list(sessions[0].events) == list(sessions[1].events)


def admitted(
    builder: RequestBuilder,
    step: int,
    selection: ModelSelection,
    info: ModelInfo,
    claimed: tuple[str, ...],
    starts_series: bool,
    *,
    quickly: bool,
) -> object:
    """The request of one step, as the driver comes to it; or why there is none."""
    session = builder.session
    messages = tuple(UserMessage(text, USER, session.new_id()) for text in claimed)
    session.append(StepStart(1, step))
    try:
        assembly = builder.unchanged(selection) if quickly and not messages else None
        entered: tuple[UserMessage, ...] = ()
        if assembly is None:
            assembly = builder._own_assembly(selection)
            entered = builder._entering(messages).messages
        prepared = Prepared(builder._own_config(selection), frozenset(), info)
        call = cast(PreparedCall, prepared)
        return builder.admit(1, step, assembly, call, entered, starts_series)
    except CodedError as error:
        return error.code, str(error)
    finally:
        session.append(StepEnd(1, step))


def test_most_steps_of_a_long_turn_assemble_and_admit_nothing() -> None:
    """What repeats the step before costs neither an assembly nor a comparison of headers."""
    builder = RequestBuilder(
        cast(AgentView, None), new_session(), AgentScope("agent"), ModelRuntime(), None
    )
    builder.scope.add_section("a", "always")
    builder.scope.add_context("b", "the same")
    builder.session.append(TurnStart(1))
    selection = ModelSelection("p", "m")
    quick = []
    for step in range(1, 6):
        before = builder.session.place.next_seq
        quick.append(builder.unchanged(selection) is not None)
        admitted(builder, step, selection, INFOS[0], (), False, quickly=True)
        assert builder.session.place.next_seq == before + (6 if step == 1 else 2)
    assert quick == [False, False, True, True, True]
    assert builder._repeated is not None
    assembly = builder.unchanged(selection)
    assert assembly is not None
    builder.scope.add_context("c", "late")
    builder.session.append(StepStart(1, 6))
    call = cast(PreparedCall, Prepared(builder._own_config(selection), frozenset(), INFOS[0]))
    request = builder.admit(1, 6, assembly, call, (), False)
    assert request.messages[-1].text.endswith("the same\n\nlate")  # type: ignore[union-attr]
