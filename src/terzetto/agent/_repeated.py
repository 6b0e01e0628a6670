"""An admission that had nothing to append, remembered.

In a turn of many steps nearly every request is the log and nothing new: same prompt, tools,
header and context. What decides that is a dozen comparisons, each over what earlier admissions
left. So an admission that appended nothing keeps what it looked at. Where the next one finds
all of it again, it would append nothing as well: a header that differs, a prompt or a context
that is owed would have been in the log by then.
"""

from __future__ import annotations

from typing import NamedTuple

from ..llm import PreparedCall
from ..prompt import PromptLayer
from ..session import Session
from ..vocabulary import CallConfig, DefaultField, ModelInfo, RequestContextEvent, RequestHeader
from ._hooks import Assembly


class Repeated(NamedTuple):
    """What an admission without input looked at. Of the surface: how often it was rewritten,
    and how many prompts and snapshots are on it, which otherwise only become more."""

    assembly: Assembly
    config: CallConfig
    defaults: frozenset[DefaultField]
    info: ModelInfo
    header: RequestHeader | None
    context: RequestContextEvent | None
    generation: int
    prompts: int
    snapshots: int
    prompt_changes: int
    """At which the runtime context was found out, of which nothing is a function."""

    @classmethod
    def of(
        cls, assembly: Assembly, prepared: PreparedCall, session: Session, prompt_changes: int
    ) -> Repeated:
        surface, folds = session.surface, session.folds
        return cls(
            assembly=assembly,
            config=prepared.config,
            defaults=prepared.adapter_defaults,
            info=prepared.info,
            header=folds.header,
            context=folds.context,
            generation=surface.generation,
            prompts=len(surface.system),
            snapshots=len(surface.snapshots),
            prompt_changes=prompt_changes,
        )

    def by(
        self, assembly: Assembly, prepared: PreparedCall, session: Session, prompt: PromptLayer
    ) -> bool:
        """Whether an admission now, without input, would look at the same."""
        surface, folds = session.surface, session.folds
        return (
            self.assembly is assembly
            and self.config is prepared.config
            and self.header is folds.header
            and self.context is folds.context
            and self.generation == surface.generation
            and self.prompts == len(surface.system)
            and self.snapshots == len(surface.snapshots)
            and self.prompt_changes == prompt.changes
            and self.defaults == prepared.adapter_defaults
            and (self.info is (info := prepared.info) or self.info == info)
        )
