"""Two agents: a parent, one of whose calls runs a child, and a bound on cancels that they share."""

from __future__ import annotations

from collections import deque

from attrs import frozen

from terzetto.testing._turn_kinds import kind_of
from terzetto.vocabulary import Event
from tests.model.world import Budget, World, explore

CUTS = 2
PARENT = Budget(
    turns=1, steps=1, calls=2, inputs=0, cuts=CUTS, retries=0, lives=0, changes=0, chunks=0
)
CHILD = Budget(
    turns=1, steps=1, calls=1, inputs=0, cuts=CUTS, retries=0, lives=0, changes=0, chunks=0
)


@frozen
class Pair:
    """*states* of both; those from which there is no way to an end of both are *stuck*.
    *ends*: how many states there are in which both have had their turn."""

    states: int
    stuck: list[tuple[str, str]]
    ends: int


def explore_pair() -> Pair:
    """The product of both worlds, as far as the child lives inside its parent's first call."""
    parent, child = explore(PARENT), explore(CHILD)
    known = {(0, 0): 0}
    order = [(0, 0)]
    back: list[list[int]] = [[]]
    for number, (p, c) in enumerate(order):
        moves = [
            (to, c) for event, to in parent.moves[p] if _parent_may(event, parent, p, child, c)
        ]
        if _in_call(parent, p) or not _at_rest(child, c):
            moves += [(p, to) for _, to in child.moves[c]]
        for there in moves:
            if _cuts(parent, there[0]) + _cuts(child, there[1]) > CUTS:
                continue
            place = known.setdefault(there, len(order))
            if place == len(order):
                order.append(there)
                back.append([])
            back[place].append(number)
    ends = [i for i, (p, c) in enumerate(order) if _at_rest(parent, p) and _at_rest(child, c)]
    reached = set(ends)
    queue = deque(ends)
    while queue:
        for before in back[queue.popleft()]:
            if before not in reached:
                reached.add(before)
                queue.append(before)
    stuck = [
        (parent.nodes[p].machine.state, child.nodes[c].machine.state)
        for i, (p, c) in enumerate(order)
        if i not in reached
    ]
    both = sum(
        parent.nodes[p].machine.facts.turn and child.nodes[c].machine.facts.turn
        for p, c in (order[i] for i in ends)
    )
    return Pair(len(order), stuck, both)


def _at_rest(world: World, at: int) -> bool:
    return world.nodes[at].machine.state in ("idle", "repaired")


def _in_call(world: World, at: int) -> bool:
    """Whether the first call is recorded and not answered: its body may run."""
    facts = world.nodes[at].machine.facts
    return facts.recorded > 0 and facts.settled == 0


def _parent_may(event: Event, parent: World, p: int, child: World, c: int) -> bool:
    """A started body has ended before its call is answered, and so has what it waited for."""
    answers = kind_of(event) == "tool/result" and parent.nodes[p].machine.facts.settled == 0
    return not answers or _at_rest(child, c)


def _cuts(world: World, at: int) -> int:
    return CUTS - world.nodes[at].budget.cuts
