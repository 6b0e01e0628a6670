"""What simulations have found: each was a run that ended in a way that nobody promises."""

from __future__ import annotations

from typing import Any

import pytest

from terzetto import MemoryStore, UsageError, UserMessage, open_engine
from terzetto.extras.compaction import Compaction
from terzetto.llm.scripted import ScriptedModel
from terzetto.session._codec import dumps_event
from terzetto.testing import Simulation, play, simulate
from terzetto.vocabulary import MessageId

ROUTE: dict[str, Any] = {"provider": "scripted", "model": "m"}


def test_a_child_made_while_the_engine_is_being_left_is_refused_as_usual() -> None:
    """A parent outlives the engine's block by a tick, in which its tasks may make children:
    they are told that the engine is closed, not that something of ours is broken (C23)."""

    async def main() -> None:
        async with open_engine(adapters=[ScriptedModel()], store=MemoryStore()) as engine:
            parent = (await engine.agents.create(**ROUTE, session_id="parent")).agent
            # The moment: the block has been left, its nursery is not cancelled yet.
            nursery, engine.agents.nursery = engine.agents.nursery, None
            with pytest.raises(UsageError, match="the engine is closed"):
                await engine.agents.create(**ROUTE, session_id="child", parent=parent)
            engine.agents.nursery = nursery
            child = await engine.agents.create(**ROUTE, session_id="child", parent=parent)
            assert child.agent.parent is parent

    play(main)


def test_a_compaction_takes_its_ids_where_everybody_does() -> None:
    """With ids and clock given, a session that was compacted is the same to the byte (C84)."""

    async def main() -> list[bytes]:
        ids = 0

        def new_id() -> MessageId:
            nonlocal ids
            ids += 1
            return MessageId(f"m{ids}")

        model = ScriptedModel(lambda request: "All that was said, in short.")
        async with (
            open_engine(adapters=[model], now_ms=lambda: 0, new_id=new_id) as engine,
            engine.open_agent(**ROUTE, session_id="s") as agent,
        ):
            for _ in range(4):
                await agent.ask("A long question. " * 20)
            assert await Compaction(window=200, keep_rounds=1).compact(agent) is not None
            summary = agent.history()[0]
            assert isinstance(summary, UserMessage)
            assert summary.id == f"m{ids}"
            return [dumps_event(event) for event in agent.session.events]

    assert play(main) == play(main)


FORK_CUT = """
{"latency": 0.05,
 "lives": [{"acts": [{"do": "open", "who": "ada"}, {"at": 0.1, "do": "followup", "who": "ada"},
                     {"at": 2, "do": "fork", "who": "ada"},
                     {"at": 2.05, "steps": 1, "do": "power cut"}]}]}
"""


def test_a_fork_that_a_power_cut_left_half_made_is_refused_and_its_source_is_whole() -> None:
    """No violation: the fork says that its creation was not finished (C154)."""
    done = simulate(Simulation.from_json(FORK_CUT), traced=True)
    assert done.problems == ()
    assert set(done.sessions) == {"ada", "ada.f1"}
    [told] = [what for _, _, who, what in done.notes if "open -> CorruptLog" in what]
    assert "its creation was not finished" in told


def test_a_ctrl_c_of_the_script_behind_another_ending_is_still_the_scripts() -> None:
    """Seed 144: a body sends one while a power cut ends its life. It left as the user's own."""
    assert simulate(144).problems == ()
