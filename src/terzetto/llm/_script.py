"""Scripts: which answer a request gets, and short ways to write answers down.

Pure: the same script, seed and requests give the same answers. What an answer is, is
said in `_answer`; playing one belongs to `scripted` and `loopback`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Final, TypeAlias

from attrs import evolve, field, frozen

from ..vocabulary import (
    AssistantBlock,
    BlockEnd,
    BlockStart,
    CallId,
    ErrorFinish,
    Failure,
    Finish,
    FinishReason,
    InvalidValue,
    ProviderError,
    ReasoningBlock,
    ReasoningDelta,
    Request,
    Stop,
    StreamChunk,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    ToolCallDelta,
    ToolCalls,
    Usage,
    UsageChunk,
)
from ._answer import Action, Answer, Delay, End, Ending, Refuse

AUTO_ID: Final = CallId("auto")
"""A call id that becomes ``call_<request>_<call>`` when played, both counted from 1."""


@frozen
class Part:
    """One block and the deltas it comes in; `answer` gives it an index."""

    block: AssistantBlock
    pieces: tuple[str, ...]

    def chunks(self, index: int) -> tuple[StreamChunk, ...]:
        """Start, deltas, end."""
        block, deltas = self.block, list[StreamChunk]()
        if isinstance(block, TextBlock):
            start = BlockStart(index, "text")
            deltas += [TextDelta(index, piece) for piece in self.pieces]
        elif isinstance(block, ReasoningBlock):
            start = BlockStart(index, "reasoning")
            deltas += [ReasoningDelta(index, piece) for piece in self.pieces]
        else:
            start = BlockStart(index, "tool-call")
            first, *rest = self.pieces or ("",)
            deltas.append(ToolCallDelta(index, block.id, first, block.name))
            deltas += [ToolCallDelta(index, block.id, piece) for piece in rest]
        return (start, *deltas, BlockEnd(index, block))


Entry: TypeAlias = Answer | Part | str | Action | Ending
"""What stands for an answer; all but an `Answer` are taken as `answer` takes them."""
Responder: TypeAlias = Callable[[Request], Entry]
"""A model that looks at what it is asked. Called once per request; does not wait."""


def _split(text: str, pieces: Sequence[str] | int | None) -> tuple[str, ...]:
    if pieces is None:
        return tuple(re.findall(r"\s*\S+\s*|\s+", text))
    if isinstance(pieces, int):
        count = max(pieces, 1)
        edges = [len(text) * n // count for n in range(count + 1)]
        return tuple(text[start:end] for start, end in pairwise(edges) if start < end)
    if "".join(pieces) != text:
        raise InvalidValue(f"pieces: expected pieces of {text!r}, got {pieces!r}")
    return tuple(pieces)


def say(text: str, *, pieces: Sequence[str] | int | None = None) -> Part:
    """A text block. *pieces*: its deltas, or how many of them; absent means word by word."""
    return Part(TextBlock(text), _split(text, pieces))


def think(text: str, *, pieces: Sequence[str] | int | None = None) -> Part:
    """A reasoning block; *pieces* as in `say`."""
    return Part(ReasoningBlock(text), _split(text, pieces))


def call(
    tool: str,
    given: Mapping[str, object] | str | None = None,
    /,
    *,
    id: str | None = None,
    **arguments: object,
) -> Part:
    """A tool call, its arguments in two deltas.

    Args:
        tool: The tool's name.
        given: More arguments, for names that cannot be keywords here (``id``); or the raw
            text of the arguments, which need not be JSON.
        id: Absent means `AUTO_ID`: unique within the script and the same in every run.
        arguments: The arguments: plain JSON values.
    """
    if isinstance(given, str):
        if arguments:
            raise InvalidValue("call: expected a raw text or arguments, got both")
        text = given
    else:
        text = json.dumps({**(given or {}), **arguments}, ensure_ascii=False, allow_nan=False)
    block = ToolCallBlock(AUTO_ID if id is None else CallId(id), tool, text)
    return Part(block, _split(text, 2))


def finish_error(
    code: str = "SERVER",
    message: str = "the model failed",
    *,
    status: int | None = None,
    retry_after_ms: int | None = None,
) -> Finish:
    """The stream ends with a failure. Over HTTP: an error object inside the 200 stream."""
    failure = Failure(
        message=message, code=code, status=status, provider_retry_after_ms=retry_after_ms
    )
    return Finish(ErrorFinish(failure))


_CODES: Final = {
    401: "AUTH",
    402: "QUOTA",
    403: "PERMISSION",
    404: "NOT_FOUND",
    408: "TIMEOUT",
    409: "SERVER",
    413: "CONTEXT_OVERFLOW",
    429: "RATE_LIMIT",
    504: "TIMEOUT",
}
"""What a status means where nobody says more; other 4xx ``INVALID_REQUEST``, 5xx ``SERVER``."""


def refuse(
    status: int,
    message: str | None = None,
    *,
    code: str | None = None,
    provider_code: str | None = None,
    retry_after: float | str | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | str | None = None,
) -> Refuse:
    """An HTTP error response.

    Args:
        status: 400 to 599.
        message: For people; in the error object over HTTP.
        code: The failure's code in process. Absent: guessed from *status*.
        provider_code: ``error.code`` over HTTP. Absent: made from *code*.
        retry_after: Seconds. A str is sent as it is, and says nothing in process.
        headers: More response headers.
        body: Sent instead of the error object.
    """
    if not 400 <= status <= 599:
        raise InvalidValue(f"status: expected 400 to 599, got {status!r}")
    extra = tuple((headers or {}).items())
    wait_ms = None
    if isinstance(retry_after, str):
        extra = (("retry-after", retry_after), *extra)
    elif retry_after is not None:
        plain = str(int(retry_after) if retry_after == int(retry_after) else retry_after)
        extra = (("retry-after", plain), *extra)
        wait_ms = round(retry_after * 1000) if retry_after >= 0 else None
    failure = Failure(
        message=message or f"refused with status {status}",
        code=code or _CODES.get(status, "SERVER" if status >= 500 else "INVALID_REQUEST"),
        status=status,
        provider_retry_after_ms=wait_ms,
    )
    content = body.encode() if isinstance(body, str) else body
    return Refuse(failure=failure, provider_code=provider_code, headers=extra, body=content)


def overflow() -> Refuse:
    """The refusal of a request that does not fit into the context window."""
    return refuse(
        400,
        "This model's maximum context length is 131072 tokens. However, you requested 152533.",
        code="CONTEXT_OVERFLOW",
        provider_code="context_length_exceeded",
    )


def out_of_quota() -> Refuse:
    """The refusal of an account without money; a 429 that no retry helps."""
    return refuse(
        429,
        "You exceeded your current quota.",
        code="QUOTA",
        provider_code="insufficient_quota",
    )


def answer(
    *parts: Part | str | Action | Ending,
    finish: FinishReason | None = None,
    usage: Usage | None = None,
    ignore_cancel: bool = False,
) -> Answer:
    """An answer made of *parts*; a str stands for `say`, an ending may come last.

    Unless there is a `Finish` among the parts or an ending that breaks off, one is added:
    *finish*, or `ToolCalls` if there are calls, or `Stop`. *usage* goes before the finish.

    Raises:
        InvalidValue: A part after an ending, or a second finish.
    """
    actions: list[Action] = []
    ending: Ending | None = None
    index = 0
    for part in parts:
        if ending is not None:
            raise InvalidValue(f"answer: nothing follows an ending, got {part!r}")
        if isinstance(part, Ending):
            ending = part
            continue
        if isinstance(part, str):
            part = say(part)
        if isinstance(part, Part):
            actions.extend(part.chunks(index))
            index += 1
        else:
            actions.append(part)
            index = max(index, getattr(part, "index", -1) + 1)
    at = next((n for n, act in enumerate(actions) if isinstance(act, Finish)), None)
    if at is None and (finish is not None or ending is None or isinstance(ending, End)):
        called = any(isinstance(action, ToolCallDelta) for action in actions)
        at = len(actions)
        actions.append(Finish(finish or (ToolCalls() if called else Stop())))
    elif finish is not None:
        raise InvalidValue(f"answer: expected one finish, got {actions[at or 0]!r} and {finish!r}")
    if usage is not None:
        actions.insert(len(actions) if at is None else at, UsageChunk(usage))
    return Answer(tuple(actions), ending or End(), ignore_cancel=ignore_cancel)


def _as_answer(entry: Entry) -> Answer:
    return entry if isinstance(entry, Answer) else answer(entry)


def _entries(values: Iterable[Entry | Responder]) -> tuple[Answer | Responder, ...]:
    return tuple(value if callable(value) else _as_answer(value) for value in values)


@frozen
class Script:
    """What a model answers.

    Attributes:
        entries: Consumed in order, one per request, over everything the model is asked.
            Anything of `Entry` becomes an `Answer`; a function answers its one request.
        then: Answers every request after the last entry. Absent: those fail.
        seed: Absent: everything is played as written. Present: the deltas are cut anew
            into pieces of 1 to 12 characters, and delays vary by up to half, differently
            for each request but the same in every run.
    """

    entries: tuple[Answer | Responder, ...] = field(default=(), converter=_entries)
    then: Responder | None = None
    seed: int | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, source: ScriptSource) -> Script:
        """*source* as a script: a function answers everything, one entry one request."""
        if isinstance(source, Script):
            return source
        if isinstance(source, Entry):
            return cls((source,))
        return cls((), source) if callable(source) else cls(source)

    def reply(self, number: int, request: Request) -> Answer:
        """The answer to *request*, the *number*-th that is asked, counted from 1.

        Raises:
            ProviderError: ``SCRIPT_EXHAUSTED``: there is no answer for it.
            Exception: Whatever a `Responder` raises.
        """
        source = self.entries[number - 1] if number <= len(self.entries) else self.then
        if source is None:
            raise ProviderError(
                Failure(
                    message=f"request {number} has no answer: the script has {len(self.entries)}",
                    code="SCRIPT_EXHAUSTED",
                )
            )
        chosen = _named(_as_answer(source(request)) if callable(source) else source, number)
        return chosen if self.seed is None else _jittered(chosen, Random(f"{self.seed}/{number}"))


ScriptSource: TypeAlias = Script | Responder | Entry | Iterable[Entry | Responder]
"""What `Script.of` takes."""


def _named(given: Answer, number: int) -> Answer:
    """*given* with its automatic call ids filled in."""
    ids: dict[int, CallId] = {}

    def call_id(index: int) -> CallId:
        return ids.setdefault(index, CallId(f"call_{number}_{len(ids) + 1}"))

    actions: list[Action] = []
    for action in given.actions:
        match action:
            case ToolCallDelta(index=index, id=was) if was == AUTO_ID:
                actions.append(evolve(action, id=call_id(index)))
            case BlockEnd(index, ToolCallBlock(id=was) as block) if was == AUTO_ID:
                actions.append(BlockEnd(index, evolve(block, id=call_id(index))))
            case _:
                actions.append(action)
    return evolve(given, actions=tuple(actions)) if ids else given


def _jittered(given: Answer, random: Random) -> Answer:
    actions: list[Action] = []
    for action in _joined(given.actions):
        match action:
            case TextDelta(text=text) | ReasoningDelta(text=text):
                actions += [evolve(action, text=piece) for piece in _pieces(text, random)]
            case ToolCallDelta(arguments_delta=text):
                first, *rest = _pieces(text, random)
                actions.append(evolve(action, arguments_delta=first))
                actions += [evolve(action, arguments_delta=piece, name=None) for piece in rest]
            case Delay(seconds):
                actions.append(Delay(seconds * random.uniform(0.5, 1.5)))
            case _:
                actions.append(action)
    return evolve(given, actions=tuple(actions))


def _joined(actions: Iterable[Action]) -> list[Action]:
    """*actions* with neighbouring deltas of one block made one."""
    joined: list[Action] = []
    for action in actions:
        match (joined[-1] if joined else None), action:
            case TextDelta(at, head), TextDelta(index, tail) if at == index:
                joined[-1] = TextDelta(at, head + tail)
            case ReasoningDelta(at, head), ReasoningDelta(index, tail) if at == index:
                joined[-1] = ReasoningDelta(at, head + tail)
            case ToolCallDelta(at) as last, ToolCallDelta(index, _, tail, None) if at == index:
                joined[-1] = evolve(last, arguments_delta=last.arguments_delta + tail)
            case _:
                joined.append(action)
    return joined


def _pieces(text: str, random: Random) -> list[str]:
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = random.randint(1, 12)
        pieces.append(text[at : at + size])
        at += size
    return pieces or [""]
