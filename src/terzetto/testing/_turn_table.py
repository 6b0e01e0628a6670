"""The table of the turn machine: in which state which event may come, and where it leads.

States are what a reader of the log can know of where an agent stands. The rows are the
contract (C47-C72, C76-C81, C90, C100, C105-C110, C122-C137, C142, C145, C165); guards are in
`_turn_rules`, effects on facts in `_turn_facts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

from attrs import frozen

from . import _turn_rules as r, _turn_step_rules as s
from ._turn_kinds import Kind

State: TypeAlias = Literal[
    "idle",
    "repaired",
    "opened",
    "claimed",
    "between",
    "ending",
    "failing",
    "patched",
    "started",
    "prompt",
    "input",
    "header",
    "tools",
    "context",
    "streaming",
    "finished",
    "failed",
    "waiting",
    "retrying",
    "calling",
    "recovering",
    "answered",
    "cut",
]

STATES: Final[dict[State, str]] = {
    "idle": "no turn is open",
    "repaired": "recovery closed a turn; its history is not marked as ended yet",
    "opened": "a turn is open, nothing is claimed",
    "claimed": "input is claimed for the next step",
    "between": "a step has ended",
    "ending": "a step was cut before its request was whole: the turn has to end",
    "failing": "a step was closed without what it had delivered: the turn has failed",
    "patched": "a step was closed by recovery, which answered calls: the turn has to end",
    "started": "a step is open, nothing of its request is in the log",
    "prompt": "admission: the prompt is in the log",
    "input": "admission: input is in the log",
    "header": "admission: a header is in the log",
    "tools": "admission: and which tools came and went",
    "context": "admission: and what the adapter says of the model",
    "streaming": "an attempt streams",
    "finished": "the answer is complete, and not committed yet",
    "failed": "an attempt has failed",
    "waiting": "a retry is decided and waited for",
    "retrying": "a retry has begun",
    "calling": "the answer is committed, calls are unanswered",
    "recovering": "calls are being answered by recovery",
    "answered": "nothing of the step is owed",
    "cut": "the delivered prefix of a cut attempt is committed",
}


@frozen
class Row:
    """One move: in *states*, an event of *kind* for which all *guards* hold leads to *next*."""

    states: tuple[State, ...]
    kind: Kind
    next: State | None
    """None: the state stays."""
    guards: tuple[r.Guard, ...] = ()


def _row(states: Iterable[State], kind: Kind, next: State | None, *guards: r.Guard) -> Row:
    return Row(tuple(states), kind, next, guards)


# An admission is one breath, its parts in one order; an attempt may leave any of them out.
_BREATH: tuple[State, ...] = ("started", "failed", "retrying", "prompt", "input", "header")
_BREATH += ("tools", "context")
_REQUEST: tuple[State, ...] = (*_BREATH, "streaming")
_BOUNDARY: tuple[State, ...] = ("opened", "claimed", "between")
_IN_A_STEP: tuple[State, ...] = (*_REQUEST, "finished", "waiting", "calling", "recovering")
_IN_A_STEP += ("answered", "cut")
_LIVE: tuple[State, ...] = ("idle", *_BOUNDARY, "ending", "failing", "patched", *_IN_A_STEP)
_NATURAL = (r.this_turn, r.not_closing)

ROWS: Final[tuple[Row, ...]] = (
    # turns
    _row(["idle"], "turn/start", "opened", r.next_turn),
    _row(["idle", "repaired"], "session/end-seed", "idle", r.marks_once),
    _row(["opened"], "turn/end completed", "idle", *_NATURAL, r.all_claimed),
    _row(["opened"], "turn/end blocked", "idle", *_NATURAL, r.all_claimed),
    _row(["claimed"], "turn/end completed", "idle", *_NATURAL, r.below_the_limit, r.owes_nothing),
    _row(["claimed"], "turn/end max-tokens", "idle", *_NATURAL, r.at_the_limit, r.owes_nothing),
    _row(["claimed"], "turn/end blocked", "idle", *_NATURAL),
    _row(
        ["between"],
        "turn/end completed",
        "idle",
        *_NATURAL,
        r.below_the_limit,
        r.owes_nothing,
        r.nothing_pending,
        r.had_an_answer,
    ),
    _row(
        ["between"],
        "turn/end max-tokens",
        "idle",
        *_NATURAL,
        r.at_the_limit,
        r.owes_nothing,
        r.nothing_pending,
        r.had_an_answer,
    ),
    _row(["between"], "turn/end blocked", "idle", *_NATURAL, r.owes_a_request, r.all_claimed),
    _row(
        [*_BOUNDARY, "ending", "patched"], "turn/end aborted", "idle", r.this_turn, r.all_put_back
    ),
    _row(
        ["opened", "claimed"],
        "turn/end error",
        "idle",
        r.this_turn,
        r.or_a_defect,
        r.claimed_or_defect,
    ),
    _row(
        ["between", "ending", "failing", "patched"],
        "turn/end error",
        "idle",
        r.this_turn,
        r.or_a_defect,
    ),
    _row(
        [*_BOUNDARY, "ending", "failing", "patched"],
        "turn/end interrupted",
        "repaired",
        r.this_turn,
        r.all_put_back,
    ),
    # claims and steps
    _row(_BOUNDARY, "inbox/claim", "claimed", r.normal_splice, r.claims_all),
    _row(["opened"], "step/start", "started", r.next_step, r.not_closing, r.all_claimed),
    _row(["claimed"], "step/start", "started", r.next_step, r.not_closing, r.all_claimed),
    _row(
        ["between"],
        "step/start",
        "started",
        r.next_step,
        r.not_closing,
        r.owes_a_request,
        r.all_claimed,
    ),
    # admission
    _row(
        ["started", "failed", "retrying", "prompt"],
        "system/message",
        "prompt",
        r.this_step,
        r.not_closing,
        s.one_prompt,
    ),
    _row(
        ["started", "failed", "retrying", "prompt", "input"],
        "user/message",
        "input",
        s.enters_once,
        r.not_closing,
    ),
    _row(
        ["started", "failed", "retrying", "prompt", "input"],
        "request/header",
        "header",
        s.header_is_due,
        r.not_closing,
        s.has_input,
    ),
    _row(["header"], "developer/message", "tools", r.this_step, s.announces),
    _row(
        ["started", "failed", "retrying", "prompt", "input", "header", "tools"],
        "request/context",
        "context",
        s.context_is_news,
        r.not_closing,
        s.has_input,
    ),
    # attempts
    _row(_REQUEST, "assistant/chunk", "streaming", r.this_step, r.not_closing, s.request_is_whole),
    _row(["finished"], "assistant/chunk", "finished", r.this_step, r.not_closing),
    _row(_REQUEST, "finish", "finished", r.this_step, r.not_closing, s.request_is_whole),
    _row(["finished"], "finish", "finished", r.this_step, r.not_closing),
    _row(_REQUEST, "finish failed", "failed", r.this_step, r.not_closing, s.request_is_whole),
    _row(["finished"], "finish failed", "failed", r.this_step, r.not_closing),
    _row(["failed"], "llm/retry", "waiting", r.this_step, r.not_closing),
    _row(["waiting"], "llm/retry-started", "retrying", r.this_step, s.starts_its_retry),
    # answers
    _row(
        [*_REQUEST, "finished"],
        "assistant/message",
        "calling",
        r.this_step,
        s.request_is_whole,
        s.has_calls,
        s.is_what_was_streamed,
    ),
    _row(
        [*_REQUEST, "finished"],
        "assistant/message",
        "answered",
        r.this_step,
        s.request_is_whole,
        s.has_no_calls,
        s.is_what_was_streamed,
    ),
    _row(
        ["streaming"],
        "assistant/message interrupted",
        "cut",
        r.this_step,
        s.is_what_was_streamed,
    ),
    # tools
    _row(["calling"], "tool/call", "calling", r.this_step, s.next_call, s.is_no_barrier),
    _row(
        ["calling"],
        "tool/result",
        "calling",
        r.this_step,
        s.was_recorded,
        s.next_result,
        s.ran_alone,
        s.is_not_last,
    ),
    _row(
        ["calling"],
        "tool/result",
        "answered",
        r.this_step,
        s.was_recorded,
        s.next_result,
        s.ran_alone,
        s.is_last,
    ),
    _row(
        ["calling", "recovering"],
        "tool/result recovered",
        "recovering",
        r.this_step,
        s.next_result,
        s.says_what_is_known,
    ),
    # A store that failed, and a cancel at the same moment: the batch left calls unanswered.
    _row(["recovering"], "tool/call", "recovering", r.this_step, s.next_call),
    _row(["recovering"], "tool/result", "recovering", r.this_step, s.was_recorded, s.next_result),
    # ends of steps
    _row(["answered", "cut"], "step/end", "between", r.this_step),
    _row(["recovering"], "step/end", "patched", r.this_step, s.is_answered),
    _row(_REQUEST, "step/end", "between", r.this_step, s.request_is_whole, s.nothing_delivered),
    _row(_REQUEST, "step/end", "ending", r.this_step, s.request_is_not_whole),
    _row(["streaming"], "step/end", "failing", r.this_step, s.something_delivered),
    _row(["finished"], "step/end", "failing", r.this_step),
    _row(["waiting"], "step/end", "ending", r.this_step),
    # what may come anywhere
    _row(_LIVE, "inbox/insert", None, r.normal_splice, r.puts_back_all),
    _row([*_LIVE, "repaired"], "inbox/edit", None, r.normal_splice, r.puts_back_all),
    _row(_LIVE, "replacement", None),
    _row(_LIVE, "aside", None),
    _row(_LIVE, "compaction/start", None, s.none_is_open),
    _row(_LIVE, "compaction/summary", None, s.is_open),
    _row(_LIVE, "compaction/end", None, s.is_open),
)


def _index() -> dict[tuple[State, Kind], list[Row]]:
    found: dict[tuple[State, Kind], list[Row]] = {}
    for row in ROWS:
        for state in row.states:
            found.setdefault((state, row.kind), []).append(row)
    return found


MOVES: Final = _index()
"""The rows by state and kind; the first whose guards all hold is taken."""

KINDS: Final = tuple(dict.fromkeys(row.kind for row in ROWS))


def rendered() -> str:
    """Both tables, as the page "The turn machine" has them."""
    lines = ["| State | Means |", "|---|---|"]
    lines += [f"| {state} | {means} |" for state, means in STATES.items()]
    lines += ["", "| Event | In | Leads to | If |", "|---|---|---|---|"]
    for row in ROWS:
        where = ", ".join(row.states) if row.states != _LIVE else "any but repaired"
        guards = "; ".join((guard.__doc__ or "").strip() for guard in row.guards)
        lines.append(f"| `{row.kind}` | {where} | {row.next or 'itself'} | {guards} |")
    return "\n".join(lines)
