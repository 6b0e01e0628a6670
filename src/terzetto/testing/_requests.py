"""Whether what a model was asked is what the log says it was asked (C84, C162, invariant 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..session import Messages, growths
from ..session._codec import dumps_json, encode_request
from ..vocabulary import Event, IllegalEvent, Request, SessionHeader


def check_requests(
    header: SessionHeader, events: Iterable[Event], requests: Sequence[Request]
) -> list[str]:
    """What is wrong with the requests of one session, in words; nothing, it should be.

    Every request that the log has an answer to is among *requests*, in the same order, and
    every one of *requests* is one that `session.rebuild` gives, to the byte. A prefix that
    breaks does so by an event.

    Args:
        header: The session's.
        events: All of its events from 0 on.
        requests: What an adapter was asked for this session, in order, such as
            `ScriptedModel.requests`. What `Agent.complete` asked is passed over: it is no view
            of a derived history, and not in the log.
    """
    try:
        measured = [growth for growth in growths(header, events) if not growth.sent.inherited]
    except IllegalEvent as error:
        return [f"the requests cannot be rebuilt: {error}"]
    problems = []
    waiting = [request for request in requests if isinstance(request.messages, Messages)]
    for growth in measured:
        sent = growth.sent
        name = f"request {sent.turn}.{sent.step}.{sent.attempt}"
        if growth.unexplained:
            problems.append(f"{name} breaks the prefix, and no event says why")
        if waiting and _bytes(waiting[0]) == _bytes(sent.request):
            waiting.pop(0)
        elif sent.answered:
            problems.append(f"{name} is not what was asked")
            waiting = waiting[1:]
    return problems + [
        f"a request of {len(r.messages)} messages is not in the log" for r in waiting
    ]


def _bytes(request: Request) -> bytes:
    """All of *request*, its tool history by name."""
    known = [tool.name for tool in request.tool_history.declared]
    return dumps_json({"request": encode_request(request), "known": list(known)})
