"""C162: what is dispatched is what was logged, checked at every request."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from tests.agent.kit import endings, play, played
from tests.agent.rig import Life, log, one

from terzetto import UserMessage
from terzetto.agent._dispatch import check_admitted
from terzetto.session import Messages
from terzetto.vocabulary import CodedError, Failed, Request, TurnEnd, texts


def ending(life: Life) -> Failed:
    found = endings(life.session)[-1]
    assert isinstance(found, Failed)
    return found


CHANGES: dict[str, dict[str, Any]] = {
    "session_id": {"session_id": "other"},
    "config": {"config": None},
    "messages": {"messages": (UserMessage("something else"),)},
    "tools": {"tools": (1,)},
    "tool_history": {"tool_history": None},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_stream_listener_may_not_change_what_the_model_sees(name: str) -> None:
    """C84: the turn fails before anything is sent, and the text says where else to do it."""

    async def main() -> None:
        async with one(["never"]) as life:

            async def listen(value: Any, proceed: Any) -> Any:
                return await proceed(evolve(value, request=evolve(value.request, **CHANGES[name])))

            life.hooks.stream.listen(listen)
            await life.say()
            assert ending(life).error.code == texts.REQUEST_CHANGED
            assert f"changed the {name} of a request" in ending(life).error.message
            assert life.model.requests == []

    play(main)


@played
async def test_a_stream_listener_may_pass_on_a_copy() -> None:
    async with one(["done"]) as life:

        async def listen(value: Any, proceed: Any) -> Any:
            return await proceed(evolve(value, request=evolve(value.request)))

        life.hooks.stream.listen(listen)
        await life.say()
        assert isinstance(life.session.events[-1].data, TurnEnd)
        assert log(life.session)[-1] == "turn/end Completed"


@played
async def test_a_request_that_is_not_the_fold_of_the_log_is_a_defect() -> None:
    """Each part is looked at, in constant time: no message is compared."""
    async with one(["done"]) as life:
        seen: list[str] = []

        async def listen(value: Any, proceed: Any) -> Any:
            request, session = value.request, life.session
            check_admitted(session, request)
            wrong: dict[str, Request] = {
                "the session's id": evolve(request, session_id="other"),
                "the header's config": evolve(request, config=evolve(request.config)),
                "the header's tools": evolve(request, tools=[]),
                "the derived messages": evolve(request, messages=list(request.messages)),
            }
            for what, other in wrong.items():
                with pytest.raises(CodedError, match=f"expected {what}; this is a defect") as info:
                    check_admitted(session, other)
                assert info.value.code == texts.INVARIANT
                seen.append(what)
            shorter = Messages(list(request.messages), len(request.messages) - 1)
            with pytest.raises(CodedError, match="the derived messages"):
                check_admitted(session, evolve(request, messages=shorter))
            return await proceed()

        life.hooks.stream.listen(listen)
        await life.say()
        assert len(seen) == 4
        with pytest.raises(CodedError, match="expected an open step"):
            check_admitted(life.session, life.model.requests[0])
