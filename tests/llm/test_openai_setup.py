"""What the adapter checks before anything is sent, and that it keeps secrets."""

from __future__ import annotations

import logging
import traceback

import pytest

from terzetto.llm.openai_chat import OpenAIChat
from terzetto.vocabulary import (
    CallConfig,
    InvalidValue,
    ModelInfo,
    ProviderError,
    Request,
    RetryPolicy,
    SessionId,
    freeze_object,
)

from .byte_server import CUT, EOF, HANG, Reply, T, event, refuse, reply
from .chat_client import GOOD, KEY, ask, config, serving


class TestPreparing:
    async def test_default_limit_is_marked(self) -> None:
        adapter = OpenAIChat(api_key=None, default_max_tokens=100)
        prepared = await adapter.prepare(config())
        assert prepared.config.max_tokens == 100
        assert prepared.adapter_defaults == {"maxTokens"}
        prepared = await adapter.prepare(config(max_tokens=5))
        assert prepared.config.max_tokens == 5
        assert prepared.adapter_defaults == frozenset()

    async def test_info_has_a_retry_policy(self) -> None:
        own = RetryPolicy(max_retries=1)
        models = {"a": ModelInfo(context_window=9), "b": ModelInfo(retry_policy=own)}
        adapter = OpenAIChat(api_key=None, models=models)
        infos = [
            (await adapter.prepare(CallConfig(provider="openai", model=m))).info for m in "abc"
        ]
        assert [info.retry_policy for info in infos] == [RetryPolicy(), own, RetryPolicy()]
        assert infos[0].context_window == 9

    async def test_effort_outside_the_advertised_set_is_refused(self) -> None:
        adapter = OpenAIChat(api_key=None, efforts={"m": ("low", "high")})
        await adapter.prepare(config(effort="low"))
        await adapter.prepare(CallConfig(provider="openai", model="other", effort="max"))
        with pytest.raises(ProviderError, match="it takes high, low") as caught:
            await adapter.prepare(config(effort="max"))
        assert caught.value.code == "UNSUPPORTED_REASONING_EFFORT"

    async def test_reserved_option_is_refused_before_anything_is_sent(self) -> None:
        adapter = OpenAIChat(api_key=None)
        with pytest.raises(ProviderError, match="stream"):
            await adapter.prepare(config(options=freeze_object({"stream": False})))

    async def test_request_must_be_the_prepared_one(self) -> None:
        prepared = await OpenAIChat(api_key=None).prepare(config())
        other = Request(session_id=SessionId("s"), config=config(max_tokens=1), messages=())
        with pytest.raises(InvalidValue, match="prepared"):
            prepared.open_stream(other)

    def test_limit_field_is_openais_own_for_openai_alone(self) -> None:
        assert OpenAIChat(api_key=None)._limit_field == "max_completion_tokens"
        assert OpenAIChat(api_key=None, base_url="http://x/v1")._limit_field == "max_tokens"

    @pytest.mark.parametrize(
        "url", ["", "x", "ftp://x", "http://", "http://u:SENTINEL@x", "http://x?a=1", "http://x:y"]
    )
    def test_bad_address_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidValue, match="base_url") as caught:
            OpenAIChat(api_key=None, base_url=url)
        assert "SENTINEL" not in str(caught.value)

    def test_environment(self) -> None:
        variables = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://x/v1/"}
        adapter = OpenAIChat.from_env(variables, provider="mine", idle_timeout=5)
        assert repr(adapter) == "OpenAIChat(provider='mine', base_url='http://x/v1')"
        assert "api.openai.com" in repr(OpenAIChat.from_env({"OPENAI_API_KEY": KEY}))

    @pytest.mark.parametrize("variables", [{}, {"OPENAI_API_KEY": ""}])
    def test_missing_key_names_its_variable(self, variables: dict[str, str]) -> None:
        with pytest.raises(InvalidValue, match="OPENAI_API_KEY is not set"):
            OpenAIChat.from_env(variables)


class TestSecrets:
    BAD_KEYS = (
        f"{KEY}\n",
        f" {KEY}",
        f"{KEY}\U0001f511",
        f"{KEY}\x00x",
        f"{KEY} x",
        f"{KEY}\r\nX: y",
    )

    @pytest.mark.parametrize("key", ["", *BAD_KEYS])
    def test_malformed_key_is_named_and_not_shown(self, key: str) -> None:
        with pytest.raises(InvalidValue, match="api_key of provider 'openai'") as caught:
            OpenAIChat(api_key=key)
        assert "SENTINEL" not in "".join(traceback.format_exception_only(caught.value))
        with pytest.raises(InvalidValue, match="OPENAI_API_KEY"):
            OpenAIChat.from_env({"OPENAI_API_KEY": key})

    @pytest.mark.parametrize("value", ["a\nb", "é", "", " x"])
    def test_malformed_header_is_named_and_not_shown(self, value: str) -> None:
        with pytest.raises(InvalidValue, match="header 'X-Own'"):
            OpenAIChat(api_key=None, headers={"X-Own": value})

    @pytest.mark.parametrize(
        "answer",
        [
            GOOD,
            refuse(401, {"error": {"message": f"Incorrect API key provided: {KEY}", "code": KEY}}),
            refuse(500, f"<p>{KEY}</p>".encode()),
            reply(event({"error": {"message": f"no {KEY}"}}), EOF),
            reply(b"data: {" + KEY.encode() + b"\n\n", EOF),
            reply(T("a"), CUT),
            reply(T("a"), HANG),
            reply(HANG, head=False),
            reply(CUT, head=False),
        ],
    )
    async def test_key_is_nowhere_to_be_seen(
        self, answer: Reply, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        shown: list[str] = []
        behind: list[BaseException | None] = []
        limits = {"first_byte_timeout": 0.05, "idle_timeout": 0.05}
        async with serving(answer, headers={"X-Own": KEY + "-too"}, **limits) as (_, adapter):
            try:
                shown += [repr(chunk) for chunk in await ask(adapter)]
            except ProviderError as error:
                # An exception of httpx behind this one would know every header.
                shown += [repr(error.__cause__), repr(error.__context__), repr(error.failure)]
                shown += traceback.format_exception(error)
                behind += [error.__cause__, error.__context__]
            prepared = await adapter.prepare(config())
            http = adapter._http
            shown += [repr(x) for x in (adapter, prepared, http, http.limits)]
        shown += [record.getMessage() for record in caplog.records]
        shown.append(caplog.text)
        assert set(behind) <= {None}
        assert [text for text in shown if "SENTINEL" in text] == []

    async def test_key_is_not_in_a_refused_connections_error(self) -> None:
        adapter = OpenAIChat(base_url="http://127.0.0.1:1", api_key=KEY)
        with pytest.raises(ProviderError) as caught:
            await ask(adapter)
        assert "SENTINEL" not in "".join(traceback.format_exception(caught.value))
        await adapter.aclose()
