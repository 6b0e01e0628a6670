"""The batch example: stopped halfway and run again, it does what is left and no more."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from pathlib import Path

import pytest
import trio
from tests.commands import linux_like, of_type, read_log
from tests.examples.processes import key, program, run

from terzetto.llm.loopback import LoopbackServer, serve_openai
from terzetto.llm.scripted import Entry, Gate, answer, call, refuse
from terzetto.vocabulary import Request, ToolSource, UserMessage

pytestmark = linux_like
TOTAL, AT_ONCE = 200, 10
FEW = 24
"""Items of the tests for which the number says nothing."""


def item_of(messages: object) -> str:
    """The item that a request is about."""
    found = re.search(r"Product (\d+)\.", str(messages))
    assert found is not None, messages
    return f"review-{int(found[1]):03}"


class Judge:
    """A model that answers as long as it may, and then stops in the middle of its answers."""

    def __init__(self, requests: int) -> None:
        self.left = requests
        self.failing: set[str] = set()

    def __call__(self, request: Request) -> Entry:
        self.left -= 1
        item = item_of(request.messages)
        if item in self.failing:
            return refuse(400, f"no {item}")
        last = request.messages[-1]
        gate = [] if self.left >= 0 else ["A word ", Gate("rest")]
        if isinstance(last, UserMessage) and isinstance(last.source, ToolSource):
            return answer(*gate, f"Fine: {item}.")
        return answer(*gate, call("look_up_product", number=int(item[-3:])))


def asked(server: LoopbackServer) -> Counter[str]:
    return Counter(item_of(one.body["messages"]) for one in server.requests)


def results(folder: Path) -> dict[str, dict]:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines), "an item has two results"
    return {line["id"]: line for line in lines}


def logs(folder: Path) -> dict[str, list[dict]]:
    found = (folder / "batch-sessions").glob("batch-*.jsonl")
    return {path.stem.removeprefix("batch-"): read_log(path) for path in found}


def few_items(folder: Path) -> None:
    items = [{"id": f"review-{n:03}", "prompt": f"Product {n}."} for n in range(1, FEW + 1)]
    (folder / "items").write_text("".join(json.dumps(item) + "\n" for item in items))


def check_complete(folder: Path, total: int, *, failing: set[str] = frozenset()) -> None:
    done = results(folder)
    assert sorted(done) == [f"review-{n:03}" for n in range(1, total + 1)]
    assert {name for name, one in done.items() if not one["ok"]} == failing
    assert all(one["text"].endswith(f"Fine: {n}.") for n, one in done.items() if one["ok"])
    for name, events in logs(folder).items():
        started, ended = of_type(events, "turn/start"), of_type(events, "turn/end")
        assert len(started) == len(ended), name
        called = sum(len(of_type([e], "tool/call")) for e in events)
        assert called == len(of_type(events, "tool/result")), name


@pytest.mark.parametrize(
    ("how", "total"),
    [(signal.SIGINT, TOTAL), (signal.SIGKILL, FEW)],
    ids=lambda value: getattr(value, "name", None),
)
async def test_a_stopped_batch_goes_on_where_it_was(
    tmp_path: Path, how: signal.Signals, total: int
) -> None:
    """All the items that it comes with, or a few of ours."""
    judge, items = Judge(requests=total), []
    if total == FEW:
        few_items(tmp_path)
        items = ["items"]
    async with serve_openai(judge) as server:
        async with program("batch.py", *items, cwd=tmp_path, **key(server.base_url)) as first:
            await server.gates.wait_reached("rest", AT_ONCE)
            first.send(how)
            code = await first.ended()
        assert code == (130 if how == signal.SIGINT else -how)
        before, spent = results(tmp_path), asked(server)
        assert 0 < len(before) <= total - AT_ONCE
        assert all(one["ok"] for one in before.values())
        if how == signal.SIGINT:
            assert f"{len(before)} ok, 0 failed, {total - len(before)} left" in first.out
            endings = Counter(
                events[-1]["data"]["reason"]["kind"] for events in logs(tmp_path).values() if events
            )
            assert endings == {"completed": len(before), "aborted": AT_ONCE}

        server.gates.open("rest")
        code, said = await run("batch.py", *items, cwd=tmp_path, **key(server.base_url))
        assert code == 0, said
        assert f"{total} ok, 0 failed, 0 left ({len(before)} were done before)" in said
    check_complete(tmp_path, total)
    again = asked(server) - spent
    assert not set(again) & set(before), "a finished item was asked again"
    assert set(again) == set(results(tmp_path)) - set(before)


async def test_a_lost_result_comes_from_its_log(tmp_path: Path) -> None:
    few_items(tmp_path)
    async with serve_openai(Judge(requests=10_000)) as server:
        code, said = await run("batch.py", "items", cwd=tmp_path, **key(server.base_url))
        assert code == 0, said
        spent = asked(server)
        assert set(spent.values()) == {2}
        whole = results(tmp_path)
        text = (tmp_path / "results.jsonl").read_text()
        (tmp_path / "results.jsonl").write_text(text[: len(text) * 3 // 4])  # torn in a line
        code, said = await run("batch.py", "items", cwd=tmp_path, **key(server.base_url))
        assert code == 0, said
    assert results(tmp_path) == whole
    assert asked(server) == spent


async def test_failures_stop_nobody_and_are_retried_on_demand(tmp_path: Path) -> None:
    few_items(tmp_path)
    judge = Judge(requests=10_000)
    judge.failing = {"review-007", "review-015"}
    async with serve_openai(judge) as server:
        code, said = await run("batch.py", "items", cwd=tmp_path, **key(server.base_url))
        assert code == 1, said
        assert f"{FEW - 2} ok, 2 failed, 0 left" in said
        check_complete(tmp_path, FEW, failing=judge.failing)
        assert results(tmp_path)["review-007"]["code"] == "INVALID_REQUEST"
        spent, judge.failing = asked(server), set()
        code, said = await run("batch.py", "items", cwd=tmp_path, **key(server.base_url))
        assert (code, asked(server)) == (1, spent), "not without --retry-failed"
        code, said = await run(
            "batch.py", "items", "--retry-failed", cwd=tmp_path, **key(server.base_url)
        )
        assert code == 0, said
    check_complete(tmp_path, FEW)
    assert set(asked(server) - spent) == {"review-007", "review-015"}


async def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    few_items(tmp_path)
    async with serve_openai(Judge(requests=0)) as server:
        async with program("batch.py", "items", cwd=tmp_path, **key(server.base_url)) as first:
            await server.gates.wait_reached("rest", AT_ONCE)
            code, said = await run("batch.py", "items", cwd=tmp_path, **key(server.base_url))
            assert (code, said) == (1, "batch: another run is writing results.jsonl\n")
            first.send(signal.SIGTERM)
            assert await first.ended() == 130


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "items:1: expected"),
        ('{"id": "a"}', "items:1: expected"),
        ('{"id": "../a", "prompt": "x"}', "items:1: id: expected"),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', "items:2: the id 'a' is taken"),
    ],
)
async def test_bad_items_are_told_with_their_line(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "items").write_text(line)
    code, said = await run("batch.py", "items", "--scripted", cwd=tmp_path)
    assert code == 1
    assert told in said
    assert "Traceback" not in said


async def test_it_runs_scripted_and_says_what_is_missing_without(tmp_path: Path) -> None:
    with trio.fail_after(60):
        code, said = await run("batch.py", "--scripted", "--at-once", "50", cwd=tmp_path)
        assert code == 1, said
        assert "200 items: 198 ok, 2 failed, 0 left (0 were done before)" in said
        code, said = await run("batch.py", cwd=tmp_path, OPENAI_API_KEY="")
    assert (code, said.count("\n")) == (1, 1)
    assert "OPENAI_API_KEY is not set" in said
