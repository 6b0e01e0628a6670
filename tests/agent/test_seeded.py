"""A seed of long answers, in front of a store that reads back."""

from __future__ import annotations

from pathlib import Path

import trio

from terzetto import JsonlStore, open_engine
from terzetto.llm.scripted import ScriptedModel, answer, say
from terzetto.vocabulary import AssistantChunk


async def test_what_follows_a_seed_of_long_answers_reads_back_whole(tmp_path: Path) -> None:
    """C148: the seed's chunks are columns in memory, those of later answers are the store's."""
    words = say(" ".join(f"word{i}" for i in range(60)))
    model = ScriptedModel(lambda request: answer(words))
    async with open_engine(adapters=[model], store=JsonlStore(tmp_path)) as engine:
        async with engine.open_agent(provider="scripted", model="m") as source:
            await source.ask("hello")
            await source.flush()
            seed = await source.session.read()
        async with engine.open_agent(provider="scripted", model="m", seed=seed) as agent:
            await agent.ask("again")
            await agent.flush()
            session = agent.session
            length = len(session.events)
            got = await session.read()
            assert [event.seq for event in got] == list(range(length))
            assert sum(isinstance(event.data, AssistantChunk) for event in got) > 120
            followed = []
            with trio.fail_after(60):
                async for event in session.follow():
                    followed.append(event)
                    if len(followed) == length:
                        break
            assert followed == got
