"""Pieces that need no wait come together, and nothing is lost, early, or left behind by it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal, TypeAlias

import pytest
import trio
from attrs import define, field
from hypothesis import given, strategies as st

from terzetto.llm._http import HttpClient, HttpLimits, unwind
from terzetto.llm._pieces import TOGETHER, Pieces
from terzetto.llm._silence import Silence, Silent
from terzetto.vocabulary import ProviderError

from .byte_server import CUT, EOF, D, F, Reply, T, open_byte_server, reply
from .chat_client import ask, serving, text_of

Act: TypeAlias = bytes | Literal["wait", "other wait", "error"]


@define(eq=False, slots=False)
class Network:
    """Each read waits for a turn of the scheduler, or for ever."""

    reads: int = 0
    hangs: bool = False

    async def read(self) -> bytes:
        self.reads += 1
        if self.hangs:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return b"x"


@define(eq=False)
class Body:
    """Does *acts* in order: a piece, a read, another wait, an end by an error. Under layers, as
    httpx has them, and with what each leaves behind on its way out."""

    acts: Sequence[Act]
    network: Network = field(factory=Network)
    left: list[str] = field(factory=list)

    async def innermost(self) -> AsyncIterator[bytes]:
        try:
            for act in self.acts:
                match act:
                    case "wait":
                        await self.network.read()
                    case "other wait":
                        with trio.CancelScope(shield=True):
                            await trio.lowlevel.checkpoint()
                    case "error":
                        raise OSError("broken")
                    case piece:
                        yield piece
        except trio.Cancelled:
            self.left.append("cancelled")
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            raise
        finally:
            self.left.append("left")

    async def outermost(self) -> AsyncIterator[bytes]:
        async for piece in self.innermost():
            yield piece

    def opened(self, *, watched: bool = True) -> Pieces:
        silence = Silence(math.inf)
        silence.watch(self.network)
        silence.watches = watched
        return Pieces(self.outermost(), silence)


ACTS = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=3),
        st.sampled_from([b"x" * TOGETHER, b"y" * (TOGETHER - 2)]),
        st.sampled_from(["wait", "wait", "other wait", "error"]),
    ),
    max_size=14,
)


async def next_of(asked: Callable[[], object]) -> bytes | str:
    try:
        found = await asked()  # type: ignore[misc]
    except StopAsyncIteration:
        return "the end"
    except OSError as error:
        return str(error)
    assert isinstance(found, bytes)
    return found


@given(ACTS, st.lists(st.booleans(), min_size=1, max_size=6))
def test_any_way_of_asking_gives_the_same_bytes_and_the_same_end(
    acts: list[Act], ways: list[bool]
) -> None:
    async def read() -> None:
        expected, body = b"", Body(acts)
        error = "error" in acts
        for act in acts[: acts.index("error")] if error else acts:
            expected += act if isinstance(act, bytes) else b""
        pieces, found, turn = body.opened(), b"", 0
        while True:
            together = ways[turn % len(ways)]
            turn += 1
            got = await next_of(pieces.together if together else pieces.__anext__)
            if isinstance(got, str):
                break
            assert got
            # The last piece may be more than there was room for.
            assert len(got) < TOGETHER + max(len(act) for act in acts if isinstance(act, bytes))
            found += got
        assert (found, got) == (expected, "broken" if error else "the end")
        assert body.left == ["left"]
        for asked in (pieces.together, pieces.__anext__):
            assert await next_of(asked) == "the end"

    trio.run(read)


async def test_what_needs_no_wait_comes_together_and_the_rest_when_it_is_there() -> None:
    body = Body([b"a", b"b", "wait", b"c", b"d", "other wait", b"e", "wait", b"f"])
    pieces = body.opened()
    assert await pieces.together() == b"ab"
    assert body.network.reads == 0  # announced, and not begun
    assert await pieces.together() == b"cde"
    assert body.network.reads == 1
    assert await pieces.together() == b"f"
    assert await next_of(pieces.together) == "the end"


async def test_only_so_much_comes_together() -> None:
    pieces = Body([b"x" * 1000] * 100).opened()
    sizes = []
    while isinstance(got := await next_of(pieces.together), bytes):
        sizes.append(len(got))
    assert sum(sizes) == 100_000
    assert max(sizes) < TOGETHER + 1000
    assert len(sizes) <= 100_000 // TOGETHER + 1


async def test_where_waits_are_not_announced_pieces_come_one_by_one() -> None:
    """Asking for one more could wait with others in the hand."""
    pieces = Body([b"a", b"b", "other wait", b"c"]).opened(watched=False)
    assert [await pieces.together() for _ in range(3)] == [b"a", b"b", b"c"]
    await unwind(pieces)


@pytest.mark.parametrize("met", [False, True])
async def test_left_at_an_announced_wait_every_layer_ends(met: bool) -> None:
    """Cancelled before that wait or in it."""
    body = Body([b"a", b"b", "wait", b"c"], Network(hangs=True))
    pieces = body.opened()
    assert await pieces.together() == b"ab"
    if met:
        with trio.CancelScope() as scope:
            scope.cancel()
            await pieces.together()
        assert scope.cancelled_caught
    await unwind(pieces)
    assert body.left == ["cancelled", "left"]
    assert body.network.reads == 1


async def test_a_cancel_from_another_task_meets_the_wait_that_was_announced() -> None:
    body = Body([b"a", "wait"], Network(hangs=True))
    pieces, cancelled = body.opened(), []

    async def read(scope: trio.CancelScope) -> None:
        with scope:
            assert await pieces.together() == b"a"
            await pieces.together()
        cancelled.append(scope.cancelled_caught)

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(read, scope)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
    assert cancelled == [True]
    assert body.left == ["cancelled", "left"]


async def test_an_announced_wait_is_silence_from_where_it_begins(
    autojump_clock: trio.testing.MockClock,
) -> None:
    body = Body([b"a", "wait", b"b"], Network(hangs=True))
    pieces = body.opened()
    pieces.silence.left = 3
    assert await pieces.together() == b"a"
    await trio.sleep(100)  # a slow caller is not a silent provider
    pieces.silence.left = 7
    began = trio.current_time()
    with pytest.raises(Silent):
        await pieces.together()
    assert trio.current_time() - began == pytest.approx(7)


async def test_an_announced_wait_of_an_answer_that_is_complete_is_not_silence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its tail is waited for in another limit; see `HttpClient.stream`."""
    body = Body([b"a", "wait", b"b"], Network(hangs=True))
    pieces = body.opened()
    pieces.silence.left = 0
    assert await pieces.together() == b"a"
    pieces.silence.end()
    with trio.move_on_after(5) as scope:
        await pieces.__anext__()
    assert scope.cancelled_caught


def framed(*pieces: bytes) -> bytes:
    """*pieces*, each as one chunk of HTTP."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


def unframed(*steps: object) -> Reply:
    headers = (("content-type", "text/event-stream"), ("transfer-encoding", "chunked"))
    return Reply(steps=steps, headers=headers, chunked=False)  # type: ignore[arg-type]


WORDS = [T(f"{number} ") for number in range(200)]


async def test_an_answer_of_many_chunks_is_whole_however_they_came() -> None:
    at_once = unframed(framed(*WORDS, F("stop"), D) + b"0\r\n\r\n", EOF)
    one_by_one = reply(*WORDS, F("stop"), D, EOF)
    async with serving(one_by_one, one_by_one, at_once) as (_, adapter):
        for _ in range(3):
            assert text_of(await ask(adapter)) == "".join(f"{n} " for n in range(200))


@pytest.mark.parametrize("after", [(b"no chunk\r\n", EOF), (CUT,)])
async def test_what_breaks_behind_good_pieces_takes_none_of_them(after: tuple[object, ...]) -> None:
    """The error is met by the read after them."""
    async with open_byte_server(unframed(framed(*WORDS), *after)) as server:
        client = HttpClient(HttpLimits())
        async with client.stream(f"{server.url}/x", {}, b"") as answer:
            found = b""
            with pytest.raises(ProviderError) as caught:
                while data := await answer.read():
                    found += data
            assert caught.value.failure.code == "TRANSPORT"
            assert await answer.read() == b""
        await client.aclose()
    assert found == b"".join(WORDS)
