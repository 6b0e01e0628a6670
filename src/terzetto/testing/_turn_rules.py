"""The guards of the turn machine: what must hold beside the state for an event to be allowed.

Each takes the facts and the event, and returns what is wanted instead, or None. Its first line
of documentation is how the table of the docs calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, cast

from ..vocabulary import (
    Aborted,
    EndSeed,
    Event,
    Failed,
    InboxSpliced,
    StepEnd,
    TurnEnd,
    TurnStart,
    texts,
)
from ._turn_facts import Facts

Guard: TypeAlias = Callable[[Facts, Event], str | None]


# --- numbers --------------------------------------------------------------------------------


def in_sequence(f: Facts, event: Event) -> str | None:
    """seqs have no gap, and time does not go back"""
    if event.seq != f.next_seq:
        return f"seq {f.next_seq}"
    return None if event.time_ms >= f.time_ms else f"a time of {f.time_ms} ms or later"


def next_turn(f: Facts, event: Event) -> str | None:
    """the next turn's number"""
    data = cast(TurnStart, event.data)
    return None if data.turn == f.turn + 1 else f"turn {f.turn + 1}"


def next_step(f: Facts, event: Event) -> str | None:
    """the next step's number"""
    data = cast(StepEnd, event.data)
    want = f.turn, f.step + 1
    return None if (data.turn, data.step) == want else f"turn {want[0]}, step {want[1]}"


def this_turn(f: Facts, event: Event) -> str | None:
    """of the open turn"""
    data = cast(TurnEnd, event.data)
    return None if data.turn == f.turn else f"the end of turn {f.turn}"


def this_step(f: Facts, event: Event) -> str | None:
    """of the open step"""
    data = cast(StepEnd, event.data)
    here = f.turn, f.step
    return None if (data.turn, data.step) == here else f"turn {here[0]}, step {here[1]}"


# --- the inbox ------------------------------------------------------------------------------


def normal_splice(f: Facts, event: Event) -> str | None:
    """within its list, changes something, ids not pending twice"""
    data = cast(InboxSpliced, event.data)
    pending = f.lists[data.target]
    end = data.start + data.removed_count
    if not 0 <= data.start <= end <= len(pending):
        return f"a splice within the {len(pending)} messages of {data.target}"
    arriving = [message.id for message in data.inserted]
    stay = {i for ids in f.lists.values() for i in ids} - set(pending[data.start : end])
    if len({*arriving}) < len(arriving) or not stay.isdisjoint(arriving):
        return "ids that are not pending"
    return None if arriving or data.removed_count else "a splice that changes something"


def claims_all(f: Facts, event: Event) -> str | None:
    """all of next-step, from its start; or, first thing in a turn and once, one prompt"""
    data = cast(InboxSpliced, event.data)
    pending = f.lists[data.target]
    if data.inserted or data.start:
        return "a claim from the start of its list, that inserts nothing"
    if f.closing:
        return "nothing claimed: the turn is being closed"
    if data.target == "next-step":
        everything = data.removed_count == len(pending)
        return None if everything else f"a claim of all {len(pending)} messages of next-step"
    if f.prompted or f.step or f.last not in ("turn/start", "inbox/claim"):
        return "no prompt: a turn claims one, at its start"
    if f.lists["next-step"]:
        return "a claim of next-step, which comes before the prompt"
    return None if data.removed_count == 1 else "a claim of one prompt"


def puts_back_all(f: Facts, event: Event) -> str | None:
    """claimed input comes back whole, in order, at the start of its list"""
    data = cast(InboxSpliced, event.data)
    back = [message.id for message in data.inserted]
    known = {i for ids in f.claimed.values() for i in ids}
    if known.isdisjoint(back):
        return None
    want = f.claimed[data.target]
    return None if back == want and not data.start else f"{want} put back at the start"


def all_claimed(f: Facts, event: Event) -> str | None:
    """no input that the boundary had to claim"""
    return f"a claim of {sorted(f.due)}" if f.due else None


def nothing_pending(f: Facts, event: Event) -> str | None:
    """no next-step input at all"""
    pending = f.lists["next-step"]
    return f"a further step: {pending} is pending in next-step" if pending else None


def all_put_back(f: Facts, event: Event) -> str | None:
    """claimed input that no admission has dealt with is back in the inbox"""
    left = [i for ids in f.claimed.values() for i in ids]
    silent = f.step and not f.answered and not f.signed and (f.admitted or f.owed_request)
    if isinstance(getattr(event.data, "ending", None), Aborted) and silent:
        return None  # a listener may have set it aside, which leaves no sign in the log
    return f"{left} put back first" if left else None


def not_closing(f: Facts, event: Event) -> str | None:
    """nothing was put back: that begins the end of a turn"""
    return "the end of the turn, whose claimed input was put back" if f.closing else None


def _is_defect(event: Event) -> bool:
    ending = cast(TurnEnd, event.data).ending
    return isinstance(ending, Failed) and ending.error.code == texts.DEFECT


def or_a_defect(f: Facts, event: Event) -> str | None:
    """nothing was put back, unless the driver broke"""
    return None if _is_defect(event) else not_closing(f, event)


def claimed_or_defect(f: Facts, event: Event) -> str | None:
    """its input is claimed, unless the driver broke"""
    return None if _is_defect(event) else all_claimed(f, event)


# --- steps and endings ----------------------------------------------------------------------


def owes_a_request(f: Facts, event: Event) -> str | None:
    """tools were called, whose results no request has carried"""
    return None if f.asked else "input or tool results for a further step"


def owes_nothing(f: Facts, event: Event) -> str | None:
    """no tools were called, or one of them may have ended the turn"""
    return None if not f.asked or f.concludes else "a step that carries the results"


def had_an_answer(f: Facts, event: Event) -> str | None:
    """the last step was answered, unless what interrupted it was removed"""
    return None if f.answered or f.edited else "the message that interrupted the step"


def below_the_limit(f: Facts, event: Event) -> str | None:
    """no answer of the turn was cut at the output limit"""
    return "turn/end max-tokens: the limit cut an answer of the turn" if f.hit_max else None


def at_the_limit(f: Facts, event: Event) -> str | None:
    """an answer of the turn was cut at the output limit"""
    return None if f.hit_max else "another ending: no answer reached the limit"


def before_any_step(f: Facts, event: Event) -> str | None:
    """before the first step"""
    return "tool results or input for it" if f.step else None


def marks_once(f: Facts, event: Event) -> str | None:
    """a resume marks the end of history once"""
    inherited = cast(EndSeed, event.data).inherited
    again = f.last == "session/end-seed" and not inherited
    return "something since the last one" if again else None
