"""Tools that are right: tasks, channels, generators, processes, sockets."""

import subprocess
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import httpx
import trio

from terzetto import raw_tool, tool
from tests.corpus.cases import add, correct, world


@correct()
async def runs_two_jobs() -> str:
    """Run two jobs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 2)
        nursery.start_soon(trio.sleep, 1)
    return "done"


@correct()
async def stops_the_slower_job() -> str:
    """Ask two servers, and take the faster one."""
    answers = []

    async def ask(name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        answers.append(name)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "fast", 1)
        nursery.start_soon(ask, "slow", 9)
    return answers[0]


@correct()
async def collects_results() -> list[int]:
    """Compute squares."""
    squares = {}

    async def square(number: int) -> None:
        await trio.sleep(number)
        squares[number] = number * number

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(square, number)
    return [squares[number] for number in range(4)]


@correct()
async def handles_a_failing_job() -> str:
    """Run a job that fails."""

    async def job() -> None:
        await trio.sleep(1)
        raise OSError("the job failed")

    answer = "it worked"
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(job)
            nursery.start_soon(trio.sleep, 10)
    except* OSError:
        answer = "it failed"
    return answer


@correct()
async def waits_for_a_start() -> str:
    """Start a helper, use it, stop it."""

    async def helper(task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        await trio.sleep(1)
        task_status.started("ready")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        answer = await nursery.start(helper)
        nursery.cancel_scope.cancel()
    return answer


@correct()
async def pipes_through_a_channel() -> list[int]:
    """Produce and consume."""
    send, receive = trio.open_memory_channel[int](2)
    found = []

    async def produce() -> None:
        async with send:
            for number in range(3):
                await send.send(number)
                await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        async with receive:
            async for number in receive:
                found.append(number)
    return found


@correct()
async def shares_work_among_workers() -> int:
    """Add numbers with three workers."""
    send, receive = trio.open_memory_channel[int](0)
    total = 0

    async def work(numbers: trio.MemoryReceiveChannel[int]) -> None:
        nonlocal total
        async with numbers:
            async for number in numbers:
                await trio.sleep(0.1)
                total += number

    async with trio.open_nursery() as nursery:
        async with receive:
            for _ in range(3):
                nursery.start_soon(work, receive.clone())
        async with send:
            for number in range(6):
                await send.send(number)
    return total


@correct()
async def closes_its_generator() -> list[int]:
    """Take the first numbers."""

    async def numbers():
        for number in range(100):
            await trio.sleep(0.1)
            yield number

    taken = []
    async with aclosing(numbers()) as found:
        async for number in found:
            taken.append(number)
            if number == 2:
                break
    return taken


@correct()
async def cleans_up_in_a_generator() -> list[int]:
    """Take all numbers, and release the source."""

    async def numbers():
        world.values["source"] = "open"
        try:
            for number in range(3):
                yield number
                await trio.sleep(0.1)
        finally:
            world.values["source"] = "closed"

    async with aclosing(numbers()) as found:
        return [number async for number in found]


@correct()
async def uses_a_context_manager() -> str:
    """Borrow a thing."""

    @asynccontextmanager
    async def borrowed():
        await trio.sleep(0.1)
        try:
            yield "thing"
        finally:
            with trio.move_on_after(0.5, shield=True):
                await trio.sleep(0.1)

    async with borrowed() as thing:
        await trio.sleep(1)
        return thing


@correct()
async def stacks_its_cleanup() -> str:
    """Borrow three things."""

    async def give_back(name: str) -> None:
        with trio.move_on_after(0.2, shield=True):
            await trio.sleep(0.1)

    async with AsyncExitStack() as stack:
        for name in "abc":
            await trio.sleep(0.1)
            stack.push_async_callback(give_back, name)
        await trio.sleep(1)
    return "given back"


@correct()
async def waits_for_an_event() -> str:
    """Wait until somebody rings."""
    rung = trio.Event()

    async def ring() -> None:
        await trio.sleep(3)
        rung.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ring)
        await rung.wait()
    return "rung"


@correct()
async def waits_on_a_condition() -> str:
    """Wait until there is something."""
    condition, things = trio.Condition(), []

    async def bring() -> None:
        async with condition:
            things.append("thing")
            condition.notify_all()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bring)
        async with condition:
            while not things:
                await condition.wait()
    return things[0]


@correct()
async def takes_a_semaphore() -> str:
    """Do three things, two at a time."""
    semaphore = trio.Semaphore(2)

    async def thing() -> None:
        async with semaphore:
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(thing)
    return "done"


@correct(declares={"parallel": True})
async def waits_for_a_limiter() -> str:
    """Use the one printer."""
    async with world.limiter:
        await trio.sleep(1)
    return "printed"


@correct()
async def polls() -> str:
    """Look again and again."""
    for look in range(20):
        if look == 19:
            return "there it is"
        await trio.sleep(0.5)
    return "nothing"


@correct()
async def ends_at_a_deadline() -> str:
    """Do as much as there is time for."""
    done = 0
    with trio.move_on_at(trio.current_time() + 2.5):
        while True:
            await trio.sleep(1)
            done += 1
    return f"{done} done"


@correct()
async def checks_whether_it_is_cancelled() -> str:
    """Compute in pieces."""
    for _ in range(5):
        await trio.lowlevel.checkpoint_if_cancelled()
    return "computed"


@correct()
async def nests_its_timeouts() -> str:
    """Try two servers, each for a moment."""
    with trio.move_on_after(5):
        for _ in range(2):
            with trio.move_on_after(1):
                await trio.sleep(3)
    return "no server"


@correct()
async def parks() -> str:
    """Wait for a moment, the low way."""
    lot = trio.lowlevel.ParkingLot()
    with trio.move_on_after(1):
        await lot.park()
    return "went on"


@correct(limit=6)
async def runs_a_process() -> str:
    """Run a program."""
    ran = await trio.run_process(["echo", "hello"], capture_stdout=True)
    return ran.stdout.decode().strip()


@correct(limit=6)
async def stops_its_process() -> str:
    """Run a program for a moment."""
    with trio.move_on_after(0.01):
        await trio.run_process(["sleep", "600"])
    return "stopped"


@correct(limit=4)
def runs_a_process_in_a_thread() -> str:
    """Run a program with plain functions."""
    ran = subprocess.run(["echo", "hello"], capture_output=True, check=True)
    return ran.stdout.decode().strip()


@correct(limit=6)
async def talks_to_a_process() -> str:
    """Ask a program."""
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            lambda task_status: trio.run_process(
                ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, task_status=task_status
            )
        )
        async with process.stdin, process.stdout:
            await process.stdin.send_all(b"hello\n")
            answer = await process.stdout.receive_some()
            await process.stdin.aclose()
    return answer.decode().strip()


@correct(around=world.web, limit=12)
async def speaks_http_by_hand() -> str:
    """Greet a server."""
    stream = await trio.open_tcp_stream("127.0.0.1", world.port)
    received = b""
    async with stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        async for data in stream:
            received += data
    return received.decode().rpartition("\r\n")[2]


@correct(around=world.web, limit=4)
async def speaks_http() -> str:
    """Fetch a page."""
    async with httpx.AsyncClient(trust_env=False) as client:
        response = await client.get(f"http://127.0.0.1:{world.port}/")
        return response.text


@correct(around=world.web, limit=4)
async def streams_http() -> str:
    """Fetch a page, piece by piece."""
    text = ""
    async with (
        httpx.AsyncClient(trust_env=False) as client,
        client.stream("GET", f"http://127.0.0.1:{world.port}/") as response,
    ):
        async for piece in response.aiter_text():
            text += piece
    return text


@correct()
async def closes_its_sockets() -> str:
    """Look for a free port."""
    with trio.socket.socket() as found:
        await found.bind(("127.0.0.1", 0))
        return "found" if found.getsockname()[1] else "?"


@correct(limit=20)
async def serves_itself() -> str:
    """Talk over a socket pair."""
    one, other = trio.socket.socketpair()
    with one, other:
        await one.send(b"hello")
        return (await other.recv(10)).decode()


_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
}


async def _checks_raw(arguments):
    path = arguments.get("path") if isinstance(arguments, dict) else None
    if not isinstance(path, str):
        raise ValueError("expected an object with a path that is a text")
    await trio.sleep(0.1)
    return path.upper()


add(
    "checks_what_the_model_wrote",
    raw_tool(name="shout", description="Shout.", parameters=_SCHEMA, body=_checks_raw),
    None,
    {"path": "a"},
)


class Counter:
    """An object with a method that is a tool."""

    def __init__(self) -> None:
        self.step = 2

    async def count(self, to: int) -> int:
        """Count to a number."""
        await trio.sleep(0.1)
        return to * self.step


def _bound():

    return tool(Counter().count)


add("is_a_bound_method", _bound, None, {"to": 3})
