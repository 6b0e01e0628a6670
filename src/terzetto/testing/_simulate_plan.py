"""A simulation as a value: everything that chance decides about one run, written down.

Pure. A `Simulation` is drawn from a seed once (`_simulate_draw`) and played from there on, so
what is taken out of it changes nothing else: that is what shrinking lives on. As JSON it is
something that a person can read, edit and play again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs
from attrs import field, frozen
from attrs.validators import ge, in_, instance_of, le, optional

from ..vocabulary import Durability, InvalidValue

SYNC_ACTS = (
    "followup",
    "steer",
    "inject",
    "interrupt",
    "wake",
    "cancel",
    "cancel, keep",
    "cancel by parent",
    "cancel by hook",
    "append",
    "prepend",
    "replace",
    "remove",
    "clear",
    "select",
    "cap",
    "begin disposal",
)
"""What is done to an agent, or to the engine, in one breath."""
TASK_ACTS = (
    "open",
    "child",
    "fork",
    "dispose",
    "ask",
    "ask int",
    "maintain",
    "compact",
    "complete",
    "flush",
)
"""What takes a task of its own."""
END_ACTS = ("host cancel", "host deadline", "ctrl-c", "power cut")
"""What ends the life, whoever is at work."""
ACTS = (*SYNC_ACTS, *TASK_ACTS, *END_ACTS)

STREAMED = ("say", "think", "delay", "fail", "cut", "hang", "max-tokens", "garbage", "throw")
"""How a part of an answer begins that is no call."""
DOES = (
    "sleep",
    "hang",
    "raise",
    "exit",
    "ctrl-c",
    "power cut",
    "shield",
    "swallow",
    "replace",
    "group",
    "long",
    "steer",
    "followup",
    "inject",
    "interrupt",
    "cancel",
    "cancel by hook",
    "defer",
    "conclude",
    "complete",
    "ask",
    "child",
)
"""What a body does, one after the other."""
TOOLS = ("note", "alone", "look", "change", "brief", "thread")
WATERFALLS = (
    "pre_step",
    "assemble",
    "request",
    "request_error",
    "stream",
    "tool_pre_execute",
    "tool_execute",
    "tool_post_execute",
)
SERIALS = ("turn_stopping", "agent_created")
NOTICES = (
    "tool_result",
    "status",
    "agent_error",
    "agent_disposed",
    "session_created",
    "session_disposed",
    "session_started",
    "inbox_inserted",
    "inbox_claimed",
    "inbox_discarded",
)
LISTENS = (
    "look",
    "wait",
    "after",
    "shield",
    "swallow",
    "hang",
    "raise",
    "raise after",
    "cancel",
    "steer",
    "decide",
    "wrong",
    "ctrl-c",
)
"""What a listener does. ``decide``: what its point is for, such as rejecting a step."""
STORE = ("create", "open", "read", "flush", "close")
_LONGEST = 1_000
"""Virtual seconds after which nothing begins any more; and rounds of the scheduler."""
_SLOWEST = 10
"""Virtual seconds that one operation of a disk takes, at most."""
_Does: TypeAlias = tuple[str, ...]


def _text() -> Any:
    return instance_of(str)


def _one_of(*names: str) -> Any:
    return in_(names)


def seconds(text: str) -> float:
    """What stands behind a colon; 0.1 when nothing does."""
    try:
        found = float(text) if text else 0.1
    except ValueError:
        found = -1.0
    if not 0 <= found < 1_000:
        raise InvalidValue(f"a script: expected seconds, from 0 to 1,000, got {text!r}")
    return found


def _deeds(values: Iterable[str]) -> _Does:
    return tuple(values)


def _does(_: object, attribute: object, value: tuple[str, ...]) -> None:
    for each in value:
        if not isinstance(each, str) or each.partition(":")[0] not in DOES:
            raise ValueError(f"a body does one of {', '.join(DOES)}, got {each!r}")
        seconds(each.partition(":")[2])


@frozen(kw_only=True)
class Call:
    """A tool call of an answer. *does*: what the body does, such as ``sleep:0.1``.

    *given* numbers one of the calls that the caller of the simulation brought; then the
    other fields say nothing.
    """

    tool: str = field(default="note", validator=_text())
    does: _Does = field(default=(), converter=_deeds, validator=_does)
    given: int | None = field(default=None, validator=optional([instance_of(int), ge(0)]))


Part: TypeAlias = str | Call
"""A call, or a text such as ``say:Let me see.``, ``delay:0.1``, ``fail:SERVER``."""


def _part(value: object) -> Part:
    if isinstance(value, Call):
        return value
    if isinstance(value, str):
        kind, _, rest = value.partition(":")
        if kind not in STREAMED:
            raise ValueError(f"a part of an answer is one of {', '.join(STREAMED)}, got {value!r}")
        if kind == "delay":
            seconds(rest)
        return value
    found: Call = _made(Call, value, "a part of an answer")
    return found


def _parts(values: Sequence[object]) -> tuple[Part, ...]:
    return tuple(_part(value) for value in values)


@frozen(kw_only=True)
class Answer:
    """One answer of the model: its *parts*, in order."""

    parts: tuple[Part, ...] = field(default=(), converter=_parts)


@frozen(kw_only=True)
class Act:
    """What somebody does: at *at* virtual seconds of its life, once *steps* more rounds of the
    scheduler have passed; to the agent *who*. *value* is what more it takes."""

    at: float = field(default=0.0, converter=float, validator=[ge(0), le(_LONGEST)])
    steps: int = field(default=0, validator=[instance_of(int), ge(0), le(_LONGEST)])
    do: str = field(validator=_one_of(*ACTS))
    who: str = field(default="", validator=_text())
    value: float = field(default=0.0, converter=float)


@frozen(kw_only=True)
class Listener:
    """Somebody who listens on *point* of the engine, or of the agent *who*.

    He acts up at his *nth* call and at *times* in all, and else passes the value on.
    """

    point: str = field(validator=_one_of(*WATERFALLS, *SERIALS, *NOTICES))
    does: str = field(validator=_one_of(*LISTENS))
    who: str = field(default="", validator=_text())
    nth: int = field(default=1, validator=[instance_of(int), ge(1)])
    times: int = field(default=1, validator=[instance_of(int), ge(1)])


@frozen(kw_only=True)
class Trouble:
    """The store fails, hangs or is slow, as `FaultyStore` has it, until the acts are over."""

    operation: str = field(validator=_one_of(*STORE))
    does: str = field(validator=_one_of("fail", "hang", "slow"))
    nth: int = field(default=1, validator=[instance_of(int), ge(1)])
    times: int = field(default=1, validator=[instance_of(int), ge(1)])
    effect: str = field(default="none", validator=_one_of("none", "part", "all"))
    seconds: float = field(default=0.0, converter=float, validator=[ge(0), le(_SLOWEST)])


def _each(kind: type[Any], what: str, values: Sequence[object]) -> tuple[Any, ...]:
    return tuple(v if isinstance(v, kind) else _made(kind, v, what) for v in values)


def _acts(values: Sequence[object]) -> tuple[Act, ...]:
    return _each(Act, "an act", values)


def _listeners(values: Sequence[object]) -> tuple[Listener, ...]:
    return _each(Listener, "a listener", values)


def _troubles(values: Sequence[object]) -> tuple[Trouble, ...]:
    return _each(Trouble, "a trouble", values)


def _lives(values: Sequence[object]) -> tuple[Life, ...]:
    return _each(Life, "a life", values)


@frozen(kw_only=True)
class Life:
    """One process: from opening the engine to leaving it, or to its end by force.

    *patient*: whether the agents may finish what they have before the engine is left.
    """

    acts: tuple[Act, ...] = field(default=(), converter=_acts)
    listeners: tuple[Listener, ...] = field(default=(), converter=_listeners)
    troubles: tuple[Trouble, ...] = field(default=(), converter=_troubles)
    patient: bool = field(default=True, validator=instance_of(bool))


def _answers(given: Mapping[str, Sequence[object]]) -> dict[str, tuple[Answer, ...]]:
    if not isinstance(given, Mapping):
        raise ValueError(f"answers: expected the answers to each agent by its name, got {given!r}")
    return {who: _each(Answer, "an answer", answers) for who, answers in given.items()}


@frozen(kw_only=True)
class Simulation:
    """A whole run: lives, one after the other, on one simulated disk.

    *seed* is that of Trio's scheduler. *answers* are those of the model to each agent, in
    order; then it says ``Done.`` *repeats*: the model asks again for calls that its history
    says were not started, as a sensible one does. `of` draws one from a seed.
    """

    seed: int = field(default=0, validator=instance_of(int))
    durability: str = field(default="step", validator=_one_of(*get_args(Durability)))
    cap: int = field(default=10, validator=[instance_of(int), ge(1)])
    latency: float = field(default=0.0, converter=float, validator=[ge(0), le(_SLOWEST)])
    cache: int | None = field(default=None, validator=optional(instance_of(int)))
    window: float = field(default=0.25, converter=float, validator=[ge(0), le(_SLOWEST)])
    repeats: bool = field(default=True, validator=instance_of(bool))
    answers: Mapping[str, tuple[Answer, ...]] = field(factory=dict, converter=_answers)
    lives: tuple[Life, ...] = field(default=(), converter=_lives)

    @classmethod
    def from_json(cls, text: str) -> Simulation:
        """The simulation that `to_json` wrote, or that somebody wrote by hand.

        What is left out is as it is by default. Raises `InvalidValue`, saying what is wrong.
        """
        try:
            value = json.loads(text)
        except ValueError as error:
            raise InvalidValue(f"a script: expected JSON, got {error}") from None
        made: Simulation = _made(cls, value, "a script")
        return made

    def to_json(self) -> str:
        """As JSON, without what is as by default; an act or a part takes one line."""
        return _shown(_plain(self), "")

    @property
    def level(self) -> Durability:
        return cast(Literal["step", "lazy", "each"], self.durability)


def _made(kind: type[Any], value: object, what: str) -> Any:
    if not isinstance(value, dict):
        raise InvalidValue(f"{what}: expected a JSON object, got {value!r}")
    known = [each.name for each in attrs.fields(kind)]
    if strange := [name for name in value if name not in known]:
        raise InvalidValue(f"{what}: has no {strange[0]!r}; expected one of {', '.join(known)}")
    try:
        return kind(**value)
    except InvalidValue:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"{what}: {error.args[0] if error.args else error}") from None


def _plain(value: object) -> Any:
    """*value* as JSON has it, less the defaults."""
    kind: Any = type(value)
    if attrs.has(kind):
        shown = {}
        for each in attrs.fields(kind):
            found = getattr(value, each.name)
            default = each.default
            if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
                default = {}
            if found != default:
                shown[each.name] = _plain(found)
        return shown
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


def _shown(value: Any, indent: str) -> str:
    """JSON in which a line is short and a thing is on one line if it can be."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(flat) <= 100 or not isinstance(value, (dict, list)):
        return flat
    inner = indent + " "
    if isinstance(value, list):
        rows = [_shown(each, inner) for each in value]
        return "[\n" + ",\n".join(inner + row for row in rows) + f"\n{indent}]"
    rows = [f"{json.dumps(key)}: {_shown(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(inner + row for row in rows) + f"\n{indent}}}"
