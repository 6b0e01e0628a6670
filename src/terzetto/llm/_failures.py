"""What went wrong, in one vocabulary: provider errors become `Failure` values.

Owns the codes below, the reading of error bodies and of ``Retry-After``, and the
blanking of secrets. Pure. Whether to retry belongs to the retry policy.

=================== =======================================================
``AUTH``            the credential was refused (401)
``PERMISSION``      the credential may not do this (403)
``NOT_FOUND``       no such model or endpoint (404)
``INVALID_REQUEST`` the request itself is wrong (other 4xx, redirects)
``CONTEXT_OVERFLOW`` the request is larger than the model's window
``RATE_LIMIT``      too many requests or tokens for now (429)
``QUOTA``           nothing left to spend; waiting does not help
``SERVER``          the provider's own trouble (5xx, 409, 425)
``TIMEOUT``         it took too long, here or there (408, 504, 524)
``TRANSPORT``       the connection or the stream was damaged
``EMPTY_RESPONSE``  a well-formed answer with nothing in it
``CONTENT_FILTER``  the provider withheld the answer
=================== =======================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from attrs import frozen

from ..vocabulary import Failure

AUTH = "AUTH"
PERMISSION = "PERMISSION"
NOT_FOUND = "NOT_FOUND"
INVALID_REQUEST = "INVALID_REQUEST"
CONTEXT_OVERFLOW = "CONTEXT_OVERFLOW"
RATE_LIMIT = "RATE_LIMIT"
QUOTA = "QUOTA"
SERVER = "SERVER"
TIMEOUT = "TIMEOUT"
TRANSPORT = "TRANSPORT"
EMPTY_RESPONSE = "EMPTY_RESPONSE"
CONTENT_FILTER = "CONTENT_FILTER"

MAX_MESSAGE_CHARS = 1000
_MAX_READ_CHARS = 8192
_MAX_MS = 2**53 - 1
_BLANK = "[redacted]"

_BY_STATUS = {
    401: AUTH,
    402: QUOTA,
    403: PERMISSION,
    404: NOT_FOUND,
    408: TIMEOUT,
    409: SERVER,
    413: CONTEXT_OVERFLOW,
    425: SERVER,
    429: RATE_LIMIT,
    504: TIMEOUT,
    524: TIMEOUT,
}
# Names that decide whatever the status is: providers put them on several.
_DECISIVE = {
    "insufficient_quota": QUOTA,
    "insufficient_balance": QUOTA,
    "insufficient_user_quota": QUOTA,
    "billing_not_active": QUOTA,
    "billing_hard_limit_reached": QUOTA,
    "billing_error": QUOTA,
    "context_length_exceeded": CONTEXT_OVERFLOW,
    "context_window_exceeded": CONTEXT_OVERFLOW,
    "exceed_context_size_error": CONTEXT_OVERFLOW,
    "model_context_window_exceeded": CONTEXT_OVERFLOW,
    "request_too_large": CONTEXT_OVERFLOW,
    "content_filter": CONTENT_FILTER,
    "content_policy_violation": CONTENT_FILTER,
}
# Names that decide only where there is no status: inside a stream.
_BY_NAME = {
    "authentication_error": AUTH,
    "invalid_api_key": AUTH,
    "unauthenticated": AUTH,
    "permission_error": PERMISSION,
    "permission_denied": PERMISSION,
    "model_not_found": NOT_FOUND,
    "not_found": NOT_FOUND,
    "not_found_error": NOT_FOUND,
    "invalid_request_error": INVALID_REQUEST,
    "invalid_argument": INVALID_REQUEST,
    "badrequesterror": INVALID_REQUEST,
    "rate_limit_error": RATE_LIMIT,
    "rate_limit_exceeded": RATE_LIMIT,
    "rate_limit_reached_error": RATE_LIMIT,
    "too_many_requests": RATE_LIMIT,
    "resource_exhausted": RATE_LIMIT,
    "timeout": TIMEOUT,
    "timeout_error": TIMEOUT,
    "deadline_exceeded": TIMEOUT,
}
_OVERFLOW = re.compile(
    r"maximum (context|prompt|model) length"
    r"|context[ _-]length[ _-]exceeded|context (window|size|length) (is |has been )?(full|exceeded)"
    r"|context window exceeds|context overflow|exceed_context_size"
    r"|exceeds? (the )?(available context size|(model |model's )?(max |maximum )?context)"
    r"|exceed(ed|s)? context limit|exceeded (max context|model token limit)"
    r"|greater than the context length|too large for model with"
    r"|prompt (is )?too long|too long to fit into the model|input is too long"
    r"|(input|prompt) (token count|tokens|length)\b.{0,80}\bexceeds?\b"
    r"|reduce (the length of )?(the|your) (messages|prompt|input)"
    r"|too many (input )?tokens|tokens in request more than max",
    re.IGNORECASE,
)
# How DeepSeek says it, under the name of an invalid request.
_WITHHELD = re.compile(r"content exists risk", re.IGNORECASE)
_NO_FUNDS = re.compile(r"insufficient balance|credit balance is too low", re.IGNORECASE)
_NEVER_OVERFLOW = frozenset({AUTH, PERMISSION, NOT_FOUND, RATE_LIMIT, QUOTA})
_CONTROL = re.compile(r"[\x00-\x20\x7f-\x9f]+")
_TAG = re.compile(r"<[^<>]*>")
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
_KEY_LIKE = re.compile(r"\bsk-[\w*.-]{6,}|\bbearer\s+[\w*.~+/=-]{8,}", re.IGNORECASE)


@frozen(kw_only=True)
class _Facts:
    """What an error body says. *names* are its codes and types, as written."""

    message: str = ""
    names: tuple[str, ...] = ()
    status: int | None = None


def classify(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    secrets: Sequence[str] = (),
) -> Failure:
    """The failure that an HTTP answer other than 200 means.

    Args:
        headers: Names in any case.
        body: As much of it as was read; JSON of any known form, text or HTML.
        now: Seconds since the epoch, for a ``Retry-After`` that is a date.
        secrets: Texts that must not appear in the failure.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    facts = _read_body(body)
    request_id = lower.get("x-request-id") or lower.get("request-id")
    return Failure(
        message=_sentence(f"HTTP {status}", facts, secrets),
        code=_decide(status, facts),
        status=status,
        provider_retry_after_ms=retry_after_ms(lower, now),
        request_id=_plain(redact(request_id, secrets))[:200] or None if request_id else None,
    )


def classify_event(error: object, *, secrets: Sequence[str] = ()) -> Failure:
    """The failure that an error inside a 200 stream means, as the same HTTP error would.

    *error* is the event's payload: its decoded JSON, or its text. An error that
    says nothing of its kind is ``SERVER``: the provider had taken the request.
    """
    try:
        facts = _read(error)
    except RecursionError:
        facts = _Facts(message="an error nested too deeply to read")
    return Failure(
        message=_sentence("stream error", facts, secrets),
        code=_decide(facts.status, facts),
        status=facts.status,
    )


def redact(text: str, secrets: Iterable[str]) -> str:
    """*text* without *secrets* and without what looks like a key or a bearer token.

    Secrets of fewer than four characters are not looked for: they are placeholders,
    and blanking them would blank ordinary words.
    """
    forms: set[str] = set()
    for secret in secrets:
        if len(secret) >= 4:
            forms |= {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, _BLANK)
    return _KEY_LIKE.sub(_BLANK, text)


def retry_after_ms(headers: Mapping[str, str], now: float) -> int | None:
    """The delay that the provider asks for, or None.

    ``retry-after-ms`` wins over ``retry-after`` (seconds, or an HTTP date; a past
    date is 0). Negative, empty and unreadable values are as good as absent.
    Header names are lower case.
    """
    exact = _number(headers.get("retry-after-ms", ""))
    if exact is not None:
        return min(round(exact), _MAX_MS)
    value = headers.get("retry-after", "").strip()
    seconds = _number(value)
    if seconds is None:
        seconds = _seconds_until(value, now)
    return None if seconds is None else round(min(seconds * 1000, _MAX_MS))


def _number(text: str) -> float | None:
    text = text.strip()
    if len(text) > 30 or not _SECONDS.fullmatch(text):
        return None
    return float(text)


def _seconds_until(text: str, now: float) -> float | None:
    if len(text) < 16 or len(text) > 64:  # no HTTP date is shorter or longer
        return None
    try:
        when = parsedate_to_datetime(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return max(0.0, when.timestamp() - now)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _decide(status: int | None, facts: _Facts) -> str:
    names = [name.lower() for name in facts.names]
    for name in names:
        if name in _DECISIVE:
            return _DECISIVE[name]
    if _NO_FUNDS.search(facts.message[:_MAX_READ_CHARS]):
        return QUOTA
    if _WITHHELD.search(facts.message[:_MAX_READ_CHARS]):
        return CONTENT_FILTER
    code = _by_status(status) if status is not None else _by_names(names)
    if code not in _NEVER_OVERFLOW and _OVERFLOW.search(facts.message[:_MAX_READ_CHARS]):
        return CONTEXT_OVERFLOW
    return code


def _by_status(status: int) -> str:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return INVALID_REQUEST if 300 <= status < 500 else SERVER


def _by_names(names: list[str]) -> str:
    return next((_BY_NAME[name] for name in names if name in _BY_NAME), SERVER)


def _read_body(body: bytes) -> _Facts:
    text = body.decode("utf-8", "replace")
    try:
        return _read(json.loads(text))
    except (ValueError, RecursionError):
        text = text.strip()
        return _read(_TAG.sub(" ", text) if text.startswith("<") else text)


def _read(payload: object) -> _Facts:
    """Facts of any known form: ``{"error": {...} | "text"}``, ``{"message": ...}``,
    ``{"detail": ...}``, ``{"errors": [...]}``, a list of such, or a text."""
    match payload:
        case str():
            return _Facts(message=payload)
        case [first, *_]:
            return _read(first)
        case {"error": dict() | list() | str() as inner, **outer} if inner:
            return _with_outer(_read(inner), outer)
        case {"errors": [first, *_]}:
            return _read(first)
        case dict():
            return _read_object(payload)
        case _:
            return _Facts()


def _with_outer(facts: _Facts, fields: Mapping[object, object]) -> _Facts:
    outer = _read_object(fields)
    return _Facts(
        message=facts.message or outer.message,
        names=facts.names + tuple(name for name in outer.names if name != "error"),
        status=facts.status or outer.status,
    )


def _read_object(error: Mapping[object, object]) -> _Facts:
    message = next(
        (text for key in ("message", "msg", "detail") if (text := _text(error.get(key)))), ""
    )
    metadata = error.get("metadata")  # a router's note of what its upstream said
    if isinstance(metadata, dict) and isinstance(raw := metadata.get("raw"), str):
        message = f"{message}: {raw}" if message else raw
    names: list[str] = []
    status: int | None = None
    for key in ("code", "type", "status", "status_code", "error_code"):
        value = error.get(key)
        if status is None:
            status = _status(value)
        if isinstance(value, str) and value and not value.isdigit():
            names.append(value)
    return _Facts(message=message, names=tuple(names), status=status)


def _text(value: object) -> str:
    match value:
        case str():
            return value
        case [{"msg": str() as first}, *_]:  # a validation error of FastAPI
            return first
        case {"message": str() as inner}:
            return inner
        case _:
            return ""


def _status(value: object) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600:
        return value
    return None


def _sentence(where: str, facts: _Facts, secrets: Sequence[str]) -> str:
    # Blank secrets before cutting: a cut could leave half a key that matches nothing.
    message = _plain(redact(facts.message, secrets)[:_MAX_READ_CHARS])
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[: MAX_MESSAGE_CHARS - 1] + "…"
    name = _plain(redact(facts.names[0], secrets))[:100] if facts.names else ""
    note = f" ({name})" if name and name not in message else ""
    return f"{where}: {message}{note}" if message else f"{where}{note}"


def _plain(text: str) -> str:
    return _CONTROL.sub(" ", text).strip()
