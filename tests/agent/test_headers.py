"""Requests and what the log keeps of them: options, model, headers, tools, prompt, context."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from tests.agent.kit import check, endings, played
from tests.agent.rig import Fussy, Life, configs, headers, log, one, show, shown
from tests.whole import whole

from terzetto import (
    Assembly,
    CallConfig,
    Enter,
    ModelInfo,
    PreStep,
    Reject,
    RequestFailed,
    RequestHook,
    Retry,
    Tool,
    TurnFailed,
    TurnStopping,
    UserMessage,
    tool,
)
from terzetto.llm.scripted import ScriptedModel, answer, call, refuse
from terzetto.stores import MemoryStore
from terzetto.testing._invariants import Evidence, calls_are_answered, history_is_valid
from terzetto.tools import raw_tool
from terzetto.vocabulary import (
    APPEND,
    DeveloperMessageEvent,
    Failed,
    Replace,
    RequestContextEvent,
    RequestHeaderEvent,
    SystemMessageEvent,
    UserMessageEvent,
    texts,
)

IN_HISTORY = ModelInfo(system_prompt_update="in-history")
CAPABLE = ModelInfo(system_prompt_update="in-history", tool_update=True)


@tool
async def echo(x: str = "x") -> str:
    """Echo."""
    return x


def named(name: str, description: str = "") -> Tool:
    async def body(arguments: object) -> str:
        return name

    parameters = {"type": "object", "properties": {}}
    return raw_tool(name=name, description=description, parameters=parameters, body=body)


def asked(name: str = "echo") -> Any:
    return answer(call(name, id="c1"))


def setting(**changes: Any) -> Any:
    """A `request` listener that sets options, or fields of the configuration."""

    async def listener(hook: RequestHook, proceed: Any) -> CallConfig:
        config: CallConfig = await proceed()
        fields = {n: v for n, v in changes.items() if n in CallConfig.__slots__}
        options = {n: v for n, v in changes.items() if n not in fields}
        return evolve(config, **fields).with_options(**options)

    return listener


async def failing(life: Life, text: str = "go") -> str:
    """One turn that fails; the code of its failure."""
    with pytest.raises(TurnFailed) as caught:
        await life.agent.ask(text)
    return caught.value.failure.code


def on_failure(life: Life, action: Any) -> None:
    """Do *action* when the first request fails, and retry."""

    async def recover(value: RequestFailed, proceed: Any) -> Retry:
        action()
        return Retry()

    life.hooks.request_error.listen(recover)


def contexts(life: Life) -> list[RequestContextEvent]:
    return [e.data for e in life.session.events if isinstance(e.data, RequestContextEvent)]


def prompts(life: Life) -> list[tuple[str, bool]]:
    """Every system message event: its text, and whether it replaces another."""
    return [
        (e.data.message.text, isinstance(e.surface_op, Replace))
        for e in life.session.events
        if isinstance(e.data, SystemMessageEvent)
    ]


# --- the request hook --------------------------------------------------------------------


@played
async def test_options_set_by_a_listener_persist_without_it() -> None:
    """C78 C82: explicit settings persist; one header for the change."""
    async with one(["one", "two", "three"]) as life:
        registration = life.hooks.request.listen(setting(temperature=0.5))
        await life.say()
        registration.remove()
        await life.say()
        assert configs(life.model) == [{"temperature": 0.5}] * 2
        assert headers(life.session) == ["request/header initial"]


@played
async def test_a_listener_may_remove_an_option() -> None:
    """C82."""
    async with one(["one", "two", "three"]) as life:
        registration = life.hooks.request.listen(setting(temperature=0.5))
        await life.say()
        registration.remove()

        async def plain(hook: RequestHook, proceed: Any) -> CallConfig:
            return evolve(await proceed(), options={})

        registration = life.hooks.request.listen(plain)
        await life.say()
        registration.remove()
        await life.say()
        assert configs(life.model) == [{"temperature": 0.5}, {}, {}]
        assert headers(life.session) == ["request/header initial", "request/header change"]


@played
async def test_listeners_wrap_each_other_and_see_the_attempt() -> None:
    """C78: outermost first; every attempt is asked for."""
    seen: list[tuple[str, int, object]] = []
    async with one([refuse(500), "ok"]) as life:

        def look(name: str, temperature: float) -> Any:
            async def listener(hook: RequestHook, proceed: Any) -> CallConfig:
                config = await proceed(evolve(hook, config=hook.config.with_options(by=name)))
                seen.append((name, hook.attempt, config.options.get("by")))
                return config.with_options(temperature=temperature)  # type: ignore[no-any-return]

            return listener

        life.engine.scope.hooks.request.listen(look("outer", 0.1))
        life.hooks.request.listen(look("inner", 0.9))
        on_failure(life, lambda: None)
        await life.say()
        assert seen == [
            ("inner", 1, "inner"),
            ("outer", 1, "inner"),
            ("inner", 2, "inner"),
            ("outer", 2, "inner"),
        ]
        assert configs(life.model) == [{"by": "inner", "temperature": 0.1}] * 2
        assert headers(life.session) == ["request/header initial"]


@pytest.mark.parametrize(
    "change", [{"provider": "other"}, {"model": "other"}, {"effort": "high"}], ids=str
)
def test_a_listener_may_not_change_the_route(change: dict[str, str]) -> None:
    """C78, run 089: refused before input is committed; recovery is not asked."""
    asked_for: list[int] = []

    @played
    async def run() -> None:
        async with one(Fussy(["ok"])) as life:
            registration = life.hooks.request.listen(setting(**change))
            on_failure(life, lambda: asked_for.append(1))
            assert await failing(life) == texts.ROUTE_CHANGED
            assert "user/message" not in log(life.session)
            assert "request/header initial" not in log(life.session)
            assert life.model.requests == []
            registration.remove()
            await life.say("again")
            assert life.request() == ["user: again"]
            assert headers(life.session) == ["request/header initial"]
            check(life.session)

    run()
    assert asked_for == []


@pytest.mark.parametrize("effort", [None, "low"], ids=["cleared", "other"])
def test_a_listener_may_not_clear_or_change_an_effort(effort: str | None) -> None:
    """C78: "adding, changing or clearing reasoning effort"."""

    @played
    async def run() -> None:
        async with one(Fussy(["ok"]), effort="high") as life:
            life.hooks.request.listen(setting(effort=effort))
            assert await failing(life) == texts.ROUTE_CHANGED

    run()


@played
async def test_a_listener_sees_no_adapter_defaults_of_the_last_request() -> None:
    """C82: "before the next waterfall those fields are removed"."""
    seen: list[tuple[int | None, str | None]] = []
    model = Fussy(["one", "two"], default_effort="low", default_max_tokens=100)
    async with one(model) as life:

        async def look(hook: RequestHook, proceed: Any) -> CallConfig:
            seen.append((hook.config.max_tokens, hook.config.effort))
            return await proceed()  # type: ignore[no-any-return]

        life.hooks.request.listen(look)
        await life.say()
        await life.say()
        assert seen == [(None, None)] * 2
        assert configs(model) == [{"effort": "low", "max_tokens": 100}] * 2
        assert headers(life.session) == ["request/header initial"]


@played
async def test_a_new_default_is_resolved_anew_and_an_explicit_limit_is_kept() -> None:
    """C82: the route resolves its defaults again; explicit settings persist."""
    model = Fussy(["one", "two", "three"], default_max_tokens=100)
    async with one(model) as life:
        await life.say()
        model._default_max_tokens = 200
        await life.say()
        registration = life.hooks.request.listen(setting(max_tokens=50))
        await life.say()
        registration.remove()
        assert [c["max_tokens"] for c in configs(model)] == [100, 200, 50]
        model._script = type(model._script)(("never", "never", "never", "four"))
        await life.say()
        assert configs(model)[-1]["max_tokens"] == 50
        assert headers(life.session) == [
            "request/header initial",
            *["request/header change"] * 2,
        ]


@played
async def test_the_agents_limit_is_on_every_request() -> None:
    """C10, neighbour of run 093: explicit, so it is not marked as the adapter's."""
    model = Fussy([refuse(500), asked(), "two", "three"], default_max_tokens=100)
    async with one(model, [echo], max_tokens=7) as life:
        on_failure(life, lambda: None)
        await life.say()
        await life.say()
        assert [c["max_tokens"] for c in configs(model)] == [7] * 4
        (header,) = [e.data for e in life.session.events if isinstance(e.data, RequestHeaderEvent)]
        assert header.header.adapter_defaults == frozenset()


# --- model and effort --------------------------------------------------------------------


@played
async def test_a_choice_in_mid_turn_applies_to_the_next_step() -> None:
    """C85 C86: assembly and routing never see different routes; header and context follow."""
    model = Fussy([asked("switch"), "two"], infos={"big": ModelInfo(context_window=1000)})

    @tool
    async def switch() -> str:
        life.agent.model.select("scripted", "big", "high")
        return "switched"

    seen: list[tuple[str, str]] = []
    async with one(model, [switch]) as life:
        life.agent.scope.add_section("who", "You are {{model}} of {{provider}}.")

        async def assemble(value: Assembly, proceed: Any) -> Assembly:
            seen.append((value.selection.model, value.system))
            return await proceed()  # type: ignore[no-any-return]

        life.hooks.assemble.listen(assemble)
        await life.say()
        assert [(r.config.model, r.config.effort) for r in model.requests] == [
            ("m", None),
            ("big", "high"),
        ]
        assert seen == [
            ("m", "You are m of scripted."),
            ("big", "You are big of scripted."),
        ]
        assert life.request()[0] == "system: You are big of scripted."
        assert [(c.model, c.context_window) for c in contexts(life)] == [("m", None), ("big", 1000)]
        check(life.session)


@played
async def test_a_choice_while_a_request_fails_does_not_change_its_retries() -> None:
    """C85: "captures provider, model and effort for the step and all its retries"."""
    async with one(Fussy([refuse(500), asked(), "two"]), [echo]) as life:
        on_failure(life, lambda: life.agent.model.select("scripted", "other"))
        await life.say()
        assert [r.config.model for r in life.model.requests] == ["m", "m", "other"]


@played
async def test_a_choice_during_pre_step_or_assembly_waits_for_the_next_step() -> None:
    """C85: captured before assembly."""
    async with one(Fussy([asked(), "two"]), [echo]) as life:

        async def choose(value: PreStep, proceed: Any) -> Any:
            life.agent.model.select("scripted", f"from step {value.step}")
            assert value.selection.model == ("m" if value.step == 1 else "from step 1")
            return await proceed()

        life.hooks.pre_step.listen(choose)
        await life.say()
        assert [r.config.model for r in life.model.requests] == ["m", "from step 1"]


@played
async def test_a_choice_without_effort_clears_the_one_before() -> None:
    """C87: and gets the adapter's default."""
    model = Fussy(["one", "two", "three"], default_effort="low")
    async with one(model, effort="high") as life:
        await life.say()
        life.agent.model.select("scripted", "m")
        await life.say()
        assert [r.config.effort for r in model.requests] == ["high", "low"]
        assert [c.effort for c in model.prepared] == ["high", None]
        events = [e.data for e in life.session.events if isinstance(e.data, RequestHeaderEvent)]
        assert [e.header.adapter_defaults for e in events] == [
            frozenset(),
            frozenset({"reasoningEffort"}),
        ]


@played
async def test_an_effort_that_the_model_cannot_do_fails_before_any_request() -> None:
    """C87 C132: nothing is committed, recovery is not asked, the next choice runs."""
    asked_for: list[int] = []
    async with one(Fussy(["ok"]), effort="ultra") as life:
        on_failure(life, lambda: asked_for.append(1))
        assert await failing(life) == texts.UNSUPPORTED_REASONING_EFFORT
        assert "user/message" not in log(life.session)
        assert life.model.requests == []
        assert asked_for == []
        life.agent.model.select("scripted", "m", "low")
        await life.say("again")
        assert life.request() == ["user: again"]


@played
async def test_choosing_the_same_again_writes_nothing_new() -> None:
    """C88 C80."""
    async with one(["one", "two"]) as life:
        await life.say()
        life.agent.model.select("scripted", "m")
        life.agent.model.select("scripted", "m")
        await life.say()
        assert log(life.session).count("model/selected") <= 1
        assert headers(life.session) == ["request/header initial"]


@played
async def test_a_resumed_agent_keeps_its_choice() -> None:
    """C150 C14: over the route it is rebuilt with; the header is written in full, `resume`."""
    store = MemoryStore()
    async with one(Fussy(["one"]), engine={"store": store}, session_id="S") as life:
        life.agent.model.select("scripted", "chosen", "high")
        await life.say()
    async with one(Fussy(["two"]), engine={"store": store}, resume="S") as life:
        await life.say()
        assert [(r.config.model, r.config.effort) for r in life.model.requests] == [
            ("chosen", "high")
        ]
        assert headers(life.session) == ["request/header initial", "request/header resume"]
        assert len(contexts(life)) == 1
        check(life.session)


# --- headers -----------------------------------------------------------------------------


@played
async def test_unchanged_steps_turns_and_retries_inherit_the_header() -> None:
    """C80 C81."""
    async with one([asked(), refuse(500), "two", "three"], [echo], system="be brief") as life:
        on_failure(life, lambda: None)
        await life.say()
        await life.say()
        assert headers(life.session) == ["request/header initial"]
        assert len(contexts(life)) == 1
        assert prompts(life) == [("be brief", False)]


@played
async def test_a_listener_may_start_a_series() -> None:
    """C70 C80 C94: an unchanged header again, reason `series`; the prompt stays."""
    async with one(["one", refuse(500), "two", "three"], system="be brief") as life:

        async def start(value: PreStep, proceed: Any) -> Any:
            decision = await proceed()
            return evolve(decision, starts_series=value.turn == 2)

        life.hooks.pre_step.listen(start)
        on_failure(life, lambda: None)
        for _ in range(3):
            await life.say()
        assert headers(life.session) == ["request/header initial", "request/header series"]
        assert prompts(life) == [("be brief", False)]


@played
async def test_a_changed_header_that_starts_a_series_says_both() -> None:
    """C80, REFERENCE 4."""
    async with one(["one", "two"]) as life:
        await life.say()
        life.hooks.request.listen(setting(temperature=1))

        async def start(value: PreStep, proceed: Any) -> Any:
            return evolve(await proceed(), starts_series=True)

        life.hooks.pre_step.listen(start)
        await life.say()
        assert headers(life.session) == ["request/header initial", "request/header change series"]


@played
async def test_a_failed_preparation_leaves_the_first_header_to_the_next_turn() -> None:
    """C76 C80: nothing is logged of a step that was not admitted."""
    async with one(Fussy(["ok"]), effort="ultra") as life:
        await failing(life)
        life.agent.model.select("scripted", "m")
        await life.say("again")
        assert headers(life.session) == ["request/header initial"]
        assert prompts(life) == [("", False)]


@played
async def test_the_context_is_logged_when_the_route_declares_something_else() -> None:
    """C81: provider, model, window, mode - compared with the latest."""
    model = Fussy(["one", "two", "three", "four"], infos={"m": ModelInfo(context_window=10)})
    async with one(model) as life:
        await life.say()
        await life.say()
        model.infos["m"] = ModelInfo(context_window=20)
        await life.say()
        model.infos["m"] = ModelInfo(context_window=20, system_prompt_update="in-history")
        await life.say()
        assert [(c.context_window, c.system_prompt_update) for c in contexts(life)] == [
            (10, None),
            (20, None),
            (20, "in-history"),
        ]
        assert headers(life.session) == ["request/header initial"]


# --- the set of tools --------------------------------------------------------------------


def announcements(life: Life) -> list[tuple[str, bool]]:
    """Every developer message, and whether it names the latest header."""
    found = []
    latest = -1
    for event in life.session.events:
        if isinstance(event.data, RequestHeaderEvent):
            latest = event.seq
        if isinstance(event.data, DeveloperMessageEvent):
            named_header = event.data.header_seq
            assert named_header in (None, latest)
            found.append((show(event.data.message), named_header is not None))
    return found


@played
async def test_additions_and_removals_are_announced() -> None:
    """C100: additions in the current order, then removals in the former; headerSeq with
    additions only; whatever the route can do."""
    async with one(lambda r: "ok", [echo]) as life:
        scope = life.agent.scope
        first = scope.add_tool(named("b"))
        second = scope.add_tool(named("a"))
        await life.say()
        assert announcements(life) == []
        first.remove()
        second.remove()
        await life.say()
        scope.add_tool(named("z"))
        scope.add_tool(named("c"))
        await life.say()
        life.engine.scope.restrict(deny=[])
        scope.restrict(deny=["echo"])
        scope.add_tool(named("d"))
        await life.say()
        assert announcements(life) == [
            ("developer: -a -b", False),
            ("developer: +c +z", True),
            ("developer: +d -echo", True),
        ]
        assert headers(life.session) == ["request/header initial", *["request/header change"] * 3]
        assert [m for m in life.request() if m.startswith("developer")] == [
            "developer: -a -b",
            "developer: +c +z",
            "developer: +d -echo",
        ]
        check(life.session)


@played
async def test_a_tool_that_is_added_by_a_tool_is_there_in_the_next_step() -> None:
    """C100, run 097: in mid-turn; after the results."""

    @tool
    async def install() -> str:
        life.agent.scope.add_tool(named("fresh"))
        return "installed"

    async with one([asked("install"), asked("fresh"), "done"], [install]) as life:
        turn = await life.agent.ask("go")
        assert turn.text == "done"
        assert [[t.name for t in r.tools] for r in life.model.requests] == [
            ["install"],
            ["fresh", "install"],
            ["fresh", "install"],
        ]
        assert life.request(1)[-2:] == ["result c1: installed", "developer: +fresh"]


@played
async def test_a_changed_schema_changes_the_header_and_is_not_announced() -> None:
    """C80 C100: names are compared."""
    async with one(lambda r: "ok") as life:
        registration = life.agent.scope.add_tool(named("t", "one"))
        await life.say()
        registration.remove()
        life.agent.scope.add_tool(named("t", "two"))
        await life.say()
        assert headers(life.session) == ["request/header initial", "request/header change"]
        assert announcements(life) == []
        assert [r.tools[0].description for r in life.model.requests] == ["one", "two"]


@played
async def test_a_changed_order_changes_the_header_and_is_not_announced() -> None:
    """C80 C99 C100."""
    async with one(lambda r: "ok") as life:
        life.agent.scope.add_tool(named("a"))
        life.agent.scope.add_tool(named("b"))
        await life.say()
        life.agent.scope.order_tools(["b", "a"])
        await life.say()
        assert [[t.name for t in r.tools] for r in life.model.requests] == [["a", "b"], ["b", "a"]]
        assert headers(life.session) == ["request/header initial", "request/header change"]
        assert announcements(life) == []


@played
async def test_a_retry_asks_with_the_tools_of_its_step() -> None:
    """C98: "retries reuse the same rendered assembly"."""
    async with one([refuse(500), "ok", "next"]) as life:
        life.agent.scope.add_context("n", lambda agent: "same")
        on_failure(life, lambda: life.agent.scope.add_tool(named("late")))
        await life.say()
        await life.say()
        assert [[t.name for t in r.tools] for r in life.model.requests] == [[], [], ["late"]]


@played
async def test_a_resumed_session_announces_what_changed_meanwhile() -> None:
    """C80 C100, neighbour of run 189: against the header in the log."""
    store = MemoryStore()
    async with one(["one"], [named("old")], engine={"store": store}, session_id="S") as life:
        await life.say()
    async with one(["two"], [named("new")], engine={"store": store}, resume="S") as life:
        await life.say("more")
        assert headers(life.session) == ["request/header initial", "request/header resume"]
        assert announcements(life) == [("developer: +new -old", True)]
        check(life.session)


@played
async def test_a_request_carries_every_tool_that_was_ever_declared() -> None:
    """C75 C101."""
    async with one(lambda r: "ok") as life:
        registration = life.agent.scope.add_tool(named("old"))
        await life.say()
        registration.remove()
        life.agent.scope.add_tool(named("new"))
        await life.say()
        assert [t.name for t in life.model.requests[0].tool_history.declared] == ["old"]
        assert [t.name for t in life.model.requests[1].tool_history.declared] == ["old", "new"]


# --- the prompt on capable routes --------------------------------------------------------


async def with_changed_prompt(
    info: ModelInfo, *, tools: bool = False, series: bool = False
) -> Life:
    async with one(Fussy(lambda r: "ok", info=info)) as life:
        section = life.agent.scope.add_section("s", "first")
        await life.say("one")
        section.remove()
        life.agent.scope.add_section("s", "second")
        if tools:
            life.agent.scope.add_tool(named("extra"))

        async def start(value: PreStep, proceed: Any) -> Any:
            return evolve(await proceed(), starts_series=series)

        life.hooks.pre_step.listen(start)
        await life.say("two")
        check(life.session)
        return life


@played
async def test_a_changed_prompt_is_appended_where_the_route_can_take_it() -> None:
    """C91 C92: after the cached history; the header is inherited."""
    life = await with_changed_prompt(IN_HISTORY)
    assert life.request() == [
        *("system: first", "user: one", "assistant: ok"),
        *("system: second", "user: two"),
    ]
    assert headers(life.session) == ["request/header initial"]


@played
async def test_a_changed_prompt_rewrites_the_head_elsewhere() -> None:
    """C93: and starts a series."""
    life = await with_changed_prompt(ModelInfo())
    assert life.request() == ["system: second", "user: one", "assistant: ok", "user: two"]
    assert headers(life.session) == ["request/header initial", "request/header series"]


@played
async def test_a_changed_prompt_at_a_series_start_rewrites_the_head() -> None:
    """C93: on a capable route too."""
    life = await with_changed_prompt(IN_HISTORY, series=True)
    assert life.request() == ["system: second", "user: one", "assistant: ok", "user: two"]
    assert headers(life.session) == ["request/header initial", "request/header series"]


@played
async def test_changed_tools_force_consolidation_where_they_cannot_be_updated() -> None:
    """C97: a route that takes prompts in history and no tools."""
    life = await with_changed_prompt(IN_HISTORY, tools=True)
    assert life.request()[:2] == ["system: second", "user: one"]
    assert announcements(life) == [("developer: +extra", True)]


@played
async def test_changed_tools_leave_a_route_alone_that_can_update_both() -> None:
    """C97: the changed prompt is appended, the tools are announced, nothing is rewritten."""
    life = await with_changed_prompt(CAPABLE, tools=True)
    assert life.request() == [
        *("system: first", "user: one", "assistant: ok"),
        *("system: second", "user: two", "developer: +extra"),
    ]
    assert headers(life.session) == ["request/header initial", "request/header change"]


@pytest.mark.parametrize("info", [ModelInfo(), IN_HISTORY, CAPABLE], ids=["plain", "one", "both"])
def test_a_cleared_prompt_is_nowhere(info: ModelInfo) -> None:
    """C95: whatever the route; repeated clears and later turns leave it empty."""

    @played
    async def run() -> None:
        async with one(Fussy(lambda r: "ok", info=info)) as life:
            section = life.agent.scope.add_section("s", "first")
            await life.say("one")
            section.remove()
            section = life.agent.scope.add_section("s", "second")
            await life.say("two")
            section.remove()
            await life.say("three")
            await life.say("four")
            for number in (2, 3):
                assert not [m for m in life.request(number) if m.startswith("system")]
            check(life.session)

    run()


@played
async def test_the_prepared_route_decides_not_the_one_before() -> None:
    """C91: a change of model in the same turn as a change of the prompt."""
    model = Fussy(lambda r: "ok", infos={"capable": IN_HISTORY})
    async with one(model) as life:
        section = life.agent.scope.add_section("s", "first")
        await life.say("one")
        section.remove()
        life.agent.scope.add_section("s", "second")
        life.agent.model.select("scripted", "capable")
        await life.say("two")
        assert life.request()[3:] == ["system: second", "user: two"]
        life.agent.model.select("scripted", "m")
        await life.say("three")
        assert [m for m in life.request() if m.startswith("system")] == ["system: second"]
        assert life.request()[0] == "system: second"
        check(life.session)


# --- replacing the surface ---------------------------------------------------------------


def summarize(life: Life, text: str = "summary", *, users_only: bool = True) -> None:
    """Replace all that was said by one message, as a compaction does."""
    nodes = [
        node
        for node in life.session.surface.nodes
        if not users_only or not isinstance(node.data, SystemMessageEvent)
    ]
    first, last = nodes[0].seq, nodes[-1].seq
    # Users may not shadow the prompt; an older log may hold an event that did.
    op, event = Replace(first, last), UserMessageEvent(UserMessage(text))
    life.session.append(event, op, tuple(node.seq for node in nodes))


@played
async def test_a_replacement_in_pre_step_starts_a_series() -> None:
    """C80 C96: the request shows the summary; the unchanged header again."""
    async with one(lambda r: "ok", system="be brief") as life:
        await life.say("one")

        async def compact(value: PreStep, proceed: Any) -> Any:
            if value.turn == 2:
                summarize(life)
            return await proceed()

        life.hooks.pre_step.listen(compact)
        await life.say("two")
        assert life.request() == ["system: be brief", "user: summary", "user: two"]
        await life.say("three")
        assert headers(life.session) == ["request/header initial", "request/header series"]
        assert prompts(life) == [("be brief", False)]
        check(life.session)


@played
async def test_a_replacement_while_a_request_fails_is_what_the_retry_sends() -> None:
    """C98 C133: no second admission; the series is broken; the header is written again."""
    script = ["ok", refuse(400, code="CONTEXT_OVERFLOW"), "fits"]
    async with one(script, system="be brief") as life:
        await life.say("one")
        on_failure(life, lambda: summarize(life))
        turn = await life.agent.ask("two")
        assert turn.text == "fits"
        assert life.request(1) == ["system: be brief", "user: one", "assistant: ok", "user: two"]
        assert life.request(2) == ["system: be brief", "user: summary"]
        assert headers(life.session) == ["request/header initial", "request/header series"]
        entered = [e for e in life.session.events if isinstance(e.data, UserMessageEvent)]
        assert len([e for e in entered if e.surface_op == APPEND]) == 2
        check(life.session)


@played
async def test_a_replacement_that_takes_the_prompt_with_it_gets_it_back() -> None:
    """C90 C98: before the next request, whatever a listener did."""
    script = ["ok", refuse(500), "again"]
    async with one(script, system="be brief") as life:
        await life.say("one")
        on_failure(life, lambda: summarize(life, users_only=False))
        await life.say("two")
        assert sorted(life.request()) == ["system: be brief", "user: summary"]
        check(life.session)


@played
async def test_a_replaced_tool_result_is_what_the_next_request_shows() -> None:
    """C153 C166, neighbour of run 101: pruning changes content only."""
    async with one([asked(), "read", "ok"], [echo]) as life:
        await life.say("one")
        node = next(n for n in life.session.surface.nodes if show(n.message).startswith("result"))
        block: Any = node.message.content[0]
        pruned = evolve(block, content=())
        data: Any = node.data
        event = evolve(data, message=evolve(data.message, content=(pruned,)))
        life.session.append(event, Replace(node.seq, node.seq), (node.seq,))
        await life.say("two")
        assert "result c1: " in life.request()
        assert headers(life.session) == ["request/header initial", "request/header series"]
        assert history_is_valid(life.model.requests[-1].messages) == []
        # A pruned result is not a second answer to its call.
        assert calls_are_answered(Evidence(whole(life.session))) == []


@played
async def test_dormant_prompts_are_consolidated_at_the_head_on_a_broken_series() -> None:
    """C93 C98: a capable route, two versions in history, then a compaction in a retry."""
    model = Fussy(["one", "two", refuse(500), "three"], info=IN_HISTORY)
    async with one(model) as life:
        section = life.agent.scope.add_section("s", "first")
        await life.say("a")
        section.remove()
        section = life.agent.scope.add_section("s", "second")
        await life.say("b")
        assert prompts(life) == [("first", False), ("second", False)]

        def compact() -> None:
            nodes = [n for n in life.session.surface.nodes if show(n.message) == "system: second"]
            after = nodes[0].seq
            rest = [n.seq for n in life.session.surface.nodes if n.seq > after]
            life.session.replace(rest[0], rest[-1], [UserMessage("summary")])

        on_failure(life, compact)
        section.remove()
        life.agent.scope.add_section("s", "third")
        await life.say("c")
        # Appended before the users of its first attempt; the series broke afterwards, and the
        # latest surviving node no longer holds the rendering.
        assert life.request()[0] == "system: third"
        assert [m for m in life.request() if m.startswith("system")] == ["system: third"]
        assert life.request()[-1] == "user: summary"
        check(life.session)


# --- the runtime context -----------------------------------------------------------------


class Weather:
    """A context that can be changed."""

    def __init__(self, life: Life, text: str = "sun") -> None:
        self.text = text
        life.agent.scope.add_context("weather", lambda agent: self.text)


@played
async def test_the_context_is_sent_once_and_again_when_it_changes() -> None:
    """C102 C103, runs 098 to 100: also in mid-turn, and when it is cleared."""
    async with one([asked(), "two", "three", "four"], [echo]) as life:
        weather = Weather(life)

        def change(hook: Any) -> None:
            weather.text = "rain"

        life.hooks.tool_result.listen(change)
        await life.say("a")
        assert life.request(0) == ["user: a", "context: sun"]
        assert life.request(1)[-1] == "context: rain"
        await life.say("b")
        assert life.request()[-1] == "user: b"
        weather.text = ""
        await life.say("c")
        assert life.request()[-2:] == ["user: c", f"context: {texts.CONTEXT_CLEARED}"]
        check(life.session)


@pytest.mark.parametrize("how", ["rewrite", "append", "prepend"])
def test_a_changed_batch_keeps_its_context(how: str) -> None:
    """C73 C102: a rewritten batch gets it at its end, a wrapped one where it was."""

    @played
    async def run() -> None:
        async with one(["ok"]) as life:
            Weather(life)

            async def change(value: PreStep, proceed: Any) -> Any:
                extra = UserMessage("extra")
                if how == "rewrite":
                    return Enter((extra,))
                messages = (await proceed()).messages
                return Enter((*messages, extra) if how == "append" else (extra, *messages))

            life.hooks.pre_step.listen(change)
            await life.say("go")
            assert (
                life.request()
                == {
                    "rewrite": ["user: extra", "context: sun"],
                    "append": ["user: go", "context: sun", "user: extra"],
                    "prepend": ["user: extra", "user: go", "context: sun"],
                }[how]
            )

    run()


@played
async def test_a_context_that_changes_after_pre_step_is_refreshed_in_place() -> None:
    """C77 C102: without assembling the prompt or the tools again."""
    async with one(["ok"]) as life:
        weather = Weather(life)

        async def append(value: PreStep, proceed: Any) -> Any:
            decision = await proceed()
            return evolve(decision, messages=(*decision.messages, UserMessage("last")))

        async def change(hook: RequestHook, proceed: Any) -> Any:
            weather.text = "rain"
            return await proceed()

        life.hooks.pre_step.listen(append)
        life.hooks.request.listen(change)
        await life.say("go")
        assert life.request() == ["user: go", "context: rain", "user: last"]


@played
async def test_a_context_that_is_what_it_was_again_is_not_sent() -> None:
    """C102: only when it differs from the retained snapshot, judged in the breath."""
    async with one(["one", "two"]) as life:
        weather = Weather(life)
        await life.say("a")
        weather.text = "rain"

        async def change(hook: RequestHook, proceed: Any) -> Any:
            weather.text = "sun"
            return await proceed()

        life.hooks.request.listen(change)
        await life.say("b")
        assert life.request()[-1] == "user: b"


@played
async def test_a_rejected_batch_takes_no_context_with_it() -> None:
    """C102, run 186: the next turn sends it."""
    async with one(["ok"]) as life:
        Weather(life)

        async def reject(value: PreStep, proceed: Any) -> Any:
            decision = await proceed()
            return Reject() if value.turn == 1 else decision

        life.hooks.pre_step.listen(reject)
        await life.say("no")
        await life.say("yes")
        assert life.request() == ["user: yes", "context: sun"]


@played
async def test_a_context_that_a_compaction_removed_is_restored_in_the_retry() -> None:
    """C98 C102: "restored if a compaction removed it"."""
    async with one(["ok", refuse(500), "again"]) as life:
        Weather(life)
        await life.say("one")
        on_failure(life, lambda: summarize(life))
        await life.say("two")
        assert life.request() == ["user: summary", "context: sun"]
        check(life.session)


@played
async def test_a_context_that_changes_between_attempts_is_sent_with_the_retry() -> None:
    """C77 C98: runtime facts are refreshed on every attempt; users are not entered twice."""
    async with one([refuse(500), "ok"]) as life:
        weather = Weather(life)

        def change() -> None:
            weather.text = "rain"

        on_failure(life, change)
        await life.say("go")
        assert life.request(0) == ["user: go", "context: sun"]
        assert life.request(1) == ["user: go", "context: sun", "context: rain"]
        check(life.session)


@played
async def test_a_context_that_a_replacement_removed_is_restored_in_the_next_turn() -> None:
    """C102, run 185."""
    async with one(["one", "two"]) as life:
        Weather(life)
        await life.say("a")
        summarize(life)
        await life.say("b")
        assert life.request() == ["user: summary", "user: b", "context: sun"]


@played
async def test_a_context_that_fails_ends_the_turn_and_not_the_agent() -> None:
    """C68: also in the breath, after pre_step let it pass; the log stays closed."""
    async with one(["ok", "fine"]) as life:
        calls: list[int] = []

        def unstable(agent: Any) -> str:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("no weather today")
            return "sun"

        life.agent.scope.add_context("weather", unstable)
        await failing(life)
        check(life.session)
        await life.say("again")
        assert life.request()[-2:] == ["user: again", "context: sun"]
        (first, _) = endings(life.session)
        assert isinstance(first, Failed)


@played
async def test_stopping_input_and_a_changed_context_enter_together() -> None:
    """C102: "runtime context interplay": steering after a stop gets the new snapshot."""
    async with one(["one", "two"]) as life:
        weather = Weather(life)
        done: list[int] = []

        async def stopping(value: TurnStopping) -> None:
            if not done:
                done.append(1)
                weather.text = "rain"
                life.agent.steer("and now?")

        life.hooks.turn_stopping.listen(stopping)
        await life.say("go")
        assert shown(life.model.requests[1].messages)[-2:] == ["user: and now?", "context: rain"]


@played
async def test_a_changed_context_alone_does_not_keep_a_turn_open() -> None:
    """C64 C71: a snapshot is no input."""
    async with one(["one"]) as life:
        weather = Weather(life)

        async def stopping(value: TurnStopping) -> None:
            weather.text = "rain"

        life.hooks.turn_stopping.listen(stopping)
        await life.say("go")
        assert len(life.model.requests) == 1


@played
async def test_an_assembly_may_be_rewritten_whole() -> None:
    """C73: the `assemble` hook decides over prompt and tools of the step and its retries."""
    async with one([refuse(500), "ok"], [echo], system="be brief") as life:

        async def assemble(value: Assembly, proceed: Any) -> Assembly:
            assembly = await proceed()
            return evolve(assembly, system=assembly.system + "!", tools=())

        life.hooks.assemble.listen(assemble)
        on_failure(life, lambda: None)
        await life.say()
        assert [r.tools for r in life.model.requests] == [(), ()]
        assert life.request(0) == life.request(1) == ["system: be brief!", "user: go"]


@played
async def test_a_model_that_is_unknown_to_the_engine_leaves_the_next_choice_alone() -> None:
    """C79 C81: context and header of the unserved route are in the log, and of the next."""
    async with one(ScriptedModel(["ok"]), provider="nobody") as life:
        await failing(life)
        life.agent.model.select("scripted", "m")
        await life.say("again")
        assert [c.provider for c in contexts(life)] == ["nobody", "scripted"]
        assert headers(life.session) == ["request/header initial", "request/header change"]
        assert life.request() == ["user: go", "user: again"]
