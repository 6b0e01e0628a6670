"""What the checks say of somebody's tool, listener or adapter: verdicts, and their report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from attrs import frozen

VERDICTS: Mapping[str, str] = MappingProxyType(
    {
        # what it does when it is cancelled
        "swallows-cancelled": "goes on after it caught its cancellation",
        "returns-cancelled": "turns its cancellation into a result",
        "replaces-cancelled": "turns its cancellation into an error",
        "hides-cancelled": "raises a group of its cancellation and something else",
        "slow-to-stop": "takes long to give way",
        "never-stops": "does not give way",
        "shields-forever": "waits under a shield without a deadline",
        "effect-after-cancel": "has an effect after it heard that it is cancelled",
        "half-done": "leaves half an effect when it is cancelled",
        # what it leaves behind
        "leaves-process": "leaves a child process",
        "leaves-thread": "leaves a thread",
        "leaves-task": "leaves a task",
        "leaves-socket": "leaves a socket",
        "leaves-file": "leaves an open file",
        "leaks-context": "leaves a context variable changed",
        "not-awaited": "makes a coroutine and does not await it",
        # what it does anyway
        "fails": "raises",
        "never-ends": "does not end",
        "blocks": "holds up every other task",
        "mutates-arguments": "changes its arguments",
        "unchecked-arguments": "does not check its arguments",
        "unstable-schema": "shows the model another schema each time it is made",
        "bad-result": "returns what has no JSON form",
        "large-result": "returns more than the model will see",
        # what it declares
        "shared-state": "gives other results when two calls overlap, as it says they may",
        "read-only-effect": "has an effect, though it is declared read_only",
        "wrong-touches": "touches something else than it declares",
        "breaks-engine": "makes the engine break a promise",
        # listeners
        "slow": "takes long while its agent waits",
        "proceeds-twice": "lets the decision be made twice",
        "never-proceeds": "makes the decision itself, without asking further",
        "wrong-decision": "decides what it may not",
        # adapters
        "wrong-order": "sends chunks in an order that means nothing",
        "no-finish": "ends without saying how",
        "after-finish": "sends something after the end",
        "loses-prefix": "loses what had arrived when the connection broke",
        "takes-truncation": "takes an answer that broke off for a whole one",
        "unclassified": "raises an error without a code",
        "tells-secret": "shows its key",
        "unstable-bytes": "sends other bytes for the same request",
        "splits-wrong": "reads the same answer in another way when it arrives in other pieces",
        "keeps-connection": "keeps its connection after its stream was left",
    }
)
"""Every kind of verdict, and what is said by it."""


@frozen(kw_only=True)
class Verdict:
    """One thing that is wrong.

    *kind* is one of `VERDICTS`; *text* says what, where and in which run, for a person.
    *place* is a line of the checked code, ``tools.py:31``, where one is to blame.
    """

    kind: str
    text: str
    place: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Defects(AssertionError):
    """What `CheckReport.raise_for_verdicts` raises; *report* has the verdicts."""

    def __init__(self, report: CheckReport) -> None:
        super().__init__(str(report))
        self.report = report


@frozen(kw_only=True)
class CheckReport:
    """What a check found.

    *subject* is what was checked, *runs* how often it ran, *points* how many of these runs
    were cut short on the way. *verdicts* is empty where nothing is wrong; there is at most
    one of each kind and place. *skipped* says what could not be checked, and why.
    """

    subject: str
    runs: int
    points: int
    verdicts: tuple[Verdict, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the verdicts, each once, in their order."""
        return tuple(dict.fromkeys(verdict.kind for verdict in self.verdicts))

    def raise_for_verdicts(self) -> None:
        """Raise `Defects` if there is any verdict."""
        if self.verdicts:
            raise Defects(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        found = f"{len(self.verdicts)} verdict{'' if len(self.verdicts) == 1 else 's'}"
        ran = f"{self.runs:,} runs, {self.points:,} of them cut short"
        yield f"{self.subject}: {found if self.verdicts else 'nothing wrong'} ({ran})"
        yield from (f"- {verdict}" for verdict in self.verdicts)
        yield from (f"  not checked: {what}" for what in self.skipped)
