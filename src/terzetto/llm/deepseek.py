"""The adapter for DeepSeek: chat completions, with DeepSeek's rules for reasoning.

    adapter = DeepSeek.from_env()    # DEEPSEEK_API_KEY, and DEEPSEEK_BASE_URL if it is set

Owns what differs from `OpenAIChat`: the address, what is known of the models, and that
reasoning goes back. In thinking mode DeepSeek refuses (400) a history in which a message
that made tool calls has lost its ``reasoning_content``, in every later request of the
conversation, and so after a resume too. The log keeps reasoning, so it is sent as it came.

Taken from DeepSeek's public documentation as of November 2026 (``api-docs.deepseek.com``:
models and pricing, thinking mode, error codes, rate limit); what is assumed stands beside
`MODELS` and `EFFORTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, Self, Unpack

from attrs import evolve

from ..vocabulary import ModelInfo, Request
from ._adapter import Adapter
from .openai_chat import OpenAIChat, OpenAIChatOptions

DEEPSEEK_URL: Final = "https://api.deepseek.com"
DEFAULT_MODEL: Final = "deepseek-flash"
"""The name that DeepSeek gives to its current small model."""

_V4 = ModelInfo(context_window=1_000_000, max_output_tokens=384_000)
MODELS: Final[Mapping[str, ModelInfo]] = {
    "deepseek-flash": _V4,
    "deepseek-v4-pro": _V4,
    "deepseek-v4-flash": _V4,
}
"""What is known of DeepSeek's models.

Documented are a context of "1M" and an output of "384K" tokens; assumed is the smaller
reading of both, in thousands. ``deepseek-v4-flash`` is an older name that DeepSeek serves
with ``deepseek-flash``. ``deepseek-chat`` and ``deepseek-reasoner`` were withdrawn in July
2026; like every model that is not named here they are sent as they are.
"""

NO_THINKING: Final = "none"
"""The effort that turns thinking mode off. It is on by default."""

_EFFORTS = (NO_THINKING, "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
EFFORTS: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(MODELS, _EFFORTS)
"""The efforts that DeepSeek documents, by model.

It knows three, ``low``, ``high`` (the default) and ``max``, and takes the other names as the
next of them: ``minimal`` as low, ``medium`` and ``xhigh`` as high, ``ultra`` as max.
"""

_QUEUE_SECONDS = 600.0


class DeepSeek(OpenAIChat):
    """DeepSeek as the provider ``deepseek``. See `Adapter`.

    Args:
        api_key: None sends no ``Authorization`` header, for a proxy that adds one.
        base_url: Without ``/chat/completions``.
        options: As for `OpenAIChat`. *models* and *efforts* add to what is known here.
            Other defaults are ``provider="deepseek"``, ``reasoning_in_history=True``,
            ``limit_field="max_tokens"``, and ``first_byte_timeout=600``: under load
            DeepSeek keeps a request waiting for up to ten minutes before it begins.

    Set ``fill_reasoning=True`` for sessions that another model, or DeepSeek without
    thinking mode, began: in thinking mode DeepSeek may refuse tool calls of an earlier
    message that never had reasoning.

    Effort ``"none"`` turns thinking off (``{"thinking": {"type": "disabled"}}``); other
    efforts go out as ``reasoning_effort``.

    Raises:
        InvalidValue: A value that cannot work; the message never shows a credential.
    """

    _home: ClassVar[str] = DEEPSEEK_URL

    def __init__(
        self,
        *,
        api_key: str | None,
        base_url: str = DEEPSEEK_URL,
        **options: Unpack[OpenAIChatOptions],
    ) -> None:
        options.setdefault("provider", "deepseek")
        options.setdefault("first_byte_timeout", _QUEUE_SECONDS)
        options.setdefault("reasoning_in_history", True)
        options["limit_field"] = options.get("limit_field") or "max_tokens"
        options["models"] = {**MODELS, **(options.get("models") or {})}
        options["efforts"] = {**EFFORTS, **(options.get("efforts") or {})}
        super().__init__(base_url=base_url, api_key=api_key, **options)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        key_variable: str = "DEEPSEEK_API_KEY",
        base_url_variable: str = "DEEPSEEK_BASE_URL",
        **options: Unpack[OpenAIChatOptions],
    ) -> Self:
        """An adapter with its key and address from *environ*, by default `os.environ`.

        Raises:
            InvalidValue: The key's variable is not set or cannot be a key; the message
                has the variable's name.
        """
        return super().from_env(
            environ, key_variable=key_variable, base_url_variable=base_url_variable, **options
        )

    def body(self, request: Request) -> bytes:
        config = request.config
        if config.effort == NO_THINKING:
            quiet = evolve(config, effort=None).with_options(thinking={"type": "disabled"})
            request = evolve(request, config=quiet)
        return super().body(request)


if TYPE_CHECKING:
    _: Adapter = DeepSeek(api_key=None)
