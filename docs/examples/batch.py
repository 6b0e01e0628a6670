"""A batch job: one agent for each of many items, over one engine.

    python docs/examples/batch.py --scripted

runs 200 built-in items against a scripted model, without a key or a network. Results are
JSON lines, one an item. Stop it with Ctrl-C, or kill it; the same command goes on where it
was: what is done is not done again. With a server that speaks OpenAI's chat completions:

    OPENAI_API_KEY=... OPENAI_MODEL=gpt-4o-mini python docs/examples/batch.py items.jsonl

where every line of ``items.jsonl`` is like ``{"id": "r1", "prompt": "..."}``.

Two things make it resumable. Each item has a session whose id follows from the item's, so
a second run finds what the first one did. And a result is only a copy of what the session's
log says, so a line that was lost is written again without asking the model.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TextIO

import trio
from attrs import asdict, define, field, frozen

import terzetto
from terzetto.llm.openai_chat import OpenAIChat
from terzetto.llm.scripted import Delay, Entry, ScriptedModel, answer, call, refuse
from terzetto.vocabulary import (
    Request,
    UserMessage,
    UserSource,
)

SYSTEM = "You judge product reviews. Look the product up, then answer in one sentence."
GO_ON = "You were stopped before you had answered. Go on, and answer in full."


@frozen
class Item:
    """What one agent is to do. *id* names it in the results and in its session."""

    id: str
    prompt: str

    @property
    def session_id(self) -> str:
        return f"batch-{self.id}"


@frozen
class Result:
    """One line of the results. *code* says what kind of failure it was."""

    id: str
    ok: bool
    text: str
    code: str | None = None


@terzetto.tool(parallel=True, read_only=True)
async def look_up_product(number: int) -> dict[str, object]:
    """Look up a product.

    Args:
        number: The product's number.
    """
    return {"number": number, "name": f"Lamp {number}", "price": 20 + number % 30}


@define(eq=False)
class Batch:
    """One run over the items. Owns nothing but the limit; the engine is the caller's."""

    engine: terzetto.Engine
    model: str
    results: Results
    limit: trio.CapacityLimiter
    total: int
    ended: int = field(default=0, init=False)

    async def run(self, item: Item) -> None:
        """Do *item*, and write its result. A failure of one item is a result too."""
        # The limit is this program's, not the engine's: it knows what its server can take.
        async with self.limit:
            try:
                result = await self._work(item)
            except terzetto.TurnFailed as failed:
                result = Result(item.id, False, failed.failure.message, failed.code)
            except terzetto.TerzettoError as error:  # such as a damaged log
                result = Result(item.id, False, str(error), type(error).__name__)
            self.results.write(result)
        self.ended += 1
        progress(f"{self.ended} of {self.total}", last=self.ended == self.total)

    async def _work(self, item: Item) -> Result:
        # A block for each item: when it is left, nothing of the agent is alive any more,
        # and its log is closed and on disk.
        async with self._open(item) as agent:
            done = agent.last_turn()
            if done is not None and done.reason == "completed":
                return Result(item.id, True, done.text)
            # A stopped run may have left the prompt pending; it is asked anew below.
            agent.inbox.clear()
            # "leave": when this task is cancelled the engine ends the turn, as `disposed`,
            # and keeps what no step has taken yet. `ask` must not withdraw it before.
            turn = await agent.ask(GO_ON if entered(agent) else item.prompt, on_cancel="leave")
        return Result(item.id, turn.reason == "completed", turn.text or turn.reason)

    def _open(self, item: Item) -> AbstractAsyncContextManager[terzetto.Agent]:
        # An item's session is its own, whichever run began it.
        return self.engine.open_agent(
            provider="openai",
            model=self.model,
            session_id=item.session_id,
            if_stored="resume",
            system=SYSTEM,
        )


def entered(agent: terzetto.Agent) -> bool:
    """Whether the model has seen the prompt."""
    return any(
        isinstance(message, UserMessage) and isinstance(message.source, UserSource)
        for message in agent.history()
    )


# --- results ------------------------------------------------------------------------------


@define(eq=False)
class Results:
    """The file of results, locked for this run. *done* is what it holds."""

    done: dict[str, Result]
    _file: TextIO

    def write(self, result: Result) -> None:
        # In the event loop: a line into the system's buffers is quicker than a thread. And
        # without a checkpoint: a cancel cannot come between a result and its line.
        self._file.write(as_line(result))
        self._file.flush()
        self.done[result.id] = result


@contextmanager
def open_results(path: Path, *, retry_failed: bool) -> Iterator[Results]:
    """The results at *path*, those of earlier runs among them.

    A line that a killed run left torn is dropped: its item is done, and its log knows.
    """
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SystemExit(f"batch: another run is writing {path}") from None
        file.seek(0)
        done: dict[str, Result] = {}
        for line in file:
            try:
                result = Result(**json.loads(line))
            except (ValueError, TypeError):
                continue
            if result.ok or not retry_failed:
                done[result.id] = result
        file.truncate(0)  # written anew in place: another file would not have our lock
        file.writelines(as_line(result) for result in done.values())
        file.flush()
        yield Results(done, file)


def as_line(result: Result) -> str:
    return json.dumps(asdict(result), ensure_ascii=False) + "\n"


# --- the command --------------------------------------------------------------------------


async def run_batch(options: argparse.Namespace, items: list[Item], results: Results) -> bool:
    """Do what is to be done. False if somebody stopped it."""
    before = len(results.done)
    todo = [item for item in items if item.id not in results.done]
    adapter, model = scripted() if options.scripted else from_environment()
    store = terzetto.JsonlStore(options.sessions)
    async with (
        terzetto.open_engine(adapters=[adapter], tools=[look_up_product], store=store) as engine,
        trio.open_nursery() as nursery,
    ):
        limit = trio.CapacityLimiter(options.at_once)
        batch = Batch(engine, model, results, limit, len(todo))
        await nursery.start(stop_on_signal, nursery.cancel_scope)
        async with trio.open_nursery() as running:
            for item in todo:
                running.start_soon(batch.run, item)
        nursery.cancel_scope.cancel(reason="all items are done")
    # Here the engine is closed, so every log is complete and on disk, whatever came.
    summarize(items, results, before)
    return batch.ended == len(todo)


async def stop_on_signal(
    scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Cancel *scope* at the first Ctrl-C or SIGTERM; a second one kills as usual."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            break
    scope.cancel(reason="a signal")


def progress(text: str, *, last: bool) -> None:
    """On a terminal one line that changes, elsewhere a line each."""
    start, end = ("\r", "\n" if last else "") if sys.stderr.isatty() else ("", "\n")
    print(f"{start}batch: {text}", end=end, file=sys.stderr, flush=True)


def summarize(items: list[Item], results: Results, before: int) -> None:
    done = [results.done[item.id] for item in items if item.id in results.done]
    failed = sum(not result.ok for result in done)
    left = len(items) - len(done)
    print(
        f"batch: {len(items)} items: {len(done) - failed} ok, {failed} failed, {left} left "
        f"({before} were done before)" + ("; run it again to go on" if left else ""),
        file=sys.stderr,
    )


def scripted() -> tuple[terzetto.Adapter, str]:
    """A model that looks every product up, and then likes all but each fourth."""

    def reply(request: Request) -> Entry:
        prompt, last = (
            [one for one in request.messages if isinstance(one, UserMessage)][at] for at in (0, -1)
        )
        number = int(re.findall(r"\d+", prompt.text)[0])
        if isinstance(last.source, UserSource):
            if number % 100 == 13:
                return refuse(503, "the scripted model is out of order")
            return answer(Delay(0.05), call("look_up_product", number=number))
        verdict = "is not" if number % 4 == 0 else "is"
        return answer(Delay(0.05), f"The reviewer {verdict} happy with it.")

    return ScriptedModel(reply, provider="openai"), "scripted"


def from_environment() -> tuple[terzetto.Adapter, str]:
    try:
        adapter = OpenAIChat.from_env()
    except terzetto.InvalidValue as error:
        raise SystemExit(f"batch: {error}; or try --scripted") from None
    return adapter, os.environ.get("OPENAI_MODEL", "gpt-4o-mini")


def read_items(path: Path | None) -> list[Item]:
    if path is None:
        prompt = "Product {n}. The review: it came after {n} days, and I use it every evening."
        return [Item(f"review-{n:03}", prompt.format(n=n)) for n in range(1, 201)]
    items: dict[str, Item] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            item = Item(**json.loads(line))
        except (ValueError, TypeError):
            raise SystemExit(f'{path}:{number}: expected {{"id": ..., "prompt": ...}}') from None
        if not isinstance(item.prompt, str) or not re.fullmatch(r"[a-z0-9_.-]{1,80}", str(item.id)):
            raise SystemExit(f"{path}:{number}: id: expected up to 80 of a-z, 0-9, '-', '_', '.'")
        if item.id in items:
            raise SystemExit(f"{path}:{number}: the id {item.id!r} is taken by an earlier line")
        items[item.id] = item
    return list(items.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="One agent for each item.")
    parser.add_argument("items", nargs="?", type=Path, help="JSON lines; absent: 200 reviews")
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"), metavar="FILE")
    parser.add_argument("--sessions", type=Path, default=Path("batch-sessions"), metavar="DIR")
    parser.add_argument("--at-once", type=int, default=10, metavar="N")
    parser.add_argument("--retry-failed", action="store_true")
    parser.add_argument("--scripted", action="store_true", help="no key and no network")
    options = parser.parse_args()
    if options.at_once < 1:
        parser.error(f"--at-once: expected 1 or more, got {options.at_once}")
    items = read_items(options.items)
    with open_results(options.out, retry_failed=options.retry_failed) as results:
        complete = trio.run(run_batch, options, items, results)
        failed = any(not result.ok for result in results.done.values())
    return 130 if not complete else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
