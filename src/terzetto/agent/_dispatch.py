"""The request invariant, checked at every dispatch (C162): what is sent is what the log gives.

Both checks compare identities, so they cost nothing and are always on. The messages of a
request are an immutable view of the derived history; that the view holds what a fold from
scratch gives is for tests (`session.rebuild`).
"""

from __future__ import annotations

from ..session import Session
from ..vocabulary import CodedError, Request, texts


def check_admitted(session: Session, request: Request) -> None:
    """Raise `CodedError` ``INVARIANT`` unless *request* is the fold of the log as it stands."""
    header = session.folds.header
    if (
        header is not None
        and request.config is header.config
        and request.tools is header.tools
        and session.place.open_step is not None
        and request.session_id == session.id
        and session.surface.shows(request.messages)
    ):
        return
    wrong = [
        name
        for name, holds in (
            ("an open step", session.place.open_step is not None),
            ("the session's id", request.session_id == session.id),
            ("the header's config", header is not None and request.config is header.config),
            ("the header's tools", header is not None and request.tools is header.tools),
            ("the derived messages", session.surface.shows(request.messages)),
        )
        if not holds
    ]
    raise CodedError(
        f"the request is not what the log gives: expected {', '.join(wrong)}; this is a "
        "defect of terzetto, please report it",
        texts.INVARIANT,
    )


def check_dispatched(admitted: Request, asked: Request) -> None:
    """Raise `CodedError` ``REQUEST_CHANGED`` unless *asked* is what was *admitted*.

    A ``stream`` listener may answer in the model's place, wait, and watch; it may not change
    what the model sees, for the log would not know.
    """
    if asked is admitted:
        return
    for name in ("session_id", "config", "messages", "tools", "tool_history"):
        if getattr(asked, name) is not getattr(admitted, name):
            raise CodedError(
                f"a stream listener changed the {name} of a request after it was logged; change "
                "what the model sees where the log can tell: with pre_step, assemble, request, "
                "or session.replace",
                texts.REQUEST_CHANGED,
            )
