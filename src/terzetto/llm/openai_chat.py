"""The adapter for OpenAI's chat completions and for servers that speak the same.

    adapter = OpenAIChat.from_env()
    adapter = OpenAIChat(provider="local", base_url="http://127.0.0.1:8080/v1", api_key=None)

Owns a provider's address, credential and defaults; the wire is `_openai_wire` and
`_openai_decode`, the connection `_http`. Reasoning that the server streams is given
out, and sent back only if asked for (`reasoning_in_history`).
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar, Self, TypedDict, Unpack
from urllib.parse import urlsplit

import trio
from attrs import evolve, field, frozen

from ..vocabulary import (
    CallConfig,
    DefaultField,
    Failure,
    InvalidValue,
    ModelInfo,
    ProviderError,
    Request,
    RetryPolicy,
    StreamChunk,
    texts,
)
from ._adapter import Adapter, ChunkStream, PreparedCall
from ._credentials import check_credential, check_header
from ._failures import INVALID_REQUEST, classify
from ._http import HttpAnswer, HttpClient, HttpLimits
from ._openai_bytes import ChatStream
from ._openai_decode import ChatDecoder
from ._openai_wire import RESERVED_OPTIONS, LimitField, encode_request
from ._together import Grouped

OPENAI_URL = "https://api.openai.com/v1"
_TRAILER_SECONDS = 5.0
"""How long usage and ``[DONE]`` may take behind ``finish_reason``: servers that send
neither may also keep the connection open."""

_HEADERS = {
    "accept": "text/event-stream",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "user-agent": "terzetto",
}


class OpenAIChatOptions(TypedDict, total=False):
    """What `OpenAIChat.from_env` passes on."""

    provider: str
    models: Mapping[str, ModelInfo] | None
    efforts: Mapping[str, Collection[str]] | None
    headers: Mapping[str, str] | None
    connect_timeout: float
    first_byte_timeout: float
    idle_timeout: float
    pool_timeout: float | None
    max_connections: int
    default_max_tokens: int | None
    reasoning_in_history: bool
    fill_reasoning: bool
    limit_field: LimitField | None


class OpenAIChat:
    """One provider behind the chat-completions protocol. See `Adapter`.

    Args:
        provider: The name under which agents select it.
        base_url: Without ``/chat/completions``.
        api_key: None sends no ``Authorization`` header, for local servers.
        models: What is known of models, by name; others may be used all the same. A
            model without a retry policy gets the default one.
        efforts: The reasoning efforts that a model takes, by model name; others are
            refused before a request. A model that is not named is not checked.
        headers: Sent with every request; they win over the adapter's own. Their
            values count as secrets.
        connect_timeout: Seconds to reach the server.
        first_byte_timeout: Seconds from the sent request to the first event.
        idle_timeout: Seconds between two events; comments do not count.
        pool_timeout: Seconds to wait for a free connection; None waits on.
        max_connections: Most connections at once.
        default_max_tokens: For calls that set no limit; None sends none.
        reasoning_in_history: Send earlier reasoning back as ``reasoning_content``.
        fill_reasoning: Send an empty ``reasoning_content`` with messages that made tool
            calls without any; by default they have no such field.
        limit_field: The body field for ``max_tokens``. By default
            ``max_completion_tokens`` for OpenAI itself, whose reasoning models refuse
            the other name, and ``max_tokens`` for everyone else.

    Raises:
        InvalidValue: A value that cannot work; the message never shows a credential.
    """

    _home: ClassVar[str] = OPENAI_URL

    def __init__(
        self,
        *,
        provider: str = "openai",
        base_url: str = OPENAI_URL,
        api_key: str | None,
        models: Mapping[str, ModelInfo] | None = None,
        efforts: Mapping[str, Collection[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout: float = 10.0,
        first_byte_timeout: float = 120.0,
        idle_timeout: float = 60.0,
        pool_timeout: float | None = None,
        max_connections: int = 100,
        default_max_tokens: int | None = None,
        reasoning_in_history: bool = False,
        fill_reasoning: bool = False,
        limit_field: LimitField | None = None,
    ) -> None:
        if not provider:
            raise InvalidValue("provider: expected a name, got an empty text")
        self._provider = provider
        self._base_url = _base_url(base_url)
        own = dict(_HEADERS)
        secrets = []
        if api_key is not None:
            key = check_credential(api_key, f"api_key of provider {provider!r}")
            own["authorization"] = f"Bearer {key}"
            secrets.append(key)
        for name, value in (headers or {}).items():
            own[name.lower()] = check_header(value, f"header {name!r}")
            secrets += [value, *value.split()] if len(value) >= 8 else []
        self._headers = own
        self._secrets = tuple(secrets)
        self._models = dict(models or {})
        self._efforts = {name: frozenset(known) for name, known in (efforts or {}).items()}
        self._default_max_tokens = CallConfig(
            provider=provider, model="", max_tokens=default_max_tokens
        ).max_tokens
        self._reasoning_in_history = reasoning_in_history
        self._fill_reasoning = fill_reasoning
        on_openai = urlsplit(self._base_url).hostname == urlsplit(OPENAI_URL).hostname
        self._limit_field: LimitField = limit_field or (
            "max_completion_tokens" if on_openai else "max_tokens"
        )
        limits = HttpLimits(
            connect_timeout=connect_timeout,
            first_byte_timeout=first_byte_timeout,
            idle_timeout=idle_timeout,
            pool_timeout=pool_timeout,
            max_connections=max_connections,
        )
        self._http = HttpClient(limits, self._secrets)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        key_variable: str = "OPENAI_API_KEY",
        base_url_variable: str = "OPENAI_BASE_URL",
        **options: Unpack[OpenAIChatOptions],
    ) -> Self:
        """An adapter with its key and address from *environ*, by default `os.environ`.

        Raises:
            InvalidValue: The key's variable is not set or cannot be a key; the message
                has the variable's name.
        """
        variables = os.environ if environ is None else environ
        key = variables.get(key_variable)
        if not key:
            raise InvalidValue(
                f"{key_variable} is not set; export it, or pass api_key to {cls.__name__} "
                "(api_key=None for a server that takes none)"
            )
        check_credential(key, key_variable)
        url = variables.get(base_url_variable) or cls._home
        return cls(base_url=url, api_key=key, **options)

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(provider={self._provider!r}, base_url={self._base_url!r})"

    @property
    def provider(self) -> str:
        return self._provider

    async def prepare(self, config: CallConfig) -> PreparedCall:
        await trio.lowlevel.checkpoint()
        if taken := RESERVED_OPTIONS & set(config.options):
            message = f"options {sorted(taken)} have fields of their own in CallConfig"
            raise ProviderError(Failure(message=message, code=INVALID_REQUEST))
        self._check_effort(config)
        defaults: frozenset[DefaultField] = frozenset()
        if config.max_tokens is None and self._default_max_tokens is not None:
            config = evolve(config, max_tokens=self._default_max_tokens)
            defaults = frozenset({"maxTokens"})
        info = self._models.get(config.model, ModelInfo())
        if info.retry_policy is None:
            info = evolve(info, retry_policy=RetryPolicy())
        return _Prepared(config=config, adapter_defaults=defaults, info=info, adapter=self)

    async def aclose(self) -> None:
        await self._http.aclose()

    def _check_effort(self, config: CallConfig) -> None:
        known = self._efforts.get(config.model)
        if config.effort is None or known is None or config.effort in known:
            return
        message = (
            f"model {config.model!r} does not take reasoning effort {config.effort!r}; "
            f"it takes {', '.join(sorted(known)) or 'none'}"
        )
        raise ProviderError(Failure(message=message, code=texts.UNSUPPORTED_REASONING_EFFORT))

    def body(self, request: Request) -> bytes:
        """The body that is sent for *request*: a function of it and of this adapter's options.

        No network, no credential. What a provider wants to be different is changed here.
        Raises `InvalidValue` for options with names of the body's own fields.
        """
        return encode_request(
            request,
            reasoning_in_history=self._reasoning_in_history,
            fill_reasoning=self._fill_reasoning,
            limit_field=self._limit_field,
        )

    @asynccontextmanager
    async def _open_stream(self, request: Request) -> AsyncIterator[AsyncIterator[StreamChunk]]:
        body = self.body(request)
        url = f"{self._base_url}/chat/completions"
        async with self._http.stream(url, self._headers, body) as answer:
            if answer.status != 200:
                text = await answer.error_body()
                raise ProviderError(
                    classify(
                        answer.status,
                        answer.headers,
                        text,
                        now=time.time(),
                        secrets=self._secrets,
                    )
                )
            chunks = _Chunks(answer, ChatStream(ChatDecoder(self._secrets)))
            try:
                yield chunks
            finally:
                chunks.leave()


class _Chunks(Grouped):
    """The chunks of *answer*; the last is a `Finish`, whatever happens to the connection."""

    def __init__(self, answer: HttpAnswer, stream: ChatStream) -> None:
        super().__init__()
        self._answer = answer
        self._stream = stream
        self._left = False

    async def _more(self) -> list[StreamChunk]:
        answer, stream = self._answer, self._stream
        chat = stream.chat
        while not (chat.ended or self._left):
            seen = chat.events
            failure: Failure | None = None
            data = b""
            try:
                data = await answer.read()
            except ProviderError as error:
                failure = error.failure
            except BaseException:  # cancelled in mid-read: nothing can be read any more
                self._left = True
                raise
            if failure is not None:
                chunks = chat.fail(failure)
            else:
                chunks = stream.feed(data) if data else stream.finish()
            if chat.events > seen:
                answer.progress()
                if chat.answered:
                    answer.limit_silence(_TRAILER_SECONDS)
            if chat.ended:
                answer.complete = failure is None
            if chunks:
                return chunks
        return []

    def leave(self) -> None:
        """Nothing is given out any more."""
        self._left = True
        self._ready.clear()


@frozen(kw_only=True)
class _Prepared:
    config: CallConfig
    adapter_defaults: frozenset[DefaultField]
    info: ModelInfo
    _adapter: OpenAIChat = field(repr=False, alias="adapter")

    def open_stream(self, request: Request) -> ChunkStream:
        if request.config != self.config:
            raise InvalidValue("request.config: expected the prepared call's config")
        return self._adapter._open_stream(request)


def _base_url(url: str) -> str:
    parts = urlsplit(url)
    try:
        host, _port = parts.hostname, parts.port
    except ValueError:
        host = None
    if parts.username is not None or parts.password is not None:
        # Not shown: it has a password in it.
        raise InvalidValue("base_url: put the credential into api_key or headers, not into the URL")
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidValue(f"base_url: expected http://host/... or https://host/..., got {url!r}")
    if parts.query or parts.fragment:
        raise InvalidValue("base_url: expected no query and no fragment")
    return url.rstrip("/")


if TYPE_CHECKING:
    _: Adapter = OpenAIChat(api_key=None)
