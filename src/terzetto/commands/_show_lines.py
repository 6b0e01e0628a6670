"""A session as lines for people: what was said, asked, done, and how each turn ended. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from attrs import define, field, frozen

from ..timeline import (
    AttemptSpan,
    InputSpan,
    Mark,
    Outcome,
    StepSpan,
    Timeline,
    ToolSpan,
    TurnSpan,
    between,
)
from ..vocabulary import (
    Completed,
    Failed,
    Failure,
    ModelSelection,
    SessionHeader,
    Usage,
)
from ._bars import ASCII, UNICODE, Glyphs, brief, chart, errors
from ._lines import Line, Part, beginning, line, spread, wrapped
from ._table import count
from ._terminal import Look, Style, columns, head

INDENT = 10
"""Columns before what is said; the labels stand there."""
NARROW = 60
"""Columns below which bars begin further left, and little is said of what is left out."""
_LONGEST = {"input": 3, "answer": 4, "glance": 1, "note": 2, "ours": 9}
"""Lines that a text may take."""


@frozen(kw_only=True)
class Shown:
    """What is to be shown: a session, as far as it is known.

    *torn*: bytes of an unfinished record at the end of the log. *turns*: the numbers of the
    turns that are wanted; None: all of them.
    """

    header: SessionHeader
    timeline: Timeline
    torn: int = 0
    turns: range | None = None

    def wanted(self) -> list[TurnSpan]:
        """The turns to be shown."""
        return [
            turn for turn in self.timeline.turns if self.turns is None or turn.number in self.turns
        ]


def render(shown: Shown, look: Look) -> list[Line]:
    """*shown* as lines of at most ``look.width`` columns, without control characters."""
    page = _Page(shown, look, UNICODE if look.unicode else ASCII)
    page.write()
    return [one.within(look.width) for one in page.lines]


@define(eq=False)
class _Page:
    shown: Shown
    look: Look
    glyphs: Glyphs
    lines: list[Line] = field(factory=list)
    _route: ModelSelection | None = None
    _charted: bool = False

    @property
    def _room(self) -> int:
        return max(self.look.width - INDENT, 10)

    def write(self) -> None:
        timeline = self.shown.timeline
        self._header()
        marks = deque(timeline.marks)
        whole = self.shown.turns is None
        for turn in self.shown.wanted():
            before = _taken(marks, turn.seq)
            for mark in before if whole else ():
                self._mark(mark, outside=True)
            self._turn(turn, marks)
        if whole:
            for mark in marks:
                self._mark(mark, outside=True)
            self._pending(timeline.pending)
        if self._charted:
            self.lines.append(line())
            self._tell("", self.glyphs.legend(), "ours", ("dim",), ("dim",))
        if self.shown.torn:
            size = count(self.shown.torn, "byte")
            self.lines.append(line())
            self._tell(
                "torn",
                f"The log ends in {size} of an unfinished record, left as they are. "
                "They do not count: opening the session for writing cuts them off.",
                "ours",
                ("yellow",),
            )

    # --- parts --------------------------------------------------------------------------

    def _header(self) -> None:
        header, timeline = self.shown.header, self.shown.timeline
        title = beginning(header.id, self.look.width)
        self.lines.append(line(("Session ", ("bold",)), (title, ("bold",))))
        self._fact("created", _moment(header.created_ms))
        if header.cwd is not None:
            self._fact("folder", header.cwd)
        if header.parent_id is not None:
            self._fact("from", f"{header.parent_id}, {count(header.seed_length, 'event')} of it")
        if models := _models(timeline):
            self._fact("models", ", ".join(models))
        self._fact("turns", _counts(timeline))
        if (usage := timeline.usage) is not None:
            self._fact("tokens", _tokens(usage).removeprefix("tokens: "))
        self._fact("log", self._extent())
        if timeline.extensions:
            kinds = (f"{name} ({number:,})" for name, number in sorted(timeline.extensions.items()))
            self._fact("also", ", ".join(kinds))

    def _extent(self) -> str:
        timeline = self.shown.timeline
        text = count(timeline.events, "event")
        took = between(timeline.began_ms, timeline.ended_ms)
        over = "" if took is None else f" over {brief(took)}"
        return f"{text}{over}, durability {self.shown.header.durability}"

    def _turn(self, turn: TurnSpan, marks: deque[Mark]) -> None:
        self.lines.append(line())
        began = self.shown.timeline.began_ms or 0
        took = between(turn.started_ms, turn.ended_ms)
        times = [f"at {brief(turn.started_ms - began)}"]
        if took is not None:
            times = [f"{times[0]}, took {brief(took)}", f"took {brief(took)}"]
        style: Style = "green" if isinstance(turn.ending, Completed) else "yellow"
        style = "red" if isinstance(turn.ending, Failed) else style
        reason = beginning(turn.reason, self.look.width)
        left: list[Part] = [(f"Turn {turn.number}", ("bold",)), ("  ", ()), (reason, (style,))]
        self.lines.append(spread(left, times, self.look.width))
        for step in turn.steps:
            for mark in _taken(marks, step.seq):
                self._mark(mark)
            self._step(step)
        for mark in _taken(marks, turn.end_seq):
            self._mark(mark)
        for message in turn.unentered:
            open_turn = turn.ending is None
            self._input(message, "taken up" if open_turn else "set aside, never entered a step")
        match turn.ending:
            case Failed(error=failure) if failure != _last_failure(turn):
                self._tell("failed", failure.message or failure.code, "input", ("red",))
            case None:
                text = "The log ends here: it is still running, or its process died."
                self._tell("open", text, "ours", ("yellow",), ("yellow",))

    def _step(self, step: StepSpan) -> None:
        self._tell(f"step {step.step}", self._about(step), "ours", ("dim",), ("dim",))
        for message in step.inputs:
            self._input(message)
        for number, attempt in enumerate(step.attempts, 1):
            if attempt.failure is not None:
                self._tell("failed", _failure(number, attempt), "input", ("red",))
        if step.reasoning.strip():
            size = count(len(step.reasoning), "character")
            self._tell("thought", f"({size}) {step.reasoning}", "glance", ("dim",), ("dim",))
        if step.text.strip():
            self._tell("model", step.text, "answer", ("bold",))
        if step.interrupted:
            size = count(len(step.text) + len(step.reasoning), "character")
            text = f"Cut off here. {size} had come, and are kept."
            self._tell("", text, "ours", (), ("yellow",))
        if step.calls:
            self._calls(step.calls)

    def _about(self, step: StepSpan) -> str:
        took = between(step.started_ms, step.ended_ms)
        about = ["not ended" if took is None else brief(took)]
        if step.route is not None and step.route != self._route:
            self._route = step.route
            about.append(_route(step.route))
        counting = step.attempts[-1] if step.attempts else None
        if counting is not None and counting.failure is None:
            if (wait := between(counting.started_ms, counting.first_ms)) is not None:
                about.append(f"first after {brief(wait)}")
            if counting.pieces:
                about.append(count(counting.pieces, "piece"))
            if counting.usage is not None:
                about.append(_tokens(counting.usage))
        if step.answered_ms is None and step.ended_ms is not None:
            about.append("no answer")
        return "; ".join(about)

    def _calls(self, calls: Sequence[ToolSpan]) -> None:
        self._charted = True
        now = self.shown.timeline.ended_ms or 0
        label = f"  {'tools' if len(calls) > 1 else 'tool':<{INDENT - 2}}"
        label = "  " if self.look.width < NARROW else label
        for row in chart(calls, now, self.look.width - len(label), self.glyphs):
            self.lines.append(line((label, ("yellow",)), *row.parts))
            label = " " * len(label)
        if len(calls) == 1 and calls[0].outcome == "ok":
            self._tell("", f"-> {calls[0].result}", "glance", (), ("dim",))
        for number, text in errors(calls):
            said = f"{number}: {text}" if len(calls) > 1 else text
            self._tell("", said, "note", (), ("red",))

    def _input(self, message: InputSpan, remark: str = "") -> None:
        label = _who(message)
        text = message.text if message.plugin is None else f"({message.plugin}) {message.text}"
        if remark:
            text = f"({remark}) {text}"
        colour: tuple[Style, ...] = ("cyan",) if message.plugin is None else ()
        self._tell(label, text, "input", ("cyan", "bold"), colour)

    def _pending(self, messages: Sequence[InputSpan]) -> None:
        if messages:
            self.lines.append(line())
            self.lines.append(line(("Pending input", ("bold",)), "  has not entered a turn"))
        for message in messages:
            target = "for the next turn" if message.via == "next-turn" else "for the next step"
            self._input(message, target)

    def _mark(self, mark: Mark, *, outside: bool = False) -> None:
        """*outside* of turns there is a blank line before the first of several."""
        if outside and not self.lines[-1].text.startswith("- "):
            self.lines.append(line())
        began = self.shown.timeline.began_ms or 0
        text = beginning(mark.text, self.look.width)
        left: list[Part] = [
            ("- ", ("dim",)),
            (_MARKS[mark.kind], ("bold",)),
            (f"  {text}".rstrip(), ()),
        ]
        self.lines.append(spread(left, [f"at {brief(mark.at_ms - began)}"], self.look.width))

    # --- lines --------------------------------------------------------------------------

    def _fact(self, label: str, text: str) -> None:
        """A fact of the header."""
        for row in self._labelled(label, text, 3, ("dim",), ()):
            self.lines.append(row)

    def _tell(
        self,
        label: str,
        text: str,
        kind: str,
        label_styles: tuple[Style, ...] = (),
        styles: tuple[Style, ...] = (),
    ) -> None:
        self.lines.extend(self._labelled(label, text, _LONGEST[kind], label_styles, styles))

    def _labelled(
        self,
        label: str,
        text: str,
        limit: int,
        label_styles: tuple[Style, ...],
        styles: tuple[Style, ...],
    ) -> Iterator[Line]:
        """*text* under a hanging indent; what is left out is counted."""
        rows, cut = wrapped(text, self._room, limit)
        for n, row in enumerate(rows or [""]):
            first = f"  {label if n == 0 else '':<{INDENT - 2}}"
            if cut and n == len(rows) - 1:
                whole = f" ... {count(len(text), 'character')} in all"
                if self.look.width < NARROW or limit == 1:
                    whole = "..."
                if columns(row) > self._room - len(whole):
                    row = head(row, self._room - len(whole)).rstrip()
                yield line((first, label_styles), (row, styles), (whole, ("dim",)))
            else:
                yield line((first, label_styles), (row, styles))


_MARKS = {
    "resumed": "resumed",
    "forked": "forked: what is above is inherited",
    "model": "model selected",
    "compaction": "compaction",
    "discarded": "input discarded",
}


def _taken(marks: deque[Mark], before: int | None) -> list[Mark]:
    """The first of *marks*, up to event *before*; they are removed from it."""
    taken = []
    while marks and (before is None or marks[0].seq < before):
        taken.append(marks.popleft())
    return taken


def _who(message: InputSpan) -> str:
    if message.plugin is not None:
        return "plugin"
    return "steer" if message.via == "next-step" else "user"


def _failure(number: int, attempt: AttemptSpan) -> str:
    failure = attempt.failure
    assert failure is not None
    took = between(attempt.started_ms, attempt.ended_ms)
    after = "" if took is None else f" after {brief(took)}"
    delay = attempt.retry_delay_ms
    then = "" if delay is None else f" Tried again after {brief(delay)}."
    return f"Attempt {number}{after}: {failure.code}. {failure.message}{then}"


def _last_failure(turn: TurnSpan) -> Failure | None:
    """What the last attempt of *turn* failed with, which has been shown."""
    attempts = [attempt for step in turn.steps[-1:] for attempt in step.attempts]
    return attempts[-1].failure if attempts else None


def _route(route: ModelSelection) -> str:
    return " ".join(filter(None, (route.provider, route.model, route.effort)))


def _models(timeline: Timeline) -> list[str]:
    """The routes of all steps, each once, the first one first."""
    return list(dict.fromkeys(_route(s.route) for s in timeline.steps if s.route is not None))


def _counts(timeline: Timeline) -> str:
    steps = list(timeline.steps)
    calls = [call for step in steps for call in step.calls]
    text = ", ".join(
        (count(len(timeline.turns), "turn"), count(len(steps), "step"), count(len(calls), "call"))
    )
    bad: Counter[Outcome] = Counter(call.outcome for call in calls if call.outcome != "ok")
    if bad:
        words = (f"{number} {_BAD.get(outcome, outcome)}" for outcome, number in bad.items())
        text += f" ({', '.join(words)})"
    return text


_BAD: dict[Outcome, str] = {"error": "failed", "not-started": "not started"}


def _tokens(usage: Usage) -> str:
    read, written, thought = (
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
    )
    cache = []
    if read is not None:
        cache.append(f"{read:,} from the cache")
    if written is not None:
        cache.append(f"{written:,} into it" if cache else f"{written:,} into the cache")
    inside = f" ({', '.join(cache)})" if cache else ""
    reasoning = "" if thought is None else f" ({thought:,} of reasoning)"
    return f"tokens: {usage.input_tokens:,} in{inside}, {usage.output_tokens:,} out{reasoning}"


def _moment(ms: int) -> str:
    """A moment as people write it, in UTC."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms after the epoch"
