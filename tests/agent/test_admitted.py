"""What listeners and contributors give is checked before any of it is in the log (C76, C77, C99).

And variants of admission beside those of test_headers.py: prompts, series, routes, contexts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from tests.agent.kit import check, endings, engine_on, play, played
from tests.agent.rig import Fussy, Life, configs, headers, log, one
from tests.agent.test_headers import (
    CAPABLE,
    IN_HISTORY,
    Weather,
    asked,
    contexts,
    echo,
    failing,
    named,
    on_failure,
    prompts,
    setting,
)

from terzetto import Assembly, Enter, InvalidValue, ModelInfo, TurnFailed, UserMessage
from terzetto.llm.scripted import ScriptedModel, refuse
from terzetto.stores import MemoryStore
from terzetto.vocabulary import ModelSelection, Replace, RequestHeaderEvent, texts

NOTHING = ["turn/start", "turn/end Failed"]


async def refused(life: Life, message: str, code: str = "UNKNOWN") -> None:
    """A turn fails with this message, nothing of it is in the log, and the next one runs."""
    with pytest.raises(TurnFailed, match=message) as caught:
        await life.agent.ask("lost")
    assert caught.value.failure.code == code
    assert not any(entry.startswith(("system", "user", "request")) for entry in log(life.session))


# --- what listeners give ---------------------------------------------------------------------

ASSEMBLIES: dict[str, tuple[Callable[[Assembly], Any], str]] = {
    "nothing": (lambda a: None, "listener of assemble returned NoneType, expected Assembly"),
    "something else": (lambda a: {"system": ""}, "returned dict, expected Assembly"),
    "no text": (lambda a: evolve(a, system=None), "Assembly: system: expected a text, got None"),
    "a tool twice": (lambda a: evolve(a, tools=a.tools * 2), r"\['echo'\] are declared twice"),
    "a Tool": (lambda a: evolve(a, tools=(echo,)), "expected ToolSchema, got FunctionTool"),
    "a name": (lambda a: evolve(a, tools="echo"), "expected a tuple of ToolSchema, got a text"),
}


@pytest.mark.parametrize("what", ASSEMBLIES)
def test_an_assembly_that_cannot_be_sent_is_refused(what: str) -> None:
    """C99, C162: before the step, so that the log stays one that can be loaded."""
    change, message = ASSEMBLIES[what]

    async def main() -> None:
        async with one(["yes"], [echo]) as life:

            async def listener(value: Assembly, proceed: Any) -> Any:
                return change(await proceed())

            with life.hooks.assemble.listen(listener):
                await refused(life, message)
                assert log(life.session) == NOTHING
            await life.say("again")
            assert life.request() == ["user: again"]
            check(life.session)

    play(main)


@played
async def test_an_assembly_may_not_name_another_route() -> None:
    """C85, C86: "assembly and routing never see different routes"."""
    async with one(["yes"]) as life:

        async def listener(value: Assembly, proceed: Any) -> Assembly:
            return evolve(await proceed(), selection=ModelSelection("scripted", "other"))

        with life.hooks.assemble.listen(listener):
            await refused(life, "assemble listener changed the route", texts.ROUTE_CHANGED)
        await life.say()
        assert [request.config.model for request in life.model.requests] == ["m"]


@played
async def test_tools_of_an_assembly_are_frozen_and_inherited() -> None:
    """C80, C83: a list is taken as it is at that moment; equal ones write no second header."""
    async with one(["one", "two"], [echo]) as life:
        kept: list[list[Any]] = []

        async def listener(value: Assembly, proceed: Any) -> Assembly:
            inner = await proceed()
            kept.append(list(inner.tools))
            assembly: Assembly = evolve(inner, tools=kept[-1])
            kept[-1].clear()
            return assembly

        life.hooks.assemble.listen(listener)
        await life.say()
        await life.say()
        assert [[t.name for t in r.tools] for r in life.model.requests] == [["echo"]] * 2
        assert headers(life.session) == ["request/header initial"]
        (event,) = [e for e in life.session.events if isinstance(e.data, RequestHeaderEvent)]
        assert type(event.data.header.tools) is tuple


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: None, "listener of pre_step returned NoneType, expected Enter or Reject"),
        (lambda: (UserMessage("x"),), "returned tuple, expected Enter or Reject"),
        (lambda: Enter(("x",)), "Enter: messages: expected UserMessage, got str"),  # type: ignore[arg-type]
        (lambda: Enter("x"), "expected a tuple of UserMessage, got a text"),  # type: ignore[arg-type]
    ],
    ids=["nothing", "messages", "a text among them", "a text"],
)
def test_a_decision_that_is_none_is_refused(given: Callable[[], Any], message: str) -> None:
    """C73."""

    async def main() -> None:
        async with one(["yes"]) as life:

            async def listener(value: Any, proceed: Any) -> Any:
                return given()

            with life.hooks.pre_step.listen(listener):
                await refused(life, message)
                assert log(life.session) == NOTHING
            await life.say("again")
            assert life.request() == ["user: again"]

    play(main)


@played
async def test_a_configuration_that_is_none_is_refused() -> None:
    """C78."""
    async with one(["yes"]) as life:

        async def listener(value: Any, proceed: Any) -> Any:
            await proceed()

        with life.hooks.request.listen(listener):
            await refused(life, "listener of request returned NoneType, expected CallConfig")
        await life.say("again")
        assert life.request() == ["user: again"]


# --- what contributors give -------------------------------------------------------------------


@played
async def test_a_context_that_fails_late_leaves_no_half_of_a_request() -> None:
    """C77: it is asked before the prompt is written, so the breath is whole or not at all."""
    asks = 0

    def where(agent: Any) -> str:
        nonlocal asks
        asks += 1
        if asks == 2:  # once for pre_step's decision, once for the request
            raise ValueError("moved")
        return "here"

    async with one(["yes"]) as life:
        life.agent.scope.add_section("who", "A cook.")
        life.agent.scope.add_context("where", where)
        await refused(life, "moved")
        assert log(life.session) == ["turn/start", "step/start", "step/end", "turn/end Failed"]
        await life.say("again")
        assert life.request() == ["system: A cook.", "user: again", "context: here"]
        check(life.session)


@pytest.mark.parametrize("kind", ["section", "variable", "context"])
def test_an_async_text_is_named(kind: str) -> None:
    """C99, C102. No warning of a coroutine that nobody awaited: warnings are errors here."""

    async def text(agent: Any) -> str:
        return "late"

    async def main() -> None:
        async with one(["yes"]) as life:
            scope = life.agent.scope
            if kind == "section":
                scope.add_section("it", text)  # type: ignore[arg-type]
            elif kind == "context":
                scope.add_context("it", text)  # type: ignore[arg-type]
            else:
                scope.set_variable("it", text)  # type: ignore[arg-type]
                scope.add_section("with", "{{it}}")
            await refused(life, f"{kind} 'it': its text is an async function")

    play(main)


@played
async def test_contributions_that_cannot_be_are_refused_at_once() -> None:
    """C99: not by the turn that meets them, and they leave nothing behind."""
    async with one(["yes"]) as life:
        scope: Any = life.agent.scope
        for order in (math.nan, math.inf, "1", None):
            with pytest.raises(InvalidValue, match="order of 'x': expected a finite number"):
                scope.add_section("x", "X", order=order)
            with pytest.raises(InvalidValue, match="order of 'x'"):
                scope.add_context("x", "X", order=order)
        for text in (None, 3, b"x"):
            with pytest.raises(InvalidValue, match=r"section 'x': expected a text, or a function"):
                scope.add_section("x", text)
        for name in ("my name", "1", "a}}", "-x", "naïve name"):
            with pytest.raises(InvalidValue, match=r"variable .*: expected a letter"):
                scope.set_variable(name, "X")
        with pytest.raises(InvalidValue, match=r"expected names, got one text; write \['echo'\]"):
            scope.order_tools("echo")
        for name in ("", None, 3):
            with pytest.raises(InvalidValue, match="section: expected a name"):
                scope.add_section(name, "X")
        await life.say("go")
        assert life.request() == ["user: go"]


# --- variants of admission ----------------------------------------------------------------------


def starting(life: Life) -> None:
    """Every step starts a series from now on."""

    async def listener(value: Any, proceed: Any) -> Any:
        decision = await proceed()
        return evolve(decision, starts_series=True) if isinstance(decision, Enter) else decision

    life.hooks.pre_step.listen(listener)


@pytest.mark.parametrize("info", [ModelInfo(), IN_HISTORY, CAPABLE], ids=["none", "some", "both"])
def test_a_series_start_with_the_same_prompt_keeps_it(info: ModelInfo) -> None:
    """C94: whatever the route can do, one unchanged prompt gives no event."""

    async def main() -> None:
        async with one(ScriptedModel(["one", "two"], info=info), system="P") as life:
            await life.say()
            starting(life)
            await life.say()
            assert prompts(life) == [("P", False)]
            assert headers(life.session) == ["request/header initial", "request/header series"]

    play(main)


@played
async def test_a_prompt_that_was_appended_is_kept_by_a_later_series_start() -> None:
    """C94, C92: the latest surviving node decides, older ones stay."""
    async with one(ScriptedModel(["one", "two", "three"], info=IN_HISTORY)) as life:
        first = life.agent.scope.add_section("who", "old")
        await life.say()
        first.remove()
        life.agent.scope.add_section("who", "new")
        await life.say()
        starting(life)
        await life.say()
        assert prompts(life) == [("old", False), ("new", False)]
        assert life.request()[0] == "system: old"


@played
async def test_the_next_route_consolidates_what_a_capable_one_appended() -> None:
    """C91, C93: the prepared route decides; the same text, and yet the head is rewritten."""
    model = Fussy(["one", "two", "three"], infos={"m": IN_HISTORY})
    async with one(model) as life:
        first = life.agent.scope.add_section("who", "old")
        await life.say()
        first.remove()
        life.agent.scope.add_section("who", "new")
        await life.say()
        life.agent.model.select("scripted", "plain")
        await life.say("last")
        assert prompts(life)[2:] == [("", True), ("new", True)]
        assert life.request()[0] == "system: new"
        assert headers(life.session)[-1] == "request/header change series"
        assert [c.system_prompt_update for c in contexts(life)] == ["in-history", None]
        check(life.session)


@played
async def test_a_route_that_loses_its_capability_between_attempts_consolidates_in_the_retry() -> (
    None
):
    """C91, C98: every attempt is prepared, and what it declares counts."""
    model = Fussy(["one", refuse(500), "two"], infos={"m": IN_HISTORY})
    async with one(model) as life:
        first = life.agent.scope.add_section("who", "old")
        await life.say()
        first.remove()
        life.agent.scope.add_section("who", "new")
        on_failure(life, model.infos.clear)
        await life.say("now")
        assert prompts(life) == [("old", False), ("new", False), ("", True), ("new", True)]
        assert [line for line in life.request() if line.startswith("system")] == ["system: new"]
        assert life.request().count("user: now") == 1
        assert headers(life.session) == ["request/header initial", "request/header series"]
        check(life.session)


@played
async def test_a_prompt_that_changes_while_a_request_fails_waits_for_the_next_step() -> None:
    """C98: retries reuse the assembly of their step, also what an agent's variable said."""
    model = ScriptedModel([refuse(500), asked(), "two"])
    async with one(model, [echo], system="P") as life:
        life.agent.scope.set_variable("mood", "calm")
        on_failure(life, lambda: life.agent.scope.add_section("more", "Hurry."))
        await life.say()
        systems = [r.messages[0].text for r in model.requests]  # type: ignore[union-attr]
        assert systems == ["P", "P", "P\n\nHurry."]


@pytest.mark.parametrize("info", [ModelInfo(), CAPABLE], ids=["plain", "capable"])
def test_clearing_again_and_after_a_resume_writes_nothing_more(info: ModelInfo) -> None:
    """C95: dormant empty nodes stay as they are, and no older instruction comes back."""

    async def main() -> None:
        store = MemoryStore()
        model = ScriptedModel(["one", "two", "three", "four", "five", "six"], info=info)
        async with one(model, engine={"store": store}, session_id="S") as life:
            for text in ("old", "new", "", ""):
                registration = life.agent.scope.add_section("who", text)
                await life.say()
                registration.remove()
            written = len(prompts(life))
            assert [m for m in life.request() if m.startswith("system")] == []
        async with one(model, engine={"store": store}, resume="S") as life:
            await life.say()
            assert len(prompts(life)) == written
            assert [m for m in life.request() if m.startswith("system")] == []
            life.agent.scope.add_section("who", "back")
            await life.say()
            shown = [m for m in life.request() if m.startswith("system")]
            assert shown == ["system: back"]
            text, replaces = prompts(life)[-1]
            assert (text, replaces) == ("back", info.system_prompt_update is None)
            check(life.session)

    play(main)


@pytest.mark.parametrize("info", [ModelInfo(), IN_HISTORY], ids=["plain", "capable"])
def test_a_restored_prompt_follows_the_rule_of_its_route(info: ModelInfo) -> None:
    """C96: a resume alone continues the series; the header is full all the same (C150)."""

    async def main() -> None:
        store = MemoryStore()
        model = ScriptedModel(["one", "two", "three"], info=info)
        kept: dict[str, Any] = {"engine": {"store": store}}
        async with one(model, **kept, session_id="S", system="P") as life:
            await life.say()
        async with one(model, **kept, resume="S", system="P") as life:
            await life.say()
            assert prompts(life) == [("P", False)]
            assert headers(life.session)[-1] == "request/header resume"
        async with one(model, **kept, resume="S", system="Q") as life:
            await life.say()
            capable = info.system_prompt_update == "in-history"
            assert prompts(life) == [("P", False), ("Q", not capable)]
            series = "" if capable else " series"
            assert headers(life.session)[-1] == f"request/header resume{series}"
            check(life.session)

    play(main)


UPDATES = [
    ("in-history", True, False),
    ("in-history", False, True),
    (None, True, True),
    (None, False, True),
]


@pytest.mark.parametrize(("prompt_update", "tool_update", "rewrites"), UPDATES)
def test_prompt_and_tools_change_together(
    prompt_update: Any, tool_update: bool, rewrites: bool
) -> None:
    """C97: only a route with both takes a new prompt behind the history."""

    async def main() -> None:
        info = ModelInfo(system_prompt_update=prompt_update, tool_update=tool_update)
        async with one(ScriptedModel(["one", "two"], info=info), [echo], system="P") as life:
            await life.say()
            life.agent.scope.add_section("more", "Q")
            life.agent.scope.add_tool(named("extra"))
            await life.say()
            assert prompts(life)[1:] == [("P\n\nQ", rewrites)]
            series = " series" if rewrites else ""
            assert headers(life.session)[-1] == f"request/header change{series}"
            assert life.request()[-1] == "developer: +extra"
            check(life.session)

    play(main)


@played
async def test_a_rejected_step_leaves_the_replacement_before_it_to_the_next_request() -> None:
    """C96: "since attachment or the last request"; a step without one does not count."""
    async with one(["one", "two"], system="P") as life:
        await life.say("long")
        seq = life.session.surface.nodes[1].seq
        life.session.replace(seq, seq, [UserMessage("short")])

        async def fail(value: Any, proceed: Any) -> Any:
            raise ValueError("no")

        with life.hooks.request.listen(fail):
            await failing(life)
        assert headers(life.session) == ["request/header initial"]
        await life.say()
        assert headers(life.session) == ["request/header initial", "request/header series"]


@played
async def test_a_snapshot_that_a_replacement_removed_is_restored_even_if_it_is_unchanged() -> None:
    """C102; one that the context has outgrown is not brought back."""
    async with one(["one", "two", "three", "four"]) as life:
        weather = Weather(life, "dry")
        await life.say("a")
        weather.text = "rain"
        await life.say("b")
        assert [m for m in life.request() if m.startswith("context")] == [
            "context: dry",
            "context: rain",
        ]
        last = life.session.surface.snapshots[-1].seq
        life.session.replace(last, last, [UserMessage("gone")])
        weather.text = "dry"
        await life.say("c")  # what is retained says it already
        assert [m for m in life.request() if m.startswith("context")] == ["context: dry"]
        weather.text = "rain"
        await life.say("d")
        assert life.request()[-1] == "context: rain"
        check(life.session)


@played
async def test_a_choice_of_model_outlives_resume_and_goes_with_a_fork() -> None:
    """C88, C150: with its effort; what `open_agent` was given first does not come back."""
    store = MemoryStore()
    model = Fussy(["one", "two", "three"])
    kept: dict[str, Any] = {"engine": {"store": store}}
    async with one(model, **kept, session_id="S") as life:
        life.agent.model.select("scripted", "big", "high")
        await life.say()
    async with one(model, **kept, resume="S") as life:
        await life.say()
    async with engine_on(model, store=store) as engine, engine.open_agent(fork="S") as agent:
        await agent.ask("go")
    routes = [(r.config.model, r.config.effort) for r in model.requests]
    assert routes == [("big", "high")] * 3


@played
async def test_a_refused_effort_commits_nothing_and_the_next_choice_runs() -> None:
    """C76, C87."""
    model = Fussy(["yes"], efforts=("low",))
    async with one(model, effort="ultra", system="P") as life:
        await refused(life, "cannot do ultra", texts.UNSUPPORTED_REASONING_EFFORT)
        life.agent.model.select("scripted", "m")
        await life.say("again")
        assert life.request() == ["system: P", "user: again"]
        assert type(endings(life.session)[-1]).__name__ == "Completed"
        assert not any(isinstance(e.surface_op, Replace) for e in life.session.events)


@played
async def test_defaults_of_one_route_do_not_go_to_the_next() -> None:
    """C82: marked values are the adapter's; an explicit one of the same size is the caller's."""
    model = Fussy(["one", "two", "three", "four"], default_effort="low", default_max_tokens=100)
    async with one(model) as life:
        await life.say()
        model.default_effort = model._default_max_tokens = None
        life.agent.model.select("scripted", "other")
        await life.say()
        with life.hooks.request.listen(setting(max_tokens=100)):
            model._default_max_tokens = 100
            await life.say()
        life.agent.model.select("scripted", "third")
        model._default_max_tokens = 7
        await life.say()
        assert configs(model) == [
            {"effort": "low", "max_tokens": 100},
            {},
            {"max_tokens": 100},
            {"max_tokens": 100},
        ]
        marks = [
            sorted(e.data.header.adapter_defaults)
            for e in life.session.events
            if isinstance(e.data, RequestHeaderEvent)
        ]
        assert marks == [["maxTokens", "reasoningEffort"], [], [], []]


@played
async def test_a_mark_that_goes_is_a_change_although_the_value_stays() -> None:
    """C80, C82."""
    model = Fussy(["one", "two", "three"], default_max_tokens=100)
    async with one(model) as life:
        await life.say()
        with life.hooks.request.listen(setting(max_tokens=100)):
            await life.say()
        await life.say()
        assert configs(model) == [{"max_tokens": 100}] * 3
        assert headers(life.session) == ["request/header initial", "request/header change"]


@played
async def test_what_a_route_declares_is_logged_with_the_attempt_that_it_is_new_for() -> None:
    """C81, C91: also between the attempts of a step, and after a resume only if it differs."""
    store = MemoryStore()
    model = Fussy([refuse(500), "one", "two", "three"], infos={"m": ModelInfo(context_window=1)})
    kept: dict[str, Any] = {"engine": {"store": store}}

    def grow() -> None:
        model.infos["m"] = ModelInfo(context_window=2)

    async with one(model, **kept, session_id="S") as life:
        on_failure(life, grow)
        await life.say()
        assert [c.context_window for c in contexts(life)] == [1, 2]
        assert headers(life.session) == ["request/header initial"]
    async with one(model, **kept, resume="S") as life:
        await life.say()
        assert [c.context_window for c in contexts(life)] == [1, 2]
    model.infos["m"] = IN_HISTORY
    async with one(model, **kept, resume="S") as life:
        await life.say()
        assert [(c.context_window, c.system_prompt_update) for c in contexts(life)][2:] == [
            (None, "in-history")
        ]
