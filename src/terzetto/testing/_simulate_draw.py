"""From a seed to a `Simulation`: all that chance decides, decided before anything runs.

Times are multiples of a twentieth of a second, so that what happens at once really collides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from attrs import define, field

from ._simulate_plan import (
    NOTICES,
    SERIALS,
    WATERFALLS,
    Act,
    Answer,
    Call,
    Life,
    Listener,
    Part,
    Simulation,
    Trouble,
)

T = TypeVar("T")

TICK = 0.05
LONGEST = 3.0
"""Virtual seconds in which the acts of a life happen."""

_ACTS = {
    "followup": 30,
    "steer": 10,
    "inject": 6,
    "interrupt": 8,
    "ask": 10,
    "ask int": 2,
    "cancel": 8,
    "cancel, keep": 6,
    "cancel by parent": 3,
    "cancel by hook": 3,
    "append": 3,
    "prepend": 3,
    "replace": 4,
    "remove": 4,
    "clear": 2,
    "wake": 4,
    "select": 3,
    "cap": 3,
    "maintain": 5,
    "compact": 3,
    "complete": 3,
    "flush": 3,
    "child": 4,
    "fork": 4,
    "dispose": 3,
    "begin disposal": 3,
    "open": 4,
}
_DOES = {
    "sleep": 40,
    "shield": 6,
    "swallow": 6,
    "replace": 4,
    "raise": 5,
    "exit": 1,
    "group": 2,
    "hang": 3,
    "long": 2,
    "steer": 4,
    "followup": 3,
    "inject": 2,
    "interrupt": 3,
    "cancel": 3,
    "cancel by hook": 2,
    "defer": 4,
    "conclude": 3,
    "complete": 2,
    "ask": 2,
    "child": 3,
}
_TIMED = ("sleep", "shield", "swallow", "replace", "group")
_TOOLS = {"note": 10, "alone": 4, "look": 6, "change": 5, "brief": 3, "thread": 3}
_ENDINGS = {"": 70, "fail": 8, "cut": 4, "hang": 4, "max-tokens": 5, "throw": 3}
_LISTENS = {
    "look": 4,
    "wait": 5,
    "after": 3,
    "shield": 3,
    "swallow": 3,
    "hang": 1,
    "raise": 3,
    "raise after": 2,
    "cancel": 3,
    "steer": 3,
    "decide": 8,
    "wrong": 1,
}
_LISTENS_NOTICE = {"raise": 4, "cancel": 3, "steer": 3}
_ENDS = {"": 30, "power cut": 30, "host cancel": 10, "host deadline": 5, "ctrl-c": 8}
_WORDS = ["one", "word", "after", "another", "about", "what", "there", "is", "to", "do"]


def drawn(seed: int, *, own: int = 0) -> Simulation:
    """The simulation of *seed*; *own*: how many calls the caller brought."""
    return _Drawing(Random(seed), own).simulation(seed)


@define(eq=False)
class _Drawing:
    chance: Random
    own: int
    _roots: list[str] = field(factory=list)

    def simulation(self, seed: int) -> Simulation:
        chance = self.chance
        self._roots = ["ada", "bob", "cy"][: self.pick({1: 5, 2: 4, 3: 2})]
        lives = self.pick({1: 4, 2: 5, 3: 3})
        names = [*self._roots, *(f"{root}.{kind}1" for root in self._roots for kind in "fc")]
        return Simulation(
            seed=seed,
            durability=self.pick({"step": 6, "each": 2, "lazy": 2}),
            cap=self.pick({1: 1, 2: 3, 3: 3, 10: 4}),
            latency=self.pick({0.0: 3, 0.01: 3, 0.05: 3, 0.2: 1}),
            cache=self.pick({None: 8, 3: 2}),
            window=self.pick({0.25: 3, 0.0: 1, 0.05: 1}),
            repeats=chance.random() < 0.8,
            answers={name: self.many(1, 6, self.answer) for name in names},
            lives=[self.life(number, lives) for number in range(lives)],
        )

    # --- tools of chance ------------------------------------------------------------------

    def pick(self, weights: dict[T, int]) -> T:
        return self.chance.choices(list(weights), list(weights.values()))[0]

    def many(self, least: int, most: int, make: Callable[[], T]) -> list[T]:
        return [make() for _ in range(self.chance.randint(least, most))]

    def when(self, longest: float = LONGEST) -> float:
        """A moment on the grid; early ones are more likely."""
        ticks = int(longest / TICK)
        return round(min(self.chance.randint(0, ticks), self.chance.randint(0, ticks)) * TICK, 2)

    def steps(self) -> int:
        """Rounds of the scheduler after the moment: often none, seldom many."""
        return self.chance.choice((0, 0, 0, 1, 2, 3, 5, 8, 13))

    def while_(self) -> str:
        return f":{self.chance.choice((0, 0.05, 0.05, 0.1, 0.15, 0.2, 0.3))}"

    # --- the model ------------------------------------------------------------------------

    def answer(self) -> Answer:
        chance = self.chance
        parts: list[Part] = []
        if chance.random() < 0.3:
            parts.append(f"think:{self.words(1, 4)}")
        for _ in range(chance.randint(0, 2)):
            parts += [f"delay{self.while_()}", f"say:{self.words(1, 6)}"]
        if chance.random() < 0.6:
            if chance.random() < 0.3:
                parts.append(f"delay{self.while_()}")
            parts += self.many(1, 5, self.call)
        if chance.random() < 0.04:
            parts.append(self.pick({"garbage": 1, "garbage:absent": 1}))
        if ending := self.pick(_ENDINGS):
            parts.append(ending)
        return Answer(parts=parts or ["say:Yes."])

    def words(self, least: int, most: int) -> str:
        return " ".join(self.chance.choices(_WORDS, k=self.chance.randint(least, most)))

    def call(self) -> Call:
        if self.own and self.chance.random() < 0.5:
            return Call(given=self.chance.randrange(self.own))
        does = self.many(0, 3, self.deed)
        return Call(tool=self.pick(_TOOLS), does=does)

    def deed(self) -> str:
        rare = self.chance.random()
        if rare < 0.012:
            return "ctrl-c" if rare < 0.003 else "power cut"  # the life is over
        kind = self.pick(_DOES)
        return kind + self.while_() if kind in _TIMED else kind

    # --- lives ----------------------------------------------------------------------------

    def life(self, number: int, lives: int) -> Life:
        chance = self.chance
        opening = [Act(do="open", who=root) for root in self._roots]
        acts = [
            *opening,
            *(Act(at=self.when(0.5), do="followup", who=root) for root in self._roots),
            *self.many(4, 16, self.act),
        ]
        if chance.random() < 0.4:
            acts += self.pair()
        end = self.pick(_ENDS)
        if number + 1 < lives and not end and chance.random() < 0.6:
            end = "power cut"  # what else would the next life be for
        if end:
            kept = self.pick({0.0: 4, 0.5: 3, 1.0: 2, 0.25: 1})
            value = kept if end == "power cut" else 0.0
            acts.append(Act(at=self.when(), steps=self.steps() * 2, do=end, value=value))
            last = acts[-1]
            acts = [act for act in acts if act.at <= last.at]
        acts.sort(key=lambda act: act.at)
        return Life(
            acts=acts,
            listeners=self.many(1, 3, self.listener) if chance.random() < 0.4 else (),
            troubles=self.many(1, 2, self.trouble) if chance.random() < 0.2 else (),
            patient=chance.random() < 0.8,
        )

    def act(self) -> Act:
        do = self.pick(_ACTS)
        at, steps = self.when(), self.steps()
        return Act(at=at, steps=steps, do=do, who=self.who(do), value=self.value(do))

    def who(self, do: str) -> str:
        if do == "cap":
            return ""
        root = self.chance.choice(self._roots)
        if do in ("fork", "child", "open"):
            return root
        return self.pick({root: 12, f"{root}.f1": 1, f"{root}.c1": 1})

    def value(self, do: str) -> float:
        match do:
            case "ask" | "ask int" | "maintain":
                return self.chance.choice((0.0, 0.05, 0.1, 0.3, 1.0))
            case "cap" | "select":
                return float(self.chance.randint(1, 3))
            case "append" | "prepend" | "replace" | "remove":
                return float(self.chance.randint(0, 3))
            case _:
                return 0.0

    def pair(self) -> Sequence[Act]:
        """Two who strike the same agent at the same moment, or nearly."""
        kinds = ["cancel", "cancel, keep", "cancel by hook", "interrupt", "begin disposal", "steer"]
        at, who = self.when(), self.chance.choice(self._roots)
        return [
            Act(at=at, steps=self.steps(), do=self.chance.choice(kinds), who=who) for _ in range(2)
        ]

    def listener(self) -> Listener:
        chance = self.chance
        point = chance.choice((*WATERFALLS, *WATERFALLS, *SERIALS, *NOTICES))
        does = self.pick(_LISTENS_NOTICE if point in NOTICES else _LISTENS)
        if chance.random() < 0.02:
            does = "ctrl-c"
        who = chance.choice(["", "", *self._roots])
        if point in ("agent_created", "session_created") and chance.random() < 0.7:
            does = "look" if point == "agent_created" else "steer"  # else few would live
        return Listener(
            point=point,
            does=does,
            who=who,
            nth=chance.randint(1, 4),
            times=self.pick({1: 3, 2: 2, 5: 1}),
        )

    def trouble(self) -> Trouble:
        does = self.pick({"fail": 5, "hang": 2, "slow": 3})
        return Trouble(
            operation=self.pick({"flush": 8, "create": 1, "open": 1, "read": 1, "close": 2}),
            does=does,
            nth=self.chance.randint(1, 6),
            times=self.pick({1: 3, 2: 2, 4: 1}),
            effect=self.pick({"none": 3, "part": 2, "all": 2}),
            seconds=self.chance.choice((0.1, 0.5, 1.0)) if does == "slow" else 0.0,
        )
