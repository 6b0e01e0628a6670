"""Builds the scenario of a recorded run in the engine, performs it, collects what came of it.

Nothing here depends on the name or the number of a run; `conformance/README.md` of the
recordings is the specification of every field read below.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import trio
from tests.conformance.model import ReplayAdapter
from tests.conformance.shelf import Shelf
from tests.whole import whole

import terzetto
from terzetto.agent import AgentHandle, Enter, PreStep, Reject, RequestFailed, Retry
from terzetto.session._codec import decode_event, encode_event, encode_failure, encode_request
from terzetto.tools import Allow, Ask, Deny, ToolRun, raw_tool
from terzetto.vocabulary import (
    CodedError,
    DisposedCause,
    Event,
    HookCause,
    MessageId,
    ParentCause,
    PluginSource,
    Replace,
    TextBlock,
    UserCause,
    UserMessage,
    UserMessageEvent,
    UserSource,
)

Json = dict[str, Any]
CAUSES: dict[str, Any] = {"user": UserCause, "parent": ParentCause, "disposed": DisposedCause}
MATCH_KEYS = ("turn", "step", "type", "tool", "callId", "status")


class Gates:
    """Named gates that stay open."""

    def __init__(self) -> None:
        self._events: dict[str, trio.Event] = {}

    def _event(self, name: str) -> trio.Event:
        return self._events.setdefault(name, trio.Event())

    def open(self, name: str) -> None:
        self._event(name).set()

    async def wait(self, name: str) -> None:
        event = self._event(name)
        if not event.is_set():
            await event.wait()


class Hook:
    """One declarative listener of a run."""

    def __init__(self, spec: Json) -> None:
        self.spec = spec
        self.seen = 0

    def matches(self, on: str, facts: Json) -> bool:
        if self.spec["on"] != on:
            return False
        if any(k in self.spec and self.spec[k] != facts.get(k) for k in MATCH_KEYS):
            return False
        self.seen += 1
        return "nth" not in self.spec or self.spec["nth"] == self.seen


class World:
    """One run in progress."""

    def __init__(self, run: Json, shelf: Shelf | None = None) -> None:
        self.run = run
        self.shelf = shelf or Shelf()
        self.gates = Gates()
        self.hooks = [Hook(spec) for spec in run.get("hooks", [])]
        self.system: str = run.get("system", "")
        self.contexts = {c["name"]: c["text"] for c in run.get("runtimeContext", [])}
        self.requests: list[Json] = []
        self.notifications: list[Json] = []
        self.tool_notifications: dict[str, list[Json]] = {}
        self.crashes: list[int] = []
        self.attempts = 0
        self.process = 0
        self.stored: list[Event] | None = None
        self.handle: Any = None
        self.session: Any = None
        self.scope: Any = None
        self.starting: Any = None
        self.final: Json = {}
        self.registrations: dict[str, terzetto.Registration] = {}
        self.nursery: Any = None

    # --- recording -----------------------------------------------------------------------

    def note(self, event: str, **facts: object) -> None:
        self.notifications.append({"at": len(self.session.events), "event": event, **facts})

    def tool_note(self, call_id: str, event: str, **facts: object) -> None:
        self.tool_notifications.setdefault(call_id, []).append({"event": event, **facts})

    def live(self, process: int) -> bool:
        return process == self.process

    # --- listeners -----------------------------------------------------------------------

    def fire(self, on: str, **facts: object) -> Hook | None:
        """Perform the ops of the first hook that matches; its failures come later."""
        for hook in self.hooks:
            if hook.matches(on, facts):
                for op in hook.spec.get("ops", []):
                    self.do(op)
                return hook
        return None

    async def listen(self, on: str, **facts: object) -> Json:
        hook = self.fire(on, **facts)
        if hook is None:
            return {}
        if "gate" in hook.spec:
            await self.gates.wait(hook.spec["gate"])
        self.throw(hook)
        return hook.spec

    def throw(self, hook: Hook | None) -> None:
        if hook is not None and "throw" in hook.spec:
            raise made_error(hook.spec["throw"])

    def install(self, engine: terzetto.Engine, process: int) -> None:
        """Register the recording listeners, which also run the declarative hooks."""
        hooks = engine.scope.hooks

        def live(fn: Callable[[Any], None]) -> Callable[[Any], None]:
            return lambda value: fn(value) if self.live(process) else None

        def session_created(session: terzetto.Session) -> None:
            self.session = session
            self.note("session/created")
            session.observe(live(self.on_event))

        hooks.session_created.listen(live(session_created))
        hooks.session_disposed.listen(live(lambda s: self.note("session/disposed")))
        hooks.agent_disposed.listen(live(lambda a: self.note("agent/disposed")))
        hooks.session_started.listen(live(self.on_started))
        hooks.status.listen(live(self.on_status))
        hooks.agent_error.listen(live(self.on_error))
        for name in ("inserted", "claimed", "discarded"):
            point = getattr(hooks, f"inbox_{name}")
            point.listen(live(partial(self.on_inbox, name)))
        hooks.tool_result.listen(
            live(lambda v: self.tool_note(v.call.id, "tools/result", isError=v.outcome.is_error))
        )

        def around(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
            async def listener(value: Any, proceed: Any) -> Any:
                return await (fn(value, proceed) if self.live(process) else proceed())

            return listener

        hooks.agent_created.listen(self.on_created)
        hooks.turn_stopping.listen(self.on_turn_stopping)
        hooks.pre_step.listen(around(self.on_pre_step))
        hooks.request.listen(around(self.on_request))
        hooks.request_error.listen(around(self.on_request_error))
        hooks.assemble.listen(around(self.on_assemble))
        hooks.stream.listen(around(self.on_stream))
        hooks.tool_pre_execute.listen(around(self.on_pre_execute))
        hooks.tool_post_execute.listen(around(self.on_post_execute))
        engine.scope.guard(self.on_guard)

    def on_event(self, event: Event) -> None:
        hook = self.fire("session/event", type=encode_event(event)["type"])
        self.throw(hook)

    def on_started(self, started: Any) -> None:
        self.note("agent/session-start", source=started.source)
        self.throw(self.fire("agent/session-start"))

    def on_status(self, change: Any) -> None:
        self.note("agent/status", status=change.status)
        self.throw(self.fire("agent/status", status=change.status))

    def on_error(self, notice: Any) -> None:
        facts = {"turn": notice.turn, "step": notice.step, "message": notice.failure.message}
        if isinstance(getattr(notice.error, "code", None), str):
            facts["code"] = notice.failure.code
        self.note("agent/error", **facts)

    def on_inbox(self, name: str, notice: Any) -> None:
        facts: Json = {"message": notice.message.id}
        if notice.turn is not None:
            facts["turn"] = notice.turn
        self.note(f"agent/inbox/{name}", **facts)

    async def on_created(self, agent: object) -> None:
        self.note("agent/created")

    async def on_pre_step(self, value: PreStep, proceed: Any) -> Any:
        ids = [m.id for m in value.messages]
        self.note("agent/pre-step", turn=value.turn, step=value.step, messages=ids)
        spec = await self.listen("agent/pre-step", turn=value.turn, step=value.step)
        added = tuple(made_message(m) for m in spec.get("messages", []))
        match spec.get("do"):
            case "reject":
                return Reject()
            case "rewrite":
                return Enter(added)
            case "append" | "prepend" as where:
                decision = await proceed()
                if isinstance(decision, Reject):
                    return decision
                batch = decision.messages
                batch = (*batch, *added) if where == "append" else (*added, *batch)
                return Enter(batch, decision.starts_series)
        return await proceed()

    async def on_request(self, value: Any, proceed: Any) -> Any:
        self.note("agent/request", turn=value.turn, step=value.step)
        spec = await self.listen("agent/request", turn=value.turn, step=value.step)
        config = await proceed()
        return made_config(config, spec["set"]) if "set" in spec else config

    async def on_request_error(self, value: RequestFailed, proceed: Any) -> Any:
        self.note(
            "agent/request-error",
            turn=value.turn,
            step=value.step,
            failure=encode_failure(value.failure),
        )
        spec = await self.listen("agent/request-error", turn=value.turn, step=value.step)
        return Retry() if spec.get("do") == "retry" else await proceed()

    async def on_turn_stopping(self, value: Any) -> None:
        self.note("agent/turn-stopping", turn=value.turn)
        await self.listen("agent/turn-stopping", turn=value.turn)

    async def on_assemble(self, value: Any, proceed: Any) -> Any:
        await self.listen("system-prompt/assemble")
        return await proceed()

    async def on_stream(self, value: Any, proceed: Any) -> Any:
        await self.listen("llm/stream", turn=value.turn, step=value.step)
        return await proceed()

    async def on_pre_execute(self, value: Any, proceed: Any) -> Any:
        call = value.call
        self.tool_note(call.id, "tools/pre-execute", name=call.name)
        spec = await self.listen("tools/pre-execute", tool=call.name, callId=call.id)
        match spec.get("do"):
            case "deny":
                return Deny(spec.get("reason", ""))
            case "ask":
                return Ask(spec.get("reason", ""))
            case "allow":
                return Allow()
        return await proceed()

    def on_guard(self, value: Any) -> str | None:
        call = value.call
        hook = self.fire("tools/guard", tool=call.name, callId=call.id)
        self.throw(hook)
        return None if hook is None else hook.spec.get("reason", "")

    async def on_post_execute(self, value: Any, proceed: Any) -> Any:
        call = value.call
        self.tool_note(call.id, "tools/post-execute", isError=value.outcome.is_error)
        spec = await self.listen("tools/post-execute", tool=call.name, callId=call.id)
        policy = PluginSource("policy")
        contexts = tuple(UserMessage(text, policy) for text in spec.get("contexts", []))
        if spec.get("do") == "block":
            return value.blocked(spec["feedback"], contexts)
        if spec.get("do") == "replace":
            return value.replaced(spec["text"], contexts)
        outcome = await proceed()
        return terzetto.evolve(outcome, contexts=(*outcome.contexts, *contexts))

    # --- tools ---------------------------------------------------------------------------

    def made_tool(self, spec: Json) -> terzetto.Tool:
        async def body(args: object, run: ToolRun) -> object:
            return await self.tool_body(spec, args, run)

        def classify(args: object) -> object:
            match spec["mode"]:
                case "argSafe":
                    return isinstance(args, dict) and args.get("safe") is True
                case "classifierRaises":
                    raise RuntimeError("classifier broke")
                case "truthy":
                    return 1
            return True

        return raw_tool(
            name=spec["name"],
            description=spec["description"],
            parameters=spec["parameters"],
            body=body,
            parallel=False if spec["mode"] == "exclusive" else classify,
        )

    async def tool_body(self, spec: Json, args: object, run: ToolRun) -> object:
        process = self.process
        behaviour = {**spec.get("behaviour", {}), **spec.get("calls", {}).get(run.call_id, {})}

        def mark(phase: str) -> None:
            if self.live(process):
                self.tool_note(run.call_id, "tool/body", phase=phase)

        mark("enter")
        for text in behaviour.get("contexts", []):
            run.defer_context(text)
        if behaviour.get("concludesTurn"):
            run.conclude_turn()
        for op in behaviour.get("ops", []):
            self.do(op)
        if "gate" in behaviour:
            gate = behaviour["gate"].replace("{callId}", run.call_id)
            try:
                with trio.CancelScope(shield=bool(behaviour.get("ignoreAbort"))):
                    await self.gates.wait(gate)
            except trio.Cancelled:
                if behaviour.get("onAbort") != "return":
                    mark("aborted-raise")
                    raise RuntimeError("tool observed cancellation") from None
                mark("aborted-return")
                return tool_value(spec, behaviour, args)
        for op in behaviour.get("opsAfter", []):
            self.do(op)
        if "raise" in behaviour:
            mark("raise")
            raise made_error(behaviour["raise"])
        mark("return")
        return tool_value(spec, behaviour, args)

    # --- operations ----------------------------------------------------------------------

    def do(self, op: Json) -> None:
        """Perform one operation, now; what it raises is noted."""
        try:
            getattr(self, f"do_{op['do']}")(op)
        except terzetto.TerzettoError as error:
            self.note("op-error", message=str(error))

    @property
    def agent(self) -> terzetto.Agent:
        return self.handle.agent if self.handle else self.starting

    def do_followup(self, op: Json) -> None:
        self.agent.followup(made_message(op))

    def do_steer(self, op: Json) -> None:
        self.agent.steer(made_message(op))

    def do_inject(self, op: Json) -> None:
        self.agent.inject(made_message(op))

    def do_send(self, op: Json) -> None:
        self.agent.send(made_message(op), op["target"], op["wakeup"])

    def do_cancel(self, op: Json) -> None:
        spec = op.get("cause", {"kind": "user"})
        cause = HookCause(spec["reason"]) if spec["kind"] == "hook" else CAUSES[spec["kind"]]()
        self.agent.cancel(cause, keep_inbox=op.get("keepInbox", False))

    def do_openGate(self, op: Json) -> None:
        self.gates.open(op["gate"])

    def do_dispose(self, op: Json) -> None:
        self.handle.begin_disposal()

    def do_setSystem(self, op: Json) -> None:
        self.system = op["text"]

    def do_setContext(self, op: Json) -> None:
        self.contexts[op["name"]] = op["text"]

    def do_registerTool(self, op: Json) -> None:
        spec = op["tool"]
        self.registrations[spec["name"]] = self.scope.add_tool(self.made_tool(spec))

    def do_unregisterTool(self, op: Json) -> None:
        self.registrations.pop(op["name"]).remove()

    def do_inboxPrepend(self, op: Json) -> None:
        self.agent.inbox.prepend(op["target"], made_message(op))

    def do_inboxReplace(self, op: Json) -> None:
        self.agent.inbox.replace(MessageId(self.real_id(op["id"])), made_message(op))

    def do_inboxRemove(self, op: Json) -> None:
        self.agent.inbox.remove(MessageId(self.real_id(op["id"])))

    def do_inboxSplice(self, op: Json) -> None:
        inserted = [made_message(m) for m in op["insert"]]
        self.agent.inbox.splice(op["target"], op["start"], op["deleteCount"], inserted)

    def do_resend(self, op: Json) -> None:
        wanted = self.real_id(op["id"])
        inbox = self.agent.inbox
        message = next(m for m in (*inbox.next_turn, *inbox.next_step) if m.id == wanted)
        getattr(self.agent, op["as"])(message)

    def do_maintenance(self, op: Json) -> None:
        async def job() -> None:
            self.note("maintenance", phase="enter")
            try:
                await self.gates.wait(op["gate"])
            except trio.Cancelled:
                self.note("maintenance", phase="aborted")
                raise
            self.note("maintenance", phase="open")

        async def run(agent: terzetto.Agent) -> None:
            try:
                await agent.run_maintenance(job)
            except terzetto.TerzettoError:
                return

        self.nursery.start_soon(run, self.agent)

    def do_replaceSurface(self, op: Json) -> None:
        self.session.append(
            UserMessageEvent(made_message(op)),
            Replace(op["startSeq"], op["endSeq"]),
            tuple(op["sourceEventSeqs"]),
        )

    def real_id(self, normal: str) -> str:
        numbers = Numbers()
        for event in self.log():
            numbers.scan(encode_event(event)["data"])
        return numbers.real(normal)

    # --- the process ---------------------------------------------------------------------

    async def perform(self) -> Json:
        """The whole scenario; returns the outputs in the form of the run's file."""
        start = self.run.get("start", {"kind": "create"})
        if start["kind"] == "resume":
            self.stored = decoded_log(start)
        actions = list(self.run["actions"])
        while True:
            crash = await self.one_process(actions)
            if crash is None:
                break
            keep = crash.get("keep", len(self.session.events))
            self.stored = self.log()[:keep]
            self.crashes.append(keep)
            self.note("process-restart")
            self.process += 1
        return self.outputs()

    async def one_process(self, actions: list[Json]) -> Json | None:
        """Run until the actions are used up (None) or one crashes (its op)."""
        crash = None
        async with AsyncExitStack() as stack, trio.open_nursery() as self.nursery:
            engine = await stack.enter_async_context(
                terzetto.open_engine(
                    adapters=[ReplayAdapter(self)],
                    store=await self.shelf.filled(self.stored),
                    durability=self.shelf.level,
                    max_parallel_tool_calls=self.run.get("config", {}).get(
                        "maxParallelToolCalls", 10
                    ),
                )
            )
            self.scope = engine.scope
            self.compose(engine)
            self.install(engine, self.process)
            self.handle = None
            self.handle = await self.make_agent(engine)
            await self.shelf.quiet()
            while actions and crash is None:
                action = actions.pop(0)
                check_when(self, action.get("when", {}))
                for op in action["ops"]:
                    if op["do"] == "crash":
                        crash = op
                    else:
                        self.do(op)
                if crash is None:
                    await self.shelf.quiet()
            if crash is None:
                check_when(self, self.run.get("finally", {}))
                self.final = self.state()
            # What teardown does is not part of the run, nor what a crashed process still does.
            process, self.process = self.process, -1
            session = self.session
            events = whole(session)
            self.nursery.cancel_scope.cancel()
            await stack.aclose()
        await self.shelf.check(session)
        self.process = process
        self.session = Frozen(events)
        return crash

    def compose(self, engine: terzetto.Engine) -> None:
        scope = engine.scope
        scope.add_section("system", lambda agent: self.system)
        for context in self.run.get("runtimeContext", []):
            name = context["name"]
            scope.add_context(name, partial(self.context, name), order=context["order"])
        if "toolOrder" in self.run:
            scope.order_tools(self.run["toolOrder"])
        for spec in self.run.get("tools", []):
            self.registrations[spec["name"]] = scope.add_tool(self.made_tool(spec))

    def context(self, name: str, agent: object) -> str:
        text: str = self.contexts[name]
        return text

    async def make_agent(self, engine: terzetto.Engine) -> AgentHandle:
        def setup(agent: terzetto.Agent) -> None:
            self.starting = agent

        options = {"provider": "mock", "model": "mock-model", **self.run.get("agent", {})}
        if options.pop("noModel", False):
            del options["provider"], options["model"]
        max_tokens = options.pop("maxTokens", None)
        if self.stored is not None:
            return await engine.agents.resume("S", max_tokens=max_tokens, setup=setup, **options)
        start = self.run.get("start", {"kind": "create"})
        seed = decoded_log(start)
        return await engine.agents.create(
            session_id="S", seed=seed, max_tokens=max_tokens, setup=setup, **options
        )

    def state(self) -> Json:
        agent = self.agent
        return {
            "status": agent.status,
            "nextTurn": [m.id for m in agent.inbox.next_turn],
            "nextStep": [m.id for m in agent.inbox.next_step],
            "surface": [node.seq for node in agent.session.surface.nodes],
            "modelAttemptsUsed": self.attempts,
        }

    def log(self) -> list[Event]:
        """Every event so far."""
        session = self.session
        return session.events if isinstance(session, Frozen) else whole(session)

    def outputs(self) -> Json:
        log = [encode_event(event) for event in self.log()]
        for event in log:
            del event["time"]
        final = {**self.final, "crashes": self.crashes} if self.crashes else self.final
        return {
            "log": log,
            "requests": self.requests,
            "notifications": self.notifications,
            "tool_notifications": self.tool_notifications,
            "final": final,
        }

    def record_request(self, request: Any) -> None:
        self.requests.append(encode_request(request))


class Frozen:
    """The events of a process that is over."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events


class Numbers:
    """Message ids by first appearance: ``m1``, ``m2``; ``s`` for system, ``d`` for developer."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.counts = {"m": 0, "s": 0, "d": 0}

    def scan(self, value: object) -> None:
        if isinstance(value, dict):
            if "id" in value and "role" in value and value["id"] not in self.known:
                prefix = {"system": "s", "developer": "d"}.get(value["role"], "m")
                self.counts[prefix] += 1
                self.known[value["id"]] = f"{prefix}{self.counts[prefix]}"
            for item in value.values():
                self.scan(item)
        elif isinstance(value, list):
            for item in value:
                self.scan(item)

    def real(self, normal: str) -> str:
        return next(real for real, name in self.known.items() if name == normal)


def check_when(world: World, when: Json) -> None:
    if "status" in when:
        assert world.agent.status == when["status"], "status when an action runs"
    types = [encode_event(event)["type"] for event in world.log()]
    for kind, count in when.get("count", {}).items():
        assert types.count(kind) == count, f"number of {kind} when an action runs"


def decoded_log(start: Json) -> list[Event]:
    """The given log; the recordings leave the times out."""
    log = start.get("log", [])
    return [decode_event({"time": 0, **event}, seq_hint=event["seq"]) for event in log]


def made_message(spec: Json) -> UserMessage:
    source = spec.get("source", {"kind": "user"})
    made = PluginSource(source["plugin"]) if source["kind"] == "plugin" else UserSource()
    if "content" in spec:
        return UserMessage(tuple(TextBlock(block["text"]) for block in spec["content"]), made)
    return UserMessage(spec["text"], made)


def made_error(spec: Json) -> Exception:
    error: Any = RuntimeError(spec["message"])
    if "code" in spec:
        error = CodedError(spec["message"], spec["code"])
    if "name" in spec:
        error.name = spec["name"]
    return error


def made_config(config: terzetto.CallConfig, changes: Json) -> terzetto.CallConfig:
    fields = {"provider": "provider", "model": "model", "reasoningEffort": "effort"}
    fields["maxTokens"] = "max_tokens"
    own = {fields[key]: value for key, value in changes.items() if key in fields}
    other = {key: value for key, value in changes.items() if key not in fields}
    return terzetto.evolve(config, **own).with_options(**other)


def tool_value(spec: Json, behaviour: Json, args: object) -> object:
    if behaviour.get("echoArgs"):
        return json.dumps(args, separators=(",", ":"), ensure_ascii=False)
    if "content" in behaviour:
        return [TextBlock(block["text"]) for block in behaviour["content"]]
    return behaviour.get("text", f"{spec['name']} ok")
