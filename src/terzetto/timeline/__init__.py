"""Floor 5: what happened when, read from a log. Pure: nothing is opened, waited for or printed."""

from ._reader import read_timeline as read_timeline
from ._spans import (
    AttemptSpan as AttemptSpan,
    InputSpan as InputSpan,
    Mark as Mark,
    MarkKind as MarkKind,
    Outcome as Outcome,
    StepSpan as StepSpan,
    Timeline as Timeline,
    ToolSpan as ToolSpan,
    TurnSpan as TurnSpan,
    between as between,
    total_usage as total_usage,
)
