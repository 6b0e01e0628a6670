"""`check_adapter`: whether an adapter keeps the laws of `Adapter`, on any cut of any answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import trio
from attrs import define, field, frozen

from ..llm import Adapter
from ..llm.loopback import serve_openai
from ..llm.scripted import ScriptSource
from ..vocabulary import (
    BlockAssembler,
    CallConfig,
    ErrorFinish,
    Failure,
    Finish,
    InvalidValue,
    ProviderError,
    ReasoningDelta,
    Request,
    SessionId,
    StreamChunk,
    TextDelta,
    UserMessage,
    is_complete,
)
from ._adapter_server import Plan, Player, part_of, playing, relaying
from ._chunks import chunk_problems
from ._effects import Effects
from ._judge import Judge, check_ignored, verdict
from ._places import place
from ._trial import Body, Trial
from ._trials import Trials, nothing
from ._verdicts import CheckReport, Verdict

MakeAdapter = Callable[..., Adapter]
_STATUSES = (400, 401, 403, 404, 429, 500, 503)
_SEVERAL = 3
"""Pieces of text that hardly ever come in one event."""


def check_adapter(
    make: MakeAdapter,
    *,
    script: ScriptSource | None = None,
    reply: bytes | None = None,
    messages: Sequence[UserMessage] = (UserMessage("Hello?"),),
    model: str = "m",
    secrets: Collection[str] = (),
    give_way: float = 1.0,
    block: float = 0.1,
    limit: int = 60,
    splits: int = 200,
    patience: float = 60.0,
    ignore: Collection[str] = (),
) -> CheckReport:
    """Ask an adapter the same thing many times, cut it and its connection short everywhere, and
    say what is wrong.

    Args:
        make: Makes a fresh adapter for each run. With *script* or *reply* it is given the
            address of a server, ``http://127.0.0.1:PORT/v1``; else nothing.
        script: What a server in OpenAI's format answers (`serve_openai`), once.
        reply: Instead, the bytes of an HTTP response, head included, as your provider sends
            them; the connection ends after it.
        messages, model: What is asked.
        secrets: Keys that the adapter was given; none of them may be shown by it.
        limit: Most runs that are cancelled.
        splits: Most places at which the answer is split, and at which it is cut.
        give_way, block, patience, ignore: As for `check_tool`.

    What must hold: one finish, and nothing behind it; the same chunks, put together, wherever
    the answer is split; an error with a code, and never a complete answer, where it is cut; more
    text the later it is cut, and not all of it at the end; a stream that is left lets go of its
    connection; the same request makes the same bytes; statuses become `ProviderError` with a
    code, and nothing shows a key.

    Raises:
        InvalidValue: both *script* and *reply* are given; or there is no such verdict.

    Not to be called inside a Trio run. Without *script* and *reply* there is no connection to
    cut, and the report says so.
    """
    check_ignored(ignore)
    if script is not None and reply is not None:
        raise InvalidValue("check_adapter: expected script or reply, got both")
    trials = _AdapterTrials(
        make=make,
        messages=tuple(messages),
        model=model,
        secrets=tuple(secrets),
        around=nothing,
        effects=Effects(),
        probe=None,
        patience=patience,
    )
    if script is not None:
        reply = trio.run(trials.recorded, script)
    trials.reply = reply
    judge = _AdapterJudge(
        trials=trials, give_way=give_way, block=block, may_fail=False, limit=limit
    )
    judge.one(Plan())
    if reply is None:
        judge.skipped.append("its connection: it was not given a server")
    elif not judge.hopeless:
        judge.tell(judge.wire(reply, splits))
    return judge.report(f"adapter {trials.provider!r}", ignore)


@frozen
class Heard:
    """What came of one request."""

    chunks: tuple[StreamChunk, ...]
    error: Exception | None = None
    let_go: bool = True

    @property
    def text(self) -> str:
        """All text and reasoning, as it came."""
        return "".join(
            chunk.text for chunk in self.chunks if isinstance(chunk, (TextDelta, ReasoningDelta))
        )

    @property
    def finish(self) -> Finish | None:
        return next((chunk for chunk in self.chunks if isinstance(chunk, Finish)), None)

    @property
    def failure(self) -> Failure | None:
        """Why it failed, if it did."""
        if isinstance(self.error, ProviderError):
            return self.error.failure
        reason = None if self.finish is None else self.finish.reason
        return reason.failure if isinstance(reason, ErrorFinish) else None

    @property
    def answer(self) -> tuple[object, Finish | None]:
        """The message that it makes, however it was cut into chunks."""
        assembler = BlockAssembler()
        for chunk in self.chunks:
            assembler.push(chunk)
        return assembler.assembled(), self.finish

    def __repr__(self) -> str:
        return repr(self.text)


@define(eq=False, kw_only=True)
class _AdapterTrials(Trials[Plan]):
    make: MakeAdapter
    messages: tuple[UserMessage, ...]
    model: str
    secrets: tuple[str, ...]
    reply: bytes | None = None
    provider: str = "?"
    asked: list[bytes] = field(factory=list)
    shown_secrets: list[str] = field(factory=list)

    def body_of(self, call: Plan) -> Body:
        if self.reply is None:
            return partial(self._ask, call, None)
        player = Player(self.reply, call)
        self.around = partial(self._served, player)
        return partial(self._ask, call, player)

    def shown(self, call: Plan) -> str:
        return call.called

    @property
    def begins_at(self) -> str | None:
        code = getattr(self.make, "__code__", None)
        return None if code is None else place(code.co_filename, code.co_firstlineno)

    @asynccontextmanager
    async def _served(self, player: Player) -> AsyncIterator[None]:
        async with playing(player):
            yield
        self.asked += [each.replace(b"%d" % player.port, b"PORT") for each in player.asked]

    async def _ask(self, plan: Plan, player: Player | None) -> Heard:
        adapter = self.make() if player is None else self.make(player.url)
        try:
            heard = await self._heard(adapter, plan, player)
        finally:
            with trio.move_on_after(1, shield=True):
                await adapter.aclose()
        self._look_for_secrets(repr(adapter), "its repr")
        if heard.error is not None:
            self._look_for_secrets(f"{heard.error} {heard.error!r}", "an error")
        return heard

    async def _heard(self, adapter: Adapter, plan: Plan, player: Player | None) -> Heard:
        self.provider = adapter.provider
        chunks: list[StreamChunk] = []
        try:
            config = CallConfig(provider=adapter.provider, model=self.model)
            prepared = await adapter.prepare(config)
            request = Request(
                session_id=SessionId("checked"), config=prepared.config, messages=self.messages
            )
            async with prepared.open_stream(request) as stream:
                async for chunk in stream:
                    chunks.append(chunk)
                    if plan.leave:
                        break
        except Exception as error:  # an adapter: the runtime makes a chunk of what it raises
            return Heard(tuple(chunks), error)
        if plan.leave and player is not None:
            with trio.move_on_after(5):
                await player.left.wait()
            return Heard(tuple(chunks), let_go=player.left.is_set())
        return Heard(tuple(chunks))

    def _look_for_secrets(self, text: str, where: str) -> None:
        self.shown_secrets += [where for secret in self.secrets if secret in text]

    async def recorded(self, script: ScriptSource) -> bytes:
        """The bytes with which a server in OpenAI's format answers *script*."""
        heard = bytearray()
        async with serve_openai(script) as server:
            upstream = urlsplit(server.base_url).port
            assert upstream is not None
            async with relaying(upstream, heard) as port:
                adapter = self.make(f"http://127.0.0.1:{port}/v1")
                try:
                    await self._heard(adapter, Plan(), None)
                finally:
                    await adapter.aclose()
        if not heard:
            raise InvalidValue("check_adapter: the adapter sent no request to the server")
        return bytes(heard)


@define(eq=False, kw_only=True)
class _AdapterJudge(Judge[Plan]):
    trials: _AdapterTrials  # pyright: ignore[reportIncompatibleVariableOverride]

    def of_plain(self, call: Plan, trial: Trial) -> Iterator[Verdict]:
        heard = _heard(trial)
        if heard is None:
            return
        if heard.error is not None:
            text = f"{call.called} gave {type(heard.error).__name__}: {heard.error}"
            yield verdict("fails", text, None)
            return
        yield from chunk_problems(heard.chunks)

    def of_all(self) -> Iterator[Verdict]:
        if len(set(self.trials.asked)) > 1:
            one, other = sorted(set(self.trials.asked))[:2]
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            shown = f"{one[max(0, at - 20) : at + 20]!r} and {other[max(0, at - 20) : at + 20]!r}"
            yield verdict(
                "unstable-bytes", f"sends other bytes for the same request: {shown}", None
            )
        yield from self._secrets()

    def _secrets(self) -> Iterator[Verdict]:
        for where in dict.fromkeys(self.trials.shown_secrets):
            yield verdict("tells-secret", f"shows its key in {where}", None)

    # --- the connection --------------------------------------------------------------------

    def wire(self, reply: bytes, most: int) -> Iterator[Verdict]:
        """What it makes of every piece of *reply*, and of other statuses."""
        whole = self._asked(Plan())
        if whole is None or whole.error is not None:
            return
        stride = max(1, -(-len(reply) // most))
        for split in range(1, len(reply), stride):
            heard = self._asked(Plan(split=split))
            if heard is not None and (heard.error or heard.answer != whole.answer):
                told = heard.error or repr(heard.text)
                text = f"split after byte {split} of {len(reply)}, the answer is {told!s:.100}"
                yield verdict("splits-wrong", f"{text}, and else {whole.text!r:.100}", None)
                break
        yield from self._cuts(reply, whole, stride)
        yield from self._statuses()
        yield from self._left_stream(reply)
        yield from self._secrets()

    def _left_stream(self, reply: bytes) -> Iterator[Verdict]:
        early = self._asked(Plan(cut=part_of(reply)))
        if early is None or not early.chunks:
            return  # nothing comes of so much, and it would wait for more
        left = self._asked(Plan(leave=True, called="a stream that is left"))
        if left is not None and not left.let_go:
            text = "keeps its connection after its stream was left in the middle of an answer"
            yield verdict("keeps-connection", text, None)

    def _cuts(self, reply: bytes, whole: Heard, stride: int) -> Iterator[Verdict]:
        longest = ""
        for cut in (*range(0, len(reply) - 1, stride), len(reply) - 1):
            heard = self._asked(Plan(cut=cut, called="a cut answer"))
            where = f"when the answer ends at byte {cut} of {len(reply)}"
            if heard is None:
                yield verdict(
                    "never-ends", f"does not end when the answer ends at byte {cut}", None
                )
                return
            where = f"when the answer ends at byte {cut} of {len(reply)}"
            ended = heard.finish is not None and is_complete(heard.finish.reason)
            if ended and heard.error is None:
                if heard.answer[0] != whole.answer[0]:
                    text = f"takes {heard.text!r:.80} for a whole answer {where}"
                    yield verdict("takes-truncation", text, None)
                    return
            elif heard.failure is None or heard.failure.code in {"", "UNKNOWN"}:
                error = "nothing" if heard.error is None else type(heard.error).__name__
                text = f"raises {error} {where}; expected ProviderError with a code"
                yield verdict("unclassified", text, None)
                return
            if not whole.text.startswith(heard.text) or not heard.text.startswith(longest):
                text = f"gives out {heard.text!r:.80} {where}; {longest!r:.80} had arrived before"
                yield verdict("loses-prefix", text, None)
                return
            longest = heard.text
        texts = [chunk for chunk in whole.chunks if isinstance(chunk, (TextDelta, ReasoningDelta))]
        if len(texts) >= _SEVERAL and not longest:
            text = "gives out nothing before the answer is complete: what had arrived is lost"
            yield verdict("loses-prefix", text, None)

    def _statuses(self) -> Iterator[Verdict]:
        for status in _STATUSES:
            message = f"no: {' '.join(self.trials.secrets)}"
            body = json.dumps({"error": {"message": message, "type": "refused"}}).encode()
            head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            heard = self._asked(Plan(reply=head.encode() + body, called=f"status {status}"))
            if heard is not None and (heard.failure is None or heard.failure.code == "UNKNOWN"):
                error = "nothing" if heard.error is None else type(heard.error).__name__
                text = f"status {status} gives {error}; expected ProviderError with a code"
                yield verdict("unclassified", text, None)
                return

    def _asked(self, plan: Plan) -> Heard | None:
        trial, _ = self.trials.run(plan)
        return None if trial.hung is not None else _heard(trial)


def _heard(trial: Trial) -> Heard | None:
    value = None if trial.ending is None else trial.ending.value
    return value if isinstance(value, Heard) else None
