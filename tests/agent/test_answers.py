"""Typed answers: what `ask(returns=...)` gives, what it refuses, what stays on the record."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, TypedDict

import attrs
import msgspec
import pytest
import trio
from hypothesis import given, settings
from tests.agent.kit import (
    ROUTE,
    check,
    codes,
    engine_on,
    pending,
    play,
    played,
    results,
    settled,
)
from tests.agent.rig import headers, log, one, shown
from tests.strategies_answers import Node, typed_values
from tests.whole import whole

from terzetto import (
    Agent,
    Answer,
    Deny,
    InvalidValue,
    MemoryStore,
    MessageDiscarded,
    NoAnswer,
    PluginSource,
    ToolRun,
    Turn,
    TurnFailed,
    UserMessage,
    WouldDeadlock,
    tool,
)
from terzetto.agent import Enter, Reject
from terzetto.extras.budget import Budget
from terzetto.llm.scripted import Delay, Gate, Hang, ScriptedModel, answer, call, finish_error, say
from terzetto.vocabulary import (
    DuplicateMessage,
    MaxTokens,
    ModelInfo,
    UserMessageEvent,
    texts,
)


@attrs.frozen
class Weather:
    """The weather in one city."""

    city: str
    celsius: float
    rain: bool = False


@dataclasses.dataclass
class Unknown:
    """Nothing is known of the city."""

    why: str


class Point(NamedTuple):
    x: int
    y: int


class Row(TypedDict):
    name: str


class Circle(msgspec.Struct, tag="circle"):
    radius: float


class Square(msgspec.Struct, tag="square"):
    side: float


VALUES: dict[str, tuple[object, dict[str, object], object]] = {
    "attrs": (Weather, {"city": "Oslo", "celsius": 3}, Weather("Oslo", 3.0)),
    "dataclass": (Unknown, {"why": "fog"}, Unknown("fog")),
    "TypedDict": (Row, {"name": "a"}, {"name": "a"}),
    "Struct": (Circle, {"type": "circle", "radius": 2}, Circle(2.0)),
    "NamedTuple": (Point, {"value": [1, 2]}, Point(1, 2)),
    "int": (int, {"value": 7}, 7),
    "str": (str, {"value": "x"}, "x"),
    "bool": (bool, {"value": False}, False),
    "float": (float, {"value": 1}, 1.0),
    "list": (list[int], {"value": [1, 2]}, [1, 2]),
    "dict": (dict[str, Unknown], {"value": {"a": {"why": "b"}}}, {"a": Unknown("b")}),
    "Literal": (Literal["yes", "no"], {"value": "no"}, "no"),
    "union": (int | list[str], {"value": ["a"]}, ["a"]),
    "optional": (Weather | None, {"value": None}, None),
    "tagged": (Circle | Square, {"value": {"type": "square", "side": 1}}, Square(1.0)),
}


@pytest.mark.parametrize("kind", VALUES)
def test_the_value_that_the_model_gives_is_the_value_returned(kind: str) -> None:
    """C64: a concluding tool: one request, and the turn is over."""

    @played
    async def run() -> None:
        returns, arguments, value = VALUES[kind]
        async with one([call("answer", arguments)]) as life:
            found = await life.agent.ask("go", returns=returns)
            assert found.value == value
            assert type(found.value) is type(value)
            assert isinstance(found, Answer)
            assert (found.reason, found.number, len(found.consumed)) == ("completed", 1, 1)
            assert life.model.attempts == 1
            check(life.session)

    run()


@settings(max_examples=60, deadline=None)
@given(typed_values())
def test_any_value_that_can_be_encoded_is_the_value_returned(pair: tuple[Any, Any]) -> None:
    """Whatever the model says of the type, through the stream, the log and the tool."""
    returns, value = pair

    def reply(request: Any) -> Any:
        (schema,) = request.tools
        encoded = msgspec.json.encode(value).decode()
        wrapped = list(schema.parameters["properties"]) == ["value"] and returns is not Node
        return call("answer", f'{{"value":{encoded}}}' if wrapped else encoded)

    @played
    async def run() -> None:
        async with one(ScriptedModel(reply)) as life:
            found = (await life.agent.ask("go", returns=returns)).value
            assert found == value
            assert type(found) is type(value)
            assert life.model.attempts == 1

    run()


@pytest.mark.parametrize(
    ("name", "given_arguments", "value"),
    [
        ("answer_Weather", {"city": "Oslo", "celsius": 3}, Weather("Oslo", 3.0)),
        ("answer_Unknown", {"why": "fog"}, Unknown("fog")),
        ("answer", {"value": None}, None),
    ],
)
def test_objects_that_json_cannot_tell_apart_have_a_tool_each(
    name: str, given_arguments: dict[str, object], value: object
) -> None:
    """A union of plain classes: which tool is called says which of them it is."""

    @played
    async def run() -> None:
        async with one([call(name, given_arguments)]) as life:
            found = await life.agent.ask("go", returns=Weather | Unknown | None)
            assert found.value == value
            shown_tools = {tool.name for tool in life.model.requests[0].tools}
            assert shown_tools == {"answer", "answer_Weather", "answer_Unknown"}

    run()


@played
async def test_the_model_sees_one_tool_with_the_fields_of_the_type() -> None:
    """C104: the type's own words, and what the tool is for."""
    async with one([call("answer", city="Oslo", celsius=3)]) as life:
        await life.agent.ask("go", returns=Weather)
        (schema,) = life.model.requests[0].tools
        assert schema.name == "answer"
        assert schema.description.endswith("The weather in one city.")
        assert list(schema.parameters["properties"]) == ["city", "celsius", "rain"]
        assert schema.parameters["required"] == ("city", "celsius")
        assert schema.parameters["additionalProperties"] is False


@pytest.mark.parametrize(
    "returns",
    [
        complex,
        object,
        type,
        3,
        "Weather",
        None,
        type(None),
        list[complex],
        Unknown("a value"),
        Weather | complex,
    ],
    ids=str,
)
def test_a_type_that_json_cannot_describe_is_refused_before_anything_is_sent(
    returns: object,
) -> None:
    """What was expected, what came; no event, no waiter, no wake."""

    @played
    async def run() -> None:
        async with one() as life:
            with pytest.raises(InvalidValue, match="returns: "):
                await life.agent.ask("go", returns=returns)
            assert whole(life.session) == []
            assert life.agent.status == "idle"

    run()


# --- the repair round -----------------------------------------------------------------------


@played
async def test_prose_is_repaired_once_by_a_message_on_the_record() -> None:
    """C59: the second request is explained by input of a plugin's, entered like any other."""
    async with one([answer("It is cold."), call("answer", city="Oslo", celsius=3)]) as life:
        found = await life.agent.ask("go", returns=Weather)
        assert found.value == Weather("Oslo", 3.0)
        assert life.model.attempts == 2
        (again,) = [
            event.data.message
            for event in life.session.events
            if isinstance(event.data, UserMessageEvent)
            and isinstance(event.data.message.source, PluginSource)
        ]
        assert again.source == PluginSource(texts.ANSWER_PLUGIN)
        assert "`answer`" in again.text
        assert life.request(1)[-2:] == ["assistant: It is cold.", f"user: {again.text}"]
        assert again.id in found.consumed
        assert headers(life.session) == ["request/header initial"], "both steps have one prefix"
        check(life.session)


@played
async def test_prose_twice_raises_with_the_turn_the_type_and_what_came() -> None:
    """Bounded: two requests, then the caller is told. The log says the model was done."""
    async with one([answer("cold"), answer("very cold"), answer("ok")]) as life:
        with pytest.raises(NoAnswer) as caught:
            await life.agent.ask("go", returns=Weather)
        error = caught.value
        assert (error.code, error.expected) == ("NO_ANSWER", Weather)
        assert (error.turn.number, error.turn.reason) == (1, "completed")
        assert error.turn.text == "very cold"
        assert "very cold" in error.came
        assert "Weather" in str(error)
        assert "very cold" in str(error)
        assert life.model.attempts == 2
        assert (await life.agent.ask("plain")).text == "ok", "the agent goes on"
        check(life.session)


@played
async def test_wrong_arguments_are_repaired_by_their_own_error_result() -> None:
    """C117: INVALID_ARGS says what is wrong with each field; no other message is needed."""
    async with one(
        [call("answer", id="a", city=3, rain=0), call("answer", id="b", city="Oslo", celsius=3)]
    ) as life:
        found = await life.agent.ask("go", returns=Weather)
        assert found.value == Weather("Oslo", 3.0)
        assert codes(life.session) == {"a": "INVALID_ARGS", "b": None}
        told = results(life.session)["a"]
        for fault in ("missing required field `celsius`", "$.city", "$.rain"):
            assert fault in told
        assert texts.ANSWER_PLUGIN not in str(whole(life.session))


@pytest.mark.parametrize(
    ("first", "second"),
    [("arguments", "arguments"), ("arguments", "prose"), ("prose", "arguments")],
)
def test_any_two_failures_end_the_turn(first: str, second: str) -> None:
    """One repair in all, whichever way the model failed: never a third request."""

    @played
    async def run() -> None:
        entries: dict[str, Any] = {"arguments": call("answer", city=1), "prose": answer("cold")}
        async with one([entries[first], entries[second], answer("too much")]) as life:
            with pytest.raises(NoAnswer) as caught:
                await life.agent.ask("go", returns=Weather)
            assert life.model.attempts == 2
            assert ("$.city" in caught.value.came) == (second == "arguments")
            check(life.session)

    run()


@played
async def test_unknown_fields_are_refused_not_dropped() -> None:
    """C117: as a typed tool refuses them."""
    async with one([call("answer", id="a", why="x", more=1), call("answer", why="x")]) as life:
        assert (await life.agent.ask("go", returns=Unknown)).value == Unknown("x")
        assert "unknown field `more`; the fields are: why" in results(life.session)["a"]


@played
async def test_a_validator_of_the_type_is_heard() -> None:
    """What the type itself refuses is an argument error like any other."""

    @attrs.frozen
    class Age:
        years: int = attrs.field(validator=attrs.validators.ge(0))

    async with one([call("answer", id="a", years=-1), call("answer", years=1)]) as life:
        assert (await life.agent.ask("go", returns=Age)).value == Age(1)
        assert "must be >= 0" in results(life.session)["a"]


@played
async def test_work_after_a_failure_is_not_counted() -> None:
    """Other tools may be called as often as the model likes: only failures to answer count."""

    @tool
    async def look() -> str:
        return "seen"

    entries = [call("answer", city=1), call("look"), call("look"), call("answer", why="dark")]
    async with one(entries, [look]) as life:
        assert (await life.agent.ask("go", returns=Unknown)).value == Unknown("dark")
        assert life.model.attempts == 4


@played
async def test_other_tools_that_fail_are_no_failures_to_answer() -> None:
    """Only the calls of the answer tool are counted, also where a call id is used again."""

    @tool
    async def look() -> str:
        raise ValueError("dark")

    entries = [call("look", id="x"), call("answer", id="x", city=1), call("look", id="x")]
    async with one([*entries, call("look"), call("answer", why="dark")], [look]) as life:
        assert (await life.agent.ask("go", returns=Unknown)).value == Unknown("dark")
        assert life.model.attempts == 5


@played
async def test_a_step_with_an_answer_that_fits_is_no_failure() -> None:
    """A wrong call beside a right one costs no repair: after steering there still is one."""

    async def steer(value: Any, proceed: Any) -> Any:
        if value.call.id == "right":
            life.agent.steer("are you sure?")
        return await proceed()

    both = answer(call("answer", id="wrong", value="x"), call("answer", id="right", value=1))
    async with one([both, call("answer", value="y"), call("answer", value=3)]) as life:
        life.hooks.tool_post_execute.listen(steer)
        assert (await life.agent.ask("go", returns=int)).value == 3
        assert life.model.attempts == 3


@played
async def test_a_refused_answer_counts_as_a_failure() -> None:
    """C114: a guard's denial is final; it cannot make the turn run for ever."""
    async with one([call("answer", why="a"), call("answer", why="b"), "no more"]) as life:
        life.agent.scope.guard(lambda hook: "not now")
        with pytest.raises(NoAnswer) as caught:
            await life.agent.ask("go", returns=Unknown)
        assert "not now" in caught.value.came
        assert life.model.attempts == 2


@played
async def test_policy_that_withholds_a_result_withholds_the_answer() -> None:
    """C113: what counts is the committed result, not that the body ran."""

    async def deny(value: Any, proceed: Any) -> Any:
        outcome = await proceed()
        return attrs.evolve(outcome, is_error=True, concludes=False)

    async with one([call("answer", why="a"), call("answer", why="b")]) as life:
        life.hooks.tool_post_execute.listen(deny)
        with pytest.raises(NoAnswer):
            await life.agent.ask("go", returns=Unknown)


@played
async def test_an_emptied_repair_asks_nobody() -> None:
    """C71: a listener may set the repair message aside; no request is spent on it."""

    async def empty_the_second(value: Any, proceed: Any) -> Any:
        return Enter(()) if value.step == 2 else await proceed()

    async with one([answer("cold")]) as life:
        life.hooks.pre_step.listen(empty_the_second)
        with pytest.raises(NoAnswer):
            await life.agent.ask("go", returns=Weather)
        assert life.model.attempts == 1


# --- how the turn ends ----------------------------------------------------------------------


@played
async def test_an_answer_cut_at_the_limit_is_asked_for_again() -> None:
    """C65 C110: the call is dropped, the message says why, the ending stays max-tokens."""
    async with one(
        [answer(call("answer", why="a"), finish=MaxTokens()), call("answer", why="b")]
    ) as life:
        found = await life.agent.ask("go", returns=Unknown)
        assert (found.value, found.reason) == (Unknown("b"), "max-tokens")
        assert "cut off at the output limit" in life.request(1)[-1]


@played
async def test_cut_twice_at_the_limit_says_so() -> None:
    """C65: the reason is the turn's."""
    cut = answer(call("answer", why="a"), finish=MaxTokens())
    async with one([cut, cut]) as life:
        with pytest.raises(NoAnswer, match="max-tokens") as caught:
            await life.agent.ask("go", returns=Unknown)
        assert caught.value.turn.reason == "max-tokens"


@played
async def test_a_rejected_turn_has_no_answer() -> None:
    """C61 C71: blocked, without a request."""

    async def reject(value: Any, proceed: Any) -> Any:
        return Reject()

    async with one() as life:
        life.hooks.pre_step.listen(reject)
        with pytest.raises(NoAnswer, match="got nothing") as caught:
            await life.agent.ask("go", returns=int)
        assert caught.value.turn.reason == "blocked"
        assert life.model.attempts == 0


@played
async def test_a_cancelled_turn_has_no_answer() -> None:
    """C127: the turn in the error is the one that `ask` returns without a type."""
    async with one([answer(say("It is"), Hang()), "plain"]) as life:
        caught: list[NoAnswer] = []

        async def ask() -> None:
            try:
                await life.agent.ask("go", returns=int)
            except NoAnswer as error:
                caught.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await settled()
            life.agent.cancel()
        assert caught[0].turn.reason == "aborted"
        assert caught[0].came == "the text 'It is'"
        await life.say("plain")
        assert life.model.requests[-1].tools == ()


@played
async def test_an_answer_that_was_committed_survives_a_cancel_of_its_turn() -> None:
    """The effect happened. `reason` says that the turn was aborted all the same."""

    @tool
    async def wait() -> str:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    async with one([answer(call("answer", value=3), call("wait"))], [wait]) as life:
        got: list[Answer[int]] = []

        async def ask() -> None:
            got.append(await life.agent.ask("go", returns=int))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await settled()
            life.agent.cancel()
        assert (got[0].value, got[0].reason) == (3, "aborted")
        check(life.session)


@played
async def test_a_failed_turn_raises_as_without_a_type() -> None:
    """C137."""
    async with one([finish_error("QUOTA", "no money")]) as life:
        with pytest.raises(TurnFailed) as caught:
            await life.agent.ask("go", returns=int)
        assert caught.value.code == "QUOTA"


@pytest.mark.parametrize("when", ["pending", "claimed"])
@pytest.mark.parametrize("on_cancel", ["cancel", "leave"])
def test_a_cancelled_ask_behaves_as_without_a_type(
    when: str, on_cancel: Literal["cancel", "leave"]
) -> None:
    """Pending: removed; claimed: the turn is cancelled; or both are left."""

    @played
    async def run() -> None:
        model = ScriptedModel(lambda r: answer(Gate("go"), call("answer", value=1)))
        async with one(model) as life:
            if when == "pending":
                life.agent.followup("before")
                await settled()
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    await life.agent.ask("mine", returns=int, on_cancel=on_cancel)

                nursery.start_soon(ask)
                await settled()
                nursery.cancel_scope.cancel(reason="tested")
            await settled()
            if when == "pending":
                assert pending(life.agent) == (["mine"] if on_cancel == "leave" else [])
            life.agent.cancel()
            model.gates.open("go")
            await life.agent.wait_idle()
            assert life.agent.scope.tools.visible() == {}
            check(life.session)

    run()


@played
async def test_a_turn_that_is_left_keeps_its_tools_to_its_end() -> None:
    """Who asked has gone; the turn is the same, and the next one does not see its tool."""
    model = ScriptedModel([answer(Gate("go"), "prose"), call("answer", value=1), "plain"])
    async with one(model) as life:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await life.agent.ask("mine", returns=int, on_cancel="leave")

            nursery.start_soon(ask)
            await settled()
            nursery.cancel_scope.cancel(reason="tested")
        model.gates.open("go")
        await life.agent.wait_idle()
        await life.say("plain")
        assert [len(request.tools) for request in model.requests] == [1, 1, 0]


@played
async def test_a_message_put_back_is_asked_for_in_no_later_turn() -> None:
    """The ask ended with its turn; what is pending is a plain message."""
    hold = trio.Event()

    async def wait(value: Any, proceed: Any) -> Any:
        await hold.wait()
        return await proceed()

    async with one(["plain", "plain"]) as life:
        life.hooks.pre_step.listen(wait)
        caught: list[type] = []

        async def ask() -> None:
            try:
                await life.agent.ask("mine", returns=int)
            except NoAnswer as error:
                assert error.turn.consumed == ()
                caught.append(type(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await settled()
            life.agent.cancel(keep_inbox=True)
        assert caught == [NoAnswer]
        assert pending(life.agent) == ["mine"]
        hold.set()
        await life.say("go")
        assert [request.tools for request in life.model.requests] == [(), ()]
        assert log(life.session)[-1] == "turn/end Completed"


@played
async def test_a_repair_that_was_put_back_is_withdrawn() -> None:
    """What a budget kept from entering asks for a tool that no later turn shows."""
    async with one(["prose", "plain"]) as life:
        budget = Budget(steps=1).attach(life.agent.scope)
        with pytest.raises(NoAnswer) as caught:
            await life.agent.ask("go", returns=int)
        assert caught.value.turn.reason == "aborted"
        assert pending(life.agent) == []
        budget.remove()
        await life.say("thanks")
        assert not any("has not been received" in entry for entry in life.request())
        check(life.session)


@played
async def test_a_repair_that_a_crash_left_is_withdrawn_when_resumed() -> None:
    """C145: nobody waits for that answer in the next life; other input is kept."""
    store = MemoryStore()
    reached = trio.Event()

    async def hold_the_second(value: Any, proceed: Any) -> Any:
        if value.step == 2:
            reached.set()
            await trio.sleep_forever()
        return await proceed()

    async def ask(agent: Agent) -> None:
        await agent.ask("go", returns=int)

    async with one(["prose"], engine={"store": store}) as life, trio.open_nursery() as nursery:
        life.hooks.pre_step.listen(hold_the_second)
        nursery.start_soon(ask, life.agent)
        await reached.wait()
        life.agent.followup("and then")
        events = whole(life.session)
        header = life.session.header
        nursery.cancel_scope.cancel()

    crashed = MemoryStore()
    handle = await crashed.create(header)
    for event in events:
        handle.append(event)
    await handle.close()
    route: dict[str, Any] = {"provider": None, "model": None}
    async with one(["plain"], engine={"store": crashed}, resume=header.id, **route) as life:
        assert pending(life.agent) == ["and then"]
        life.agent.wake()
        await life.agent.wait_idle()
        assert "user: and then" in life.request()
        assert not any("has not been received" in entry for entry in life.request())
        check(life.session)


@played
async def test_a_message_that_is_removed_is_discarded() -> None:
    """As without a type."""
    async with one(lambda r: answer(Gate("go"), "ok")) as life:
        life.agent.followup("running")
        await settled()
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(MessageDiscarded):
                    await life.agent.ask("mine", returns=int)

            nursery.start_soon(ask)
            await settled()
            life.agent.inbox.clear()
        life.model.gates.open("go")


@played
async def test_asking_from_inside_raises_at_once() -> None:
    """WouldDeadlock, before the type is looked at or anything is sent."""
    found: list[type] = []

    @tool
    async def inside() -> str:
        agent = _agent[0]
        try:
            await agent.ask("x", returns=complex)
        except WouldDeadlock as error:
            found.append(type(error))
        return "ok"

    _agent: list[Agent] = []
    async with one([call("inside"), call("answer", value=1)], [inside]) as life:
        _agent.append(life.agent)
        assert (await life.agent.ask("go", returns=int)).value == 1
        assert found == [WouldDeadlock]


# --- more than one --------------------------------------------------------------------------


@played
async def test_an_answer_beside_other_calls_stands_although_they_failed() -> None:
    """C64 C122: the batch is settled in order; the model does not read the other results."""

    @tool
    async def fail() -> str:
        raise ValueError("no")

    async with one([answer(call("fail", id="f"), call("answer", id="a", value=3))], [fail]) as life:
        assert (await life.agent.ask("go", returns=int)).value == 3
        assert codes(life.session) == {"f": None, "a": None}
        assert results(life.session)["f"] == "Error: no"
        assert life.model.attempts == 1


@pytest.mark.parametrize(
    ("values", "last"), [((1, 2), 2), (("x", 2), 2), ((1, "x"), 1)], ids=["both", "second", "first"]
)
def test_of_two_answers_in_one_step_the_last_that_fits_counts(
    values: tuple[object, object], last: int
) -> None:
    """In model order, which is the order of the log."""

    @played
    async def run() -> None:
        calls = [call("answer", id=f"c{i}", value=item) for i, item in enumerate(values)]
        async with one([answer(*calls)]) as life:
            assert (await life.agent.ask("go", returns=int)).value == last
            assert life.model.attempts == 1

    run()


@played
async def test_steering_after_an_answer_may_change_it() -> None:
    """C64: a conclusion never short-circuits submitted input; the last committed answer counts."""

    async def steer(value: Any, proceed: Any) -> Any:
        outcome = await proceed()
        if value.call.id == "a":
            life.agent.steer("are you sure?")
        return outcome

    async with one([call("answer", id="a", value=1), call("answer", id="b", value=2)]) as life:
        life.hooks.tool_post_execute.listen(steer)
        assert (await life.agent.ask("go", returns=int)).value == 2


@played
async def test_an_answer_given_before_steering_stands_when_prose_follows() -> None:
    """No repair: there is an answer."""

    async def steer(value: Any, proceed: Any) -> Any:
        life.agent.steer("thanks")
        return await proceed()

    async with one([call("answer", value=1), answer("welcome")]) as life:
        life.hooks.tool_post_execute.listen(steer)
        found = await life.agent.ask("go", returns=int)
        assert (found.value, found.text, life.model.attempts) == (1, "welcome", 2)


@pytest.mark.parametrize("seed", range(3))
def test_concurrent_asks_of_different_types_each_get_their_own(seed: int) -> None:
    """C48 C56: one turn each, its own tools in each."""

    def reply(request: Any) -> Any:
        names = {tool.name: tool.parameters for tool in request.tools}
        if "answer" not in names:
            return answer(Delay(1), "plain")
        kind = names["answer"]["properties"]
        given = {"why": "fog"} if "why" in kind else {"value": 7}
        return answer(Delay(1), call("answer", given))

    async def run() -> None:
        got: dict[str, object] = {}

        async def ask(agent: Agent, name: str, returns: object) -> None:
            found = await agent.ask(name, returns=returns)
            got[name] = found.value

        async def plain(agent: Agent) -> None:
            got["plain"] = (await agent.ask("plain")).text

        async with one(ScriptedModel(reply)) as life, trio.open_nursery() as nursery:
            nursery.start_soon(ask, life.agent, "int", int)
            nursery.start_soon(ask, life.agent, "unknown", Unknown)
            nursery.start_soon(plain, life.agent)
            nursery.start_soon(ask, life.agent, "again", int)
        assert got == {"int": 7, "unknown": Unknown("fog"), "plain": "plain", "again": 7}

    play(run, seed=seed)


@played
async def test_the_same_message_cannot_be_asked_twice() -> None:
    """C54: as without a type."""
    message = UserMessage("mine")
    async with one(lambda r: answer(Gate("go"), call("answer", value=1))) as life:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                assert (await life.agent.ask(message, returns=int)).value == 1

            nursery.start_soon(ask)
            await settled()
            with pytest.raises(DuplicateMessage):
                await life.agent.ask(message, returns=str)
            life.model.gates.open("go")


@played
async def test_an_interrupted_step_is_no_failure_to_answer() -> None:
    """C131: the answer was not refused, it was cut; the one repair is still there."""

    @tool
    async def wait() -> str:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    entries = [
        answer(call("wait", id="w"), call("answer", id="a", value=1)),
        answer("prose"),
        call("answer", id="b", value=2),
    ]
    async with one(entries, [wait]) as life, trio.open_nursery() as nursery:

        async def ask() -> None:
            assert (await life.agent.ask("go", returns=int)).value == 2

        nursery.start_soon(ask)
        await settled()
        life.agent.interrupt("hurry")
        await life.agent.wait_idle()
        assert codes(life.session) == {
            "w": "ABORTED",
            "a": "ABORTED_BEFORE_DISPATCH",
            "b": None,
        }
        assert life.model.attempts == 3
        check(life.session)


# --- names, visibility, prefix --------------------------------------------------------------


@played
async def test_a_users_tool_of_that_name_keeps_it() -> None:
    """C39: the name is free or another is taken; both can be called."""

    @tool(name="answer")
    async def users(text: str) -> str:
        return f"said {text}"

    entries = [call("answer", id="u", text="hi"), call("answer_2", value=3)]
    async with one(entries, [users]) as life:
        assert (await life.agent.ask("go", returns=int)).value == 3
        assert results(life.session)["u"] == "said hi"


@played
async def test_the_repair_names_the_tool_that_was_shown() -> None:
    """With another name taken, the message says which."""

    @tool(name="answer")
    async def users() -> str:
        return ""

    async with one([answer("prose"), call("answer_2", value=3)], [users]) as life:
        assert (await life.agent.ask("go", returns=int)).value == 3
        assert "`answer_2`" in life.request(1)[-1]


@played
async def test_a_tool_registered_during_the_turn_waits_for_its_end() -> None:
    """C37: registering is never refused because of an ask; the turn's own tool is found first."""

    @tool(name="answer")
    async def users() -> str:
        return "the user's"

    model = ScriptedModel(
        [answer(Gate("go"), call("answer", value=3)), call("answer", id="u"), "x"]
    )
    async with one(model) as life, trio.open_nursery() as nursery:

        async def ask() -> None:
            assert (await life.agent.ask("go", returns=int)).value == 3

        nursery.start_soon(ask)
        await settled()
        life.agent.scope.add_tool(users)
        model.gates.open("go")
        await life.agent.wait_idle()
        await life.say("now")
        assert results(life.session)["u"] == "the user's"


@played
async def test_restrictions_of_the_agent_do_not_hide_it() -> None:
    """C117: they hide the tools of outer scopes."""
    async with one([call("answer", value=3)]) as life:
        life.agent.scope.restrict(allow=[])
        assert (await life.agent.ask("go", returns=int)).value == 3


@pytest.mark.parametrize("order", [None, ["zeta", "look"], ["<unlisted-tools>", "look"]], ids=str)
def test_it_is_shown_after_all_other_tools_whatever_their_order(order: list[str] | None) -> None:
    """C99 C172: an order need not know of it, and the declarations before it stay the same."""

    @tool
    async def look() -> str:
        return ""

    @tool
    async def zeta() -> str:
        return ""

    @played
    async def run() -> None:
        async with one(["ok", call("answer", value=1)], [look, zeta]) as life:
            if order is not None:
                life.agent.scope.order_tools(order)
            await life.agent.ask("plain")
            await life.agent.ask("typed", returns=int)
            plain, typed = [[t.name for t in r.tools] for r in life.model.requests]
            assert typed == [*plain, "answer"]
            assert len(plain) == 2

    run()


@played
async def test_asking_for_one_type_again_writes_no_header() -> None:
    """C80 C100 C172: the tools of consecutive typed turns are equal, so the prefix is kept."""
    async with one([call("answer", value=i) for i in range(4)]) as life:
        assert [(await life.agent.ask("go", returns=int)).value for _ in range(4)] == [0, 1, 2, 3]
        assert headers(life.session) == ["request/header initial"]
        assert "developer/message" not in log(life.session)
        for earlier, later in zip(life.model.requests, life.model.requests[1:], strict=False):
            assert later.tools == earlier.tools
            assert shown(later.messages)[: len(earlier.messages)] == shown(earlier.messages)


@played
async def test_other_turns_do_not_see_it_and_the_log_says_when_it_came_and_went() -> None:
    """C80 C100: each change of the tools is a header and a developer message."""
    model = ScriptedModel(["a", call("answer", value=1), "b"])
    async with one(model) as life:
        await life.agent.ask("first")
        await life.agent.ask("second", returns=int)
        await life.agent.ask("third")
        assert [[t.name for t in r.tools] for r in model.requests] == [[], ["answer"], []]
        assert headers(life.session) == [
            "request/header initial",
            "request/header change",
            "request/header change",
        ]
        assert [m for m in shown(life.session.history()) if m.startswith("developer")] == [
            "developer: +answer",
            "developer: -answer",
        ]


@played
async def test_resumed_sessions_show_no_tool_of_an_earlier_ask() -> None:
    """C80 C150: an ask lives in its program, not in the log."""
    store = MemoryStore()
    async with one([call("answer", value=1)], engine={"store": store}, session_id="s") as life:
        await life.agent.ask("go", returns=int)
    model = ScriptedModel(["plain", call("answer", value=2)])
    async with engine_on(model, store=store) as engine, engine.open_agent(resume="s") as agent:
        assert (await agent.ask("go on")).text == "plain"
        assert (await agent.ask("and now", returns=int)).value == 2
        assert [len(request.tools) for request in model.requests] == [0, 1]
        check(agent.session)


@played
async def test_children_do_not_see_the_tool_of_their_parents_turn() -> None:
    """C37: it is the agent's own; a child asks and answers for itself."""

    @tool
    async def delegate(run: ToolRun) -> str:
        parent = life.engine.agents.get(run.agent.id)
        async with life.engine.open_agent(**ROUTE, parent=parent) as child:
            plain = await child.ask("plain")
            typed = await child.ask("typed", returns=str)
            return f"{plain.text} {typed.value}"

    def names(request: Any) -> Any:
        return answer(",".join(sorted(tool.name for tool in request.tools)))

    # The parent, twice its child, and the parent again.
    entries: list[Any] = [call("delegate", id="d"), names, call("answer", value="typed")]
    async with one([*entries, call("answer", value=5)], [delegate]) as life:
        assert (await life.agent.ask("go", returns=int)).value == 5
        assert results(life.session)["d"] == "delegate typed"


@played
async def test_on_a_route_that_updates_tools_the_prompt_is_not_rewritten() -> None:
    """C97: with `tool_update` the additions and removals are told in place."""
    info = ModelInfo(tool_update=True, system_prompt_update="in-history")
    model = ScriptedModel(["a", call("answer", value=1), "b"], info=info)
    async with one(model, system="Be brief.") as life:
        await life.agent.ask("first")
        await life.agent.ask("second", returns=int)
        await life.agent.ask("third")
        assert [m for m in shown(life.session.history()) if m.startswith("system")] == [
            "system: Be brief."
        ]


@played
async def test_a_pre_execute_policy_may_ask_for_approval_of_it_too() -> None:
    """C113 C114: it goes through the pipeline as every tool does."""
    seen: list[str] = []

    async def policy(hook: Any, proceed: Any) -> Any:
        seen.append(hook.call.name)
        return Deny("first look") if len(seen) == 1 else await proceed()

    async with one([call("answer", value=1), call("answer", value=2)]) as life:
        life.hooks.tool_pre_execute.listen(policy)
        assert (await life.agent.ask("go", returns=int)).value == 2
        assert seen == ["answer", "answer"]


@played
async def test_a_turn_without_a_type_is_a_plain_turn() -> None:
    """The type of the result is `Turn`, and no tool is shown."""
    async with one(["ok"]) as life:
        turn = await life.agent.ask("go")
        assert type(turn) is Turn
        assert not hasattr(turn, "value")
