"""A process killed before, in and between the effects of a batch (BC-44)."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from tests.crash.commands import children
from tests.crash.lives import make_store
from tests.crash.points import POINTS, ROUTE, SESSION, live, marking
from tests.llm.strict import judge
from tests.whole import whole

import terzetto
from terzetto import Durability
from terzetto.llm._openai_wire import encode_request
from terzetto.llm.scripted import ScriptedModel
from terzetto.testing import history_is_valid
from terzetto.vocabulary import Interrupted, ToolResultEvent, TurnEnd, texts

UNKNOWN, NOT_STARTED = texts.TOOL_OUTCOME_UNKNOWN, texts.TOOL_NOT_STARTED
Saved = tuple[str, list[str | None]]

STEP: dict[str, Saved] = {
    # The answer itself is not saved before its calls are: there is nothing to say of them.
    "before a is saved": ("", []),
    "before a begins": ("", [UNKNOWN, NOT_STARTED, NOT_STARTED]),
    "during a": ("a", [UNKNOWN, NOT_STARTED, NOT_STARTED]),
    # The result of "a" waits for the same flush: nobody can know that it ended.
    "before b is saved": ("a", [UNKNOWN, NOT_STARTED, NOT_STARTED]),
    "before b begins": ("a", [None, UNKNOWN, NOT_STARTED]),
    "during b": ("ab", [None, UNKNOWN, NOT_STARTED]),
}
"""What is marked when it is killed there, and what the results say; None: the real one."""


EACH = STEP | {
    # What is recorded before a call is saved before the call is recorded.
    "before a is saved": ("", [NOT_STARTED, NOT_STARTED, NOT_STARTED]),
    "before b is saved": ("a", [None, NOT_STARTED, NOT_STARTED]),
}
SAVED: dict[Durability, dict[str, Saved]] = {"step": STEP, "each": EACH}


@pytest.mark.parametrize("level", SAVED)
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
@pytest.mark.parametrize("point", POINTS)
async def test_no_effect_is_repeated_or_denied(
    point: str, kind: str, level: Durability, tmp_path: Path
) -> None:
    """BC-44, C145: after SIGKILL at each point, with each store and each level that waits."""
    marks, results = SAVED[level][point]
    killed_at(point, kind, tmp_path, level)
    assert marked(tmp_path) == marks
    requests = []
    model = ScriptedModel(lambda request: requests.append(request) or "I see.")
    store = make_store(kind, tmp_path)
    async with terzetto.open_engine(
        adapters=[model], tools=[marking(tmp_path, None)], store=store
    ) as engine:
        async with engine.open_agent(**ROUTE, resume=SESSION) as agent:
            await agent.wait_idle()
            assert marked(tmp_path) == marks  # a resume alone runs nothing
            assert not requests
            assert (await agent.ask("And?")).text == "I see."
            events = whole(agent.session)
    assert marked(tmp_path) == marks
    found = [event.data for event in events if isinstance(event.data, ToolResultEvent)]
    assert [data.error.code if data.error else None for data in found] == results
    for name, data in zip("abc", found, strict=False):
        assert (f"marked {name}" in str(data.message)) == (data.error is None)
    first, second = [event.data for event in events if isinstance(event.data, TurnEnd)]
    assert (first.turn, first.ending, second.turn) == (1, Interrupted(), 2)
    (request,) = requests
    assert history_is_valid(request.messages) == []
    assert judge(encode_request(request)) == []


def killed_at(point: str, kind: str, folder: Path, durability: Durability) -> None:
    """A session in *folder* whose process was killed there."""
    end, told = multiprocessing.Pipe(duplex=False)
    child = children().Process(target=live, args=(kind, folder, durability, point, told))
    child.start()
    told.close()
    try:
        assert end.poll(60), "it never got there"
        assert end.recv_bytes() == b"here"
    finally:
        child.kill()
        child.join()
        end.close()


def marked(folder: Path) -> str:
    path = folder / "marks"
    return path.read_text() if path.exists() else ""
