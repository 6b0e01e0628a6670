"""Typed answers: the turn of an ask with ``returns=``, from its claim to its value.

Owns the tools that the model answers with, which are shown for that turn alone; the one
repair round; and what a turn without a value becomes. What a type looks like to the model
is ``tools._answer``'s. Which call counts is read from the log: a body that ran is no
answer yet, its committed result is.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from attrs import define, evolve, field, fields, frozen

from ..hooks import Registration
from ..session import Inbox, Session, asks_again
from ..tools import AnswerForm, Tool, ToolLayer, ToolRun, answer_forms, type_name
from ..vocabulary import (
    AssistantMessageEvent,
    CallId,
    CodedError,
    MaxTokens,
    PluginSource,
    ToolCallEvent,
    ToolResultBlock,
    ToolResultEvent,
    UserMessage,
    texts,
)
from ._decisions import StepResult
from ._turn import Turn

T_co = TypeVar("T_co", covariant=True)

_LONGEST_TOLD = 300
_CUT_SHORT = (texts.ABORTED, texts.ABORTED_BEFORE_DISPATCH)


@frozen(kw_only=True)
class Answer(Turn, Generic[T_co]):
    """A turn that gave a typed answer: *value*, of the type that `Agent.ask` was given."""

    value: T_co


class NoAnswer(CodedError):
    """A turn ended without the typed answer that was asked for. Code ``NO_ANSWER``.

    `turn` is the whole turn, and its `reason` says why first of all: ``blocked``,
    ``aborted`` and ``max-tokens`` are reasons of their own; with ``completed`` the model
    did not give one, although it was asked twice. `expected` is the type, `came` what the
    model gave instead: its last text, or what was wrong with its arguments.
    """

    def __init__(self, turn: Turn, expected: object, came: str) -> None:
        told = came if len(came) <= _LONGEST_TOLD else f"{came[:_LONGEST_TOLD]}..."
        super().__init__(
            f"turn {turn.number} ended {turn.reason} without an answer: expected a value of "
            f"type {type_name(expected)}, got {told or 'nothing'}",
            texts.NO_ANSWER,
        )
        self.turn = turn
        self.expected = expected
        self.came = came


@define(eq=False)
class Expectation:
    """What one typed ask waits for. Made before anything is sent; one turn long.

    The driver calls `begin` at the claim, `judge` after each step, `ask_again` before a
    natural end and `end` when the turn is closed. A failure is a step whose calls of the
    answer tools all failed, or an end without an answer: the first is repaired, by the
    tool's own error result or by one message; the second ends the turn.
    """

    returns: object
    session: Session
    layer: ToolLayer
    _forms: tuple[AnswerForm, ...] = field(init=False)
    _shown: Registration | None = field(default=None, init=False)
    _names: tuple[str, ...] = field(default=(), init=False)
    _calls: set[CallId] = field(factory=set, init=False)
    _given: dict[CallId, object] = field(factory=dict, init=False)
    _value: list[object] = field(factory=list, init=False)
    _seen: int = field(default=0, init=False)
    _failures: int = field(default=0, init=False)
    _cut: bool = field(default=False, init=False)
    _came: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._forms = answer_forms(self.returns)

    def begin(self) -> None:
        """The turn has claimed its message: show the tools, under names that are free."""
        taken = set(self.layer.visible())
        tools = []
        for form in self._forms:
            name = _free_name(form.name, taken)
            taken.add(name)
            tools.append(self._tool(form, name))
        self._names = tuple(tool.name for tool in tools)
        self._seen = self.session.place.next_seq
        self._shown = self.layer.lay_over(tools)

    def _tool(self, form: AnswerForm, name: str) -> Tool:
        async def give(value: object, run: ToolRun) -> str:
            self._given[run.call_id] = value
            run.conclude_turn()
            return texts.ANSWER_TAKEN_TEXT

        return Tool(
            name=name,
            description=form.description,
            parameters=form.arguments.schema,
            body=give,
            read_only=True,  # it has no effect that a store should know of first
            injects="run",
            arguments=form.arguments if name == form.name else evolve(form.arguments, tool=name),
        )

    def judge(self, result: StepResult) -> StepResult:
        """The step is over. After a second failure its results owe no request any more."""
        if result.finish is not None:
            self._cut = isinstance(result.finish, MaxTokens)
        if self._look():
            self._failures += 1
            if self._failures > 1:
                return evolve(result, owes=False)
        return result

    def ask_again(self) -> UserMessage | None:
        """The turn is about to end by itself: the message that asks once more, or None."""
        if self._value or self._failures:
            return None
        self._failures = 1
        text = texts.answer_missing_text(self._names, cut=self._cut)
        return UserMessage(text, PluginSource(texts.ANSWER_PLUGIN), self.session.new_id())

    def end(self) -> None:
        """The turn is closed: hide the tools, and see what it came to."""
        self._look()
        if self._shown is not None:
            self._shown.remove()

    def answer(self, turn: Turn) -> Answer[object]:
        """The last answer that *turn* committed. Raises `NoAnswer` if there is none."""
        if not self._value:
            raise NoAnswer(turn, self.returns, self._came)
        facts = {name.name: getattr(turn, name.name) for name in fields(Turn)}
        return Answer(**facts, value=self._value[-1])

    def _look(self) -> bool:
        """Read what the log has of the turn since the last look. True for failed calls."""
        events = self.session.events[self._seen :]
        self._seen = self.session.place.next_seq
        failed = accepted = False
        for event in events:
            match event.data:
                case AssistantMessageEvent(message=message):
                    self._came = f"the text {message.text!r}" if message.text else "no text"
                case ToolCallEvent(call_id=call_id, name=name):
                    (self._calls.add if name in self._names else self._calls.discard)(call_id)
                case ToolResultEvent(message=message, error=error):
                    (block,) = message.content
                    assert isinstance(block, ToolResultBlock)
                    if block.tool_call_id not in self._calls:
                        continue
                    if not block.is_error:
                        if block.tool_call_id in self._given:
                            self._value = [self._given[block.tool_call_id]]
                            accepted = True
                    elif error is None or error.code not in _CUT_SHORT:
                        self._came = "".join(part.text for part in block.content)
                        failed = True
                case _:
                    pass
        return failed and not accepted


@define(eq=False)
class OwedAnswer:
    """What the open turn of one agent owes to a typed ask, if it does."""

    _by: Expectation | None = None

    def begin(self, expects: Expectation | None) -> None:
        """The open turn has claimed a message; *expects* is its asker's."""
        if expects is not None and self._by is None:
            self._by = expects
            expects.begin()

    def judge(self, result: StepResult) -> StepResult:
        """What a step came to, seen by who waits for an answer."""
        return result if self._by is None else self._by.judge(result)

    def ask_again(self, inbox: Inbox) -> bool:
        """Whether the answer is missing and the model has been asked for it once more."""
        message = None if self._by is None else self._by.ask_again()
        if message is not None:
            inbox.append("next-step", message)
        return message is not None

    def end(self, inbox: Inbox) -> None:
        """The turn is closed. What it asked once more and had to put back is withdrawn: in a
        later turn there is no such tool to call."""
        if self._by is not None:
            self._by.end()
        self._by = None
        for message_id in [m.id for m in inbox.next_step if asks_again(m)]:
            inbox.remove(message_id)


def _free_name(name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
