"""Which model ``terzetto chat`` talks to: from options, the environment, or a stored session.

In this order, for the provider:

1. ``--provider``, else the provider that a resumed session recorded;
2. with ``--base-url`` alone, ``openai``: the protocol that the server there speaks;
3. ``DEEPSEEK_API_KEY`` is set: ``deepseek``; ``OPENAI_API_KEY`` is set: ``openai``;
4. ``OPENAI_BASE_URL`` is set: ``openai``, without a key.

The address is ``--base-url``, else the provider's own variable, else its own address. A key
from a provider's variable goes to that provider's address or to the one in its variable;
a server that ``--base-url`` names gets the key that ``--api-key-env`` names, and no other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attrs import evolve, field, frozen

from ..llm.deepseek import DEEPSEEK_URL, DEFAULT_MODEL, DeepSeek
from ..llm.openai_chat import OPENAI_URL, OpenAIChat
from ..vocabulary import InvalidValue, ModelSelection
from ._terminal import CommandError

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")


@frozen
class Provider:
    """What is known of a provider: the variables of its users, its address, and a model
    that it has today."""

    adapter: type[OpenAIChat]
    key_variable: str
    url_variable: str
    url: str
    model: str


PROVIDERS: Final[Mapping[str, Provider]] = {
    "deepseek": Provider(
        DeepSeek, "DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL", DEEPSEEK_URL, DEFAULT_MODEL
    ),
    "openai": Provider(OpenAIChat, "OPENAI_API_KEY", "OPENAI_BASE_URL", OPENAI_URL, "gpt-6-luna"),
}


@frozen(kw_only=True)
class Asked:
    """What the command line says of the model."""

    provider: str | None = None
    model: str | None = None
    effort: str | None = None
    base_url: str | None = None
    key_variable: str | None = None


@frozen(kw_only=True)
class Stored:
    """What a session that is resumed recorded."""

    selection: ModelSelection
    base_url: str | None = None


@frozen(kw_only=True)
class Route:
    """The way to a model. *key_variable* names where *api_key* came from."""

    provider: str
    model: str
    base_url: str
    effort: str | None = None
    key_variable: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def adapter(self) -> OpenAIChat:
        """Raises `InvalidValue` for what cannot work; the key is never shown."""
        known = PROVIDERS.get(self.provider)
        make = known.adapter if known is not None else OpenAIChat
        return make(provider=self.provider, base_url=self.base_url, api_key=self.api_key)


def find_route(asked: Asked, environ: Mapping[str, str], stored: Stored | None = None) -> Route:
    """The route that *asked* means in *environ*.

    Raises:
        CommandError: There is none, or it cannot work; one line says what to do.
    """
    recorded = stored.selection if stored is not None else None
    provider = asked.provider or (recorded.provider if recorded else None)
    again = recorded is not None and provider == recorded.provider
    url = asked.base_url or (stored.base_url if stored is not None and again else None)
    if provider is None:
        provider = "openai" if url is not None else _provider_of(environ)
    address = url or _url_of(provider, environ)
    route = Route(
        provider=provider,
        model=asked.model or (recorded.model if recorded and again else _model_of(provider, asked)),
        effort=asked.effort or (recorded.effort if recorded and again else None),
        base_url=address,
        key_variable=asked.key_variable,
    )
    if asked.key_variable is not None:
        route = evolve(route, api_key=_key(asked.key_variable, environ))
    elif url is None:
        route = _with_own_key(route, environ)
    _check(route, asked)
    return route


def _provider_of(environ: Mapping[str, str]) -> str:
    for name, known in PROVIDERS.items():
        if environ.get(known.key_variable):
            return name
    if environ.get(PROVIDERS["openai"].url_variable):
        return "openai"
    empty = [k.key_variable for k in PROVIDERS.values() if k.key_variable in environ]
    are = "is" if len(empty) == 1 else "are"
    found = f"{' and '.join(empty)} {are} empty; " if empty else ""
    raise CommandError(
        f"no model to talk to: {found}put a key into DEEPSEEK_API_KEY or OPENAI_API_KEY, "
        "or name a server with --base-url and --model",
        2,
    )


def _url_of(provider: str, environ: Mapping[str, str]) -> str:
    known = PROVIDERS.get(provider)
    if known is None:
        names = " or ".join(PROVIDERS)
        raise CommandError(
            f"--provider: expected {names}, got {provider!r}; name its server with --base-url", 2
        )
    return environ.get(known.url_variable) or known.url


def _model_of(provider: str, asked: Asked) -> str:
    known = PROVIDERS.get(provider)
    if known is None or (asked.base_url is not None and provider != "deepseek"):
        raise CommandError("--model: expected the name of a model of that server, got none", 2)
    return known.model


def _with_own_key(route: Route, environ: Mapping[str, str]) -> Route:
    """*route* with the provider's own key. A server of the user's own may need none."""
    known = PROVIDERS[route.provider]
    if not environ.get(known.key_variable) and environ.get(known.url_variable):
        return route
    key = environ.get(known.key_variable)
    if not key:
        state = "empty" if known.key_variable in environ else "not set"
        raise CommandError(
            f"{known.key_variable} is {state}: expected a key for {route.provider}; "
            f"run 'export {known.key_variable}=...' first",
            2,
        )
    return evolve(route, key_variable=known.key_variable, api_key=key)


def _key(variable: str, environ: Mapping[str, str]) -> str:
    if not _VARIABLE.fullmatch(variable):
        # Not shown: it may be the key itself.
        raise CommandError(
            "--api-key-env: expected the name of a variable in capitals, such as OPENAI_API_KEY, "
            "got something else; put the key into a variable and give its name",
            2,
        )
    key = environ.get(variable)
    if not key:
        state = "empty" if variable in environ else "not set"
        raise CommandError(
            f"--api-key-env: expected a key in {variable}, which is {state}; "
            f"run 'export {variable}=...' first, or leave the option out if the server "
            "takes no key",
            2,
        )
    return key


def _check(route: Route, asked: Asked) -> None:
    """Say what is wrong with the address or the key before anything is opened."""
    known = PROVIDERS.get(route.provider)
    url_from = known.url_variable if known and asked.base_url is None else "--base-url"
    key_from = "--api-key-env" if asked.key_variable else str(route.key_variable)
    for place, tried in ((url_from, evolve(route, api_key=None)), (key_from, route)):
        try:
            tried.adapter()
        except InvalidValue as error:
            raise CommandError(f"{place}: {str(error).removeprefix('base_url: ')}", 2) from error
