"""What engines and agents are made of, given wrongly: said at once, and by name."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import terzetto
from terzetto import CorruptLog, ForkError, InvalidValue, JsonlStore, UsageError
from terzetto.llm.scripted import ScriptedModel, answer

MODEL = ScriptedModel(["Hi."])


@terzetto.tool
async def look() -> str:
    """Look."""
    return "seen"


def refused(main: Callable[[], Awaitable[None]]) -> str:
    with pytest.raises(InvalidValue) as error:
        trio.run(main)
    return str(error.value)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("shutdown_timeout", "5", "shutdown_timeout: expected seconds, got '5'"),
        ("shutdown_timeout", None, "shutdown_timeout: expected seconds, got None"),
        ("shutdown_timeout", True, "shutdown_timeout: expected seconds, got True"),
        ("shutdown_timeout", float("nan"), "expected seconds above 0, got nan"),
        ("adapters", MODEL, "adapters: expected a list of them, got ScriptedModel"),
        ("adapters", None, "adapters: expected a list of them, got None"),
        ("adapters", [None], "adapter: expected an Adapter with a provider name, got NoneType"),
        ("adapters", ["scripted"], "expected an Adapter with a provider name, got str"),
        ("tools", look, "tools: expected a list of them, got FunctionTool"),
        ("tools", None, "tools: expected a list of them, got None"),
        ("store", "sessions", "store: expected a Store such as JsonlStore(folder), got str"),
        ("store", JsonlStore, "got the class JsonlStore itself"),
        ("executor", object(), "executor: expected a ToolExecutor, got object"),
        ("driver", int, "driver: expected a Driver, got the class int itself"),
        ("approver", 5, "approver: expected a function, got int"),
        ("now_ms", 5, "now_ms: expected a function, got int"),
    ],
)
def test_an_engine_says_which_of_its_parts_is_none(part: str, value: Any, said: str) -> None:
    async def main() -> None:
        async with terzetto.open_engine(**{"adapters": [MODEL], part: value}):
            pytest.fail("it opened")

    assert said in refused(main)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("tools", look, "tools: expected a list of them, got FunctionTool"),
        ("parent", "s", "parent: expected an Agent, got str"),
        ("setup", 5, "setup: expected a function that takes the agent, got int"),
        ("cwd", 5, "cwd: expected an absolute path, got 5"),
        ("seed", [1], "seed: expected a list of Events, such as list(session.events); got list"),
        ("seed", None, "seed: expected a list of Events"),
        ("max_tokens", 2**60, "max_tokens: expected at most 2**53 - 1"),
        ("session_id", 5, "session id: expected a str, got int"),
    ],
)
def test_an_agent_says_which_of_its_options_is_none(part: str, value: Any, said: str) -> None:
    """C10: at construction, not in the first turn."""

    async def main() -> None:
        async with terzetto.open_engine(adapters=[MODEL]) as engine:
            async with engine.open_agent(provider="scripted", model="m", **{part: value}):
                pytest.fail("it was made")

    assert said in refused(main)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "in memory"])
@pytest.mark.parametrize("name", ["", ".", "..", "../evil", "a/b", "a\0b", "x" * 300])
@pytest.mark.parametrize("way", ["create", "fork"])
def test_an_id_that_can_name_no_session_is_refused_with_a_store_and_without(
    way: str, name: str, stored: bool, tmp_path: Path
) -> None:
    """BC-48: an empty one too, in place of which a random one was taken."""

    async def main() -> None:
        store = JsonlStore(tmp_path / "sessions") if stored else None
        async with terzetto.open_engine(
            adapters=[ScriptedModel([answer("Hi.")])], store=store
        ) as e:
            source = await e.agents.create(provider="scripted", model="m", session_id="source")
            await source.agent.ask("go")
            if way == "fork":
                await e.agents.fork("source", session_id=name)
            else:
                await e.agents.create(provider="scripted", model="m", session_id=name)

    said = refused(main)
    assert "session id" in said
    assert str(tmp_path) not in said
    assert [p.name for p in tmp_path.iterdir()] == (["sessions"] if stored else [])
    if stored:
        assert {p.name for p in (tmp_path / "sessions").iterdir()} <= {"source.jsonl"}


def test_an_adapter_that_cannot_be_closed_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        nothing: Any = object()
        async with terzetto.open_engine(adapters=[nothing]):
            pytest.fail("it opened")

    with caplog.at_level(logging.WARNING, "terzetto"):
        assert "got object" in refused(main)
    assert "closing the adapter of object failed" in caplog.text


def test_a_fork_of_nobody_is_still_a_fork_error() -> None:
    async def main() -> None:
        async with terzetto.open_engine(adapters=[MODEL]) as engine:
            with pytest.raises(ForkError):
                await engine.agents.fork("nobody", session_id="mine")

    trio.run(main)


@pytest.mark.parametrize("way", ["resume", "fork"])
def test_a_stored_log_whose_order_cannot_be_is_damaged(way: str, tmp_path: Path) -> None:
    """BC-42, C148: damage is a fault of what is stored, not of who resumes it."""

    async def main() -> None:
        model = ScriptedModel(["Hi."])
        async with terzetto.open_engine(adapters=[model], store=JsonlStore(tmp_path)) as engine:
            async with engine.open_agent(provider="scripted", model="m", session_id="s") as agent:
                await agent.ask("go")
        file = tmp_path / "s.jsonl"
        edited = file.read_bytes().replace(b'"data":{"turn":1}}', b'"data":{"turn":7}}', 1)
        file.write_bytes(edited)
        async with terzetto.open_engine(adapters=[MODEL], store=JsonlStore(tmp_path)) as engine:
            with pytest.raises(CorruptLog) as damaged:
                if way == "resume":
                    await engine.agents.resume("s")
                else:
                    await engine.agents.fork("s")
        assert damaged.value.position == "event 1"
        assert "TurnStart of turn 7 cannot come here; expected turn 1" in str(damaged.value)
        assert file.read_bytes() == edited

    trio.run(main)


async def _async_commit(agent: terzetto.Agent) -> Any:
    async def commit() -> None: ...

    return commit


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (_async_commit, "setup: its commit is async"),
        (lambda agent: 5, "setup: expected a commit or None back, got int"),
    ],
)
def test_a_commit_that_would_never_run_rolls_the_creation_back(setup: Any, said: str) -> None:
    """C21, C23."""

    async def main() -> None:
        async with terzetto.open_engine(adapters=[MODEL]) as engine:
            try:
                await engine.agents.create(provider="scripted", model="m", setup=setup)
            finally:
                assert engine.agents.list() == []

    assert said in refused(main)


def test_an_agent_that_is_being_composed_owns_none_yet() -> None:
    """C20: the error says so, and does not speak of another engine."""

    async def main() -> None:
        async with terzetto.open_engine(adapters=[MODEL]) as engine:

            async def setup(agent: terzetto.Agent) -> None:
                await engine.agents.create(provider="scripted", model="m", parent=agent)

            with pytest.raises(UsageError, match="'mine' is still being created"):
                await engine.agents.create(
                    provider="scripted", model="m", session_id="mine", setup=setup
                )
            assert engine.agents.list() == []

    trio.run(main)
