"""``terzetto export``: a whole session, for programs without loss, or for people to read.

The first is the log as Terzetto writes it, header and all, from whatever store it is in.
The second is Markdown: what others wrote stands in quotes and fences that it cannot leave.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from attrs import frozen

from ..session._codec import dumps_json, encode_event, encode_header
from ..timeline import InputSpan, StepSpan, Timeline, ToolSpan, TurnSpan, read_timeline
from ..vocabulary import PlainJson, SessionHeader
from ._shelf import decoded, find
from ._terminal import Terminal, clean, one_line


@frozen(kw_only=True)
class ExportOptions:
    session: str
    folder: Path
    format: Literal["jsonl", "markdown"] = "jsonl"


def run_export(options: ExportOptions, terminal: Terminal) -> int:
    """Write the session to *terminal*; the exit code, 0.

    Raises `CommandError` if there is none, or if it is damaged.
    """
    stored, _ = find(options.session, options.folder)
    header, events = decoded(stored)
    if options.format == "markdown":
        terminal.write("\n".join(transcript(header, read_timeline(events))) + "\n")
        return 0
    for obj in (encode_header(header), *map(encode_event, events)):
        _write_json(obj, terminal)
    terminal.stream.flush()
    return 0


def _write_json(obj: dict[str, PlainJson], terminal: Terminal) -> None:
    """The very bytes of a log; on a terminal, which would obey some of them, ASCII."""
    buffer = getattr(terminal.stream, "buffer", None)
    if buffer is not None and not terminal.stream.isatty():
        buffer.write(dumps_json(obj) + b"\n")
    else:
        terminal.stream.write(json.dumps(obj, separators=(",", ":")) + "\n")


# --- for people ---------------------------------------------------------------------------


def transcript(header: SessionHeader, timeline: Timeline) -> Iterator[str]:
    """The lines of a Markdown document, without anything that a terminal would obey."""
    yield f"# Session {_code(header.id)}"
    yield ""
    yield f"Created {_when(header.created_ms)}."
    if header.parent_id is not None:
        yield f"A fork of {_code(header.parent_id)}: {header.seed_length} events are inherited."
    marks = list(timeline.marks)
    for turn in timeline.turns:
        while marks and marks[0].seq < turn.seq:
            yield from _mark(marks.pop(0).kind)
        yield from _turn(turn)
    for mark in marks:
        yield from _mark(mark.kind)
    for message in timeline.pending:
        yield from _input(message, "waits")


def _mark(kind: str) -> Iterator[str]:
    said = {
        "forked": "Forked: what is above is inherited.",
        "resumed": "Resumed.",
        "model": "Another model was chosen.",
    }.get(kind)
    if said is not None:
        yield from ("", f"*{said}*")


def _turn(turn: TurnSpan) -> Iterator[str]:
    yield from ("", f"## Turn {turn.number}")
    for step in turn.steps:
        yield from _step(step)
    for message in turn.unentered:
        yield from _input(message, "never entered")
    if turn.reason != "completed":
        yield from ("", f"*{one_line(turn.reason)}*")


def _step(step: StepSpan) -> Iterator[str]:
    for message in step.inputs:
        yield from _input(message)
    model = f" ({_code(step.route.model)})" if step.route is not None else ""
    if step.reasoning.strip():
        yield from ("", f"**Model{model}, thinking:**", "")
        yield from _quoted(step.reasoning)
    if step.text.strip() or step.interrupted:
        cut = ", cut" if step.interrupted else ""
        yield from ("", f"**Model{model}{cut}:**", "")
        yield from _quoted(step.text)
    for code in step.failures:
        yield from ("", f"*The request failed: {_code(code)}*")
    for call in step.calls:
        yield from _call(call)


def _input(message: InputSpan, how: str = "") -> Iterator[str]:
    who = "User" if message.plugin is None else f"Plugin {_code(message.plugin)}"
    yield from ("", f"**{who}{f', {how}' if how else ''}:**", "")
    yield from _quoted(message.text)


def _call(call: ToolSpan) -> Iterator[str]:
    outcome = call.outcome if call.code is None else f"{call.outcome}, {_code(call.code)}"
    yield from ("", f"**Tool {_code(call.name)}** ({outcome}):", "")
    yield from _fenced(call.arguments, "json")
    if call.result:
        yield ""
        yield from _fenced(call.result, "text")


def _quoted(text: str) -> Iterator[str]:
    """A block quote: whatever *text* opens ends with it."""
    for line in clean(text).split("\n"):
        yield f"> {line}".rstrip()


def _fenced(text: str, language: str) -> Iterator[str]:
    """A fence longer than any in *text*."""
    text = clean(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}{language}"
    yield from text.split("\n")
    yield fence


def _code(text: str) -> str:
    """*text* as code in a line."""
    text = one_line(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks} {text} {ticks}" if longest else f"{ticks}{text}{ticks}"


def _when(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a clock that is not a clock
        return f"{ms} ms after the epoch"
