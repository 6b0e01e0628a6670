"""The eight invariants of a cancelled agent (docs/explanation/cancellation.md), checked on its log.

Each check takes values and returns what is wrong in words; an empty list is a pass.
Facts that the log cannot hold (which bodies ran, when) come in as `BodyRecord`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, frozen

from ..session import Place, Session, replay
from ..vocabulary import (
    Aborted,
    Append,
    AssistantChunk,
    AssistantMessage,
    AssistantMessageEvent,
    CallId,
    EndSeed,
    Event,
    Finish,
    IllegalEvent,
    Interrupted,
    Message,
    MessageId,
    ReasoningBlock,
    SessionHeader,
    SessionId,
    StepEnd,
    StepStart,
    StreamChunk,
    TextBlock,
    ToolResultBlock,
    ToolResultEvent,
    TurnEnd,
    TurnStart,
    UserMessage,
    assemble,
    is_complete,
    texts,
)
from ._input import InputFold


@define(eq=False)
class BodyRecord:
    """One tool body that ran. Positions are numbers of events in the log at that moment.

    *agent_id*: of the agent that ran it, None if nobody noted it. *read_only*: it has no
    effect, so it need not wait until its call is stored.
    """

    call_id: CallId
    entered_at: int
    cancelled_at_entry: bool
    left_at: int | None = None
    returned: bool = False
    agent_id: SessionId | None = None
    read_only: bool = False


@frozen
class Evidence:
    """What is known of one agent's life once it is over.

    *bodies* are None when nobody recorded them. *reviewed*: post-execute listeners may
    have withheld a result. *set_aside*: ``pre_step`` listeners may have set input aside.
    """

    events: Sequence[Event]
    bodies: Sequence[BodyRecord] | None = None
    sent: Sequence[MessageId] = ()
    reviewed: bool = False
    set_aside: bool = False


Check = Callable[[Evidence], list[str]]


def check_invariants(evidence: Evidence) -> list[str]:
    """Everything that is wrong with *evidence*, each line beginning with its number."""
    problems: list[str] = []
    for number, check in enumerate(CHECKS, start=1):
        problems += [f"{number}. {problem}" for problem in check(evidence)]
    return problems


# --- 1 and 2: balance -----------------------------------------------------------------


def turns_are_closed(evidence: Evidence) -> list[str]:
    """Every turn/start has one turn/end, every open step is closed first, nothing is open."""
    place = Place()
    for event in evidence.events:
        try:
            place.judge(event)
        except IllegalEvent as error:
            return [str(error)]
        place.move(event)
    if place.open_turn is not None:
        return [f"turn {place.open_turn} is open at the end of the log"]
    return []


def calls_are_answered(evidence: Evidence) -> list[str]:
    """Every assistant tool call has exactly one result, in model order, in its step."""
    problems: list[str] = []
    owed: list[CallId] = []
    for event in evidence.events:
        match event.data:
            case AssistantMessageEvent(message=message):
                owed = [call.id for call in message.tool_calls]
            case ToolResultEvent() if isinstance(event.surface_op, Append):
                answered = _answered(event.data)
                if not owed or owed.pop(0) != answered:
                    problems.append(f"event {event.seq} answers {answered!r} out of order")
            case StepEnd(turn=turn, step=step) if owed:
                problems.append(f"turn {turn}, step {step} ends with {owed} unanswered")
            case _:
                pass
    return problems


# --- 3: the delivered prefix ----------------------------------------------------------


def prefix_is_kept(evidence: Evidence) -> list[str]:
    """A cut turn or step keeps the non-blank text and reasoning that its attempt logged."""
    problems: list[str] = []
    attempt: list[StreamChunk] = []
    committed: AssistantMessageEvent | None = None
    unanchored: list[StreamChunk] = []
    for event in evidence.events:
        match event.data:
            case StepStart(turn=turn, step=step):
                if unanchored and assemble(unanchored).delivered_prefix() is not None:
                    problems.append(f"turn {turn} lost the text delivered before step {step}")
                attempt, committed, unanchored = [], None, []
            case AssistantChunk(chunk=chunk):
                failed = isinstance(chunk, Finish) and not is_complete(chunk.reason)
                attempt = [] if failed else [*attempt, chunk]
            case AssistantMessageEvent():
                committed = event.data
                problems += _anchor_problems(event.seq, committed, attempt)
            case StepEnd():
                unanchored = [] if committed is not None else attempt
            case TurnEnd(turn=turn, ending=Aborted() | Interrupted()):
                if unanchored and assemble(unanchored).delivered_prefix() is not None:
                    problems.append(f"turn {turn} lost the text that was delivered")
                unanchored = []
            case TurnEnd():
                unanchored = []
            case _:
                pass
    return problems


def _anchor_problems(
    seq: int, event: AssistantMessageEvent, attempt: Sequence[StreamChunk]
) -> list[str]:
    assembler = assemble(attempt)
    if not event.interrupted:
        same = event.message.content == assembler.assembled().content
        return [] if same else [f"message {seq} is not what was streamed"]
    problems = []
    prefix = assembler.delivered_prefix()
    if prefix is None or event.message.content != prefix.content:
        problems.append(f"interrupted message {seq} is not the delivered prefix")
    if any(not isinstance(b, (TextBlock, ReasoningBlock)) for b in event.message.content):
        problems.append(f"interrupted message {seq} holds a call")
    if assembler.finish is not None and is_complete(assembler.finish.reason):
        problems.append(f"message {seq} is marked interrupted although its answer was complete")
    return problems


# --- 4 and 5: tool bodies -------------------------------------------------------------


def bodies_keep_to_their_turn(evidence: Evidence) -> list[str]:
    """No body starts after the cancel was seen; every started body ends before its turn."""
    problems: list[str] = []
    ends = [e.seq for e in evidence.events if isinstance(e.data, TurnEnd)]
    for body in evidence.bodies or ():
        if body.cancelled_at_entry:
            problems.append(f"the body of {body.call_id!r} started inside a cancelled scope")
        end = next((seq for seq in ends if seq >= body.entered_at), None)
        if body.left_at is None:
            problems.append(f"the body of {body.call_id!r} never ended")
        elif end is not None and body.left_at > end:
            problems.append(f"the body of {body.call_id!r} outlived its turn, which ended at {end}")
    return problems


_UNSTARTED = {texts.ABORTED_BEFORE_DISPATCH, texts.TOOL_NOT_STARTED}
_REPAIRED = {texts.TOOL_NOT_STARTED, texts.TOOL_OUTCOME_UNKNOWN}


def outcomes_are_true(evidence: Evidence) -> list[str]:
    """Unstarted calls say so; a started one has its own outcome, a returned one its result."""
    if evidence.bodies is None:
        return []
    problems: list[str] = []
    repaired: list[CallId] = []
    ran = {body.call_id: body for body in evidence.bodies}
    for event in evidence.events:
        match event.data:
            case ToolResultEvent():
                call_id = _answered(event.data)
                code = event.data.error.code if event.data.error else None
                problems += _outcome_problems(event.data, ran.get(call_id), evidence.reviewed)
                if code in _REPAIRED:
                    repaired.append(call_id)
            case TurnEnd(ending=Aborted()):
                problems += [f"{c!r} was cancelled live, not repaired" for c in repaired]
                repaired = []
            case TurnEnd():
                repaired = []
            case _:
                pass
    return problems


def _outcome_problems(
    data: ToolResultEvent, body: BodyRecord | None, reviewed: bool
) -> Iterator[str]:
    call_id = _answered(data)
    code = data.error.code if data.error else None
    if body is None and code == texts.ABORTED:
        yield f"{call_id!r} never ran but its result says it was aborted"
    if body is None and not any(
        b.is_error for b in data.message.content if isinstance(b, ToolResultBlock)
    ):
        yield f"{call_id!r} never ran but its result is a success"
    if body is not None and code in _UNSTARTED:
        yield f"{call_id!r} ran but its result says {code}"
    if body is not None and body.returned and code == texts.ABORTED and not reviewed:
        yield f"{call_id!r} returned but its result was withheld"


# --- 6: input -------------------------------------------------------------------------


def input_is_accounted_for(evidence: Evidence) -> list[str]:
    """Every message is pending, entered, discarded or consumed, and entered at most once."""
    fold = InputFold(evidence.set_aside)
    for event in evidence.events:
        fold.move(event)
        if isinstance(event.data, EndSeed) and event.data.inherited:
            fold = InputFold(evidence.set_aside)  # pending input stays behind in a fork
    missing = [
        f"{i!r} was sent and is not on the record" for i in evidence.sent if i not in fold.state
    ]
    left = [f"{i!r} is claimed and in no turn" for i, at in fold.state.items() if at == "claimed"]
    return fold.problems + missing + left


# --- 8: the next request --------------------------------------------------------------


def history_is_valid(messages: Iterable[Message]) -> list[str]:
    """Calls and results paired, in order, with nothing between; no blank messages."""
    problems: list[str] = []
    owed: list[CallId] = []
    for index, message in enumerate(messages):
        results = _results(message)
        if not results and owed:
            problems.append(f"message {index} comes before the results of {owed}")
            owed = []
        strays = [result for result in results if not owed or owed.pop(0) != result]
        problems += [
            f"message {index} answers {call!r}, which is not asked next" for call in strays
        ]
        if isinstance(message, AssistantMessage):
            owed = [call.id for call in message.tool_calls]
            if not message.content:
                problems.append(f"message {index} is an empty assistant message")
    if owed:
        problems.append(f"the history ends before the results of {owed}")
    return problems


def next_request_is_valid(evidence: Evidence) -> list[str]:
    """The derived history is valid, and equal to what is derived from scratch."""
    session = Session(SessionHeader(id=SessionId("check"), created_ms=0), now_ms=lambda: 0)
    try:
        replay(session, evidence.events)
    except IllegalEvent as error:
        return [str(error)]
    return history_is_valid(session.history())


def _answered(data: ToolResultEvent) -> CallId:
    results = _results(data.message)
    return results[0] if results else CallId("")


def _results(message: Message) -> list[CallId]:
    if not isinstance(message, UserMessage):
        return []
    return [b.tool_call_id for b in message.content if isinstance(b, ToolResultBlock)]


def no_turn_without_start(evidence: Evidence) -> list[str]:
    """Turn numbers are contiguous over restarts."""
    numbers = [e.data.turn for e in evidence.events if isinstance(e.data, TurnStart)]
    wanted = list(range(1, len(numbers) + 1))
    return [] if numbers == wanted else [f"turn numbers {numbers}"]


CHECKS: tuple[Check, ...] = (
    turns_are_closed,
    calls_are_answered,
    prefix_is_kept,
    bodies_keep_to_their_turn,
    outcomes_are_true,
    input_is_accounted_for,
    no_turn_without_start,
    next_request_is_valid,
)
