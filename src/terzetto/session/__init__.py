"""Floor 1: what happened, and what follows from it. Nothing here names Trio."""

from .._lazy import at_first_use
from ._appending import append_chunks as append_chunks
from ._attempt import Attempt as Attempt
from ._bell import Bell as Bell
from ._compacting import Compacting as Compacting, CompactionLock as CompactionLock
from ._forking import (
    ForkSearch as ForkSearch,
    fork_header as fork_header,
    fork_point as fork_point,
    fork_prefix as fork_prefix,
    fresh_id as fresh_id,
    unfinished_seed as unfinished_seed,
)
from ._held import EventLog as EventLog, Held as Held
from ._inbox import TARGETS as TARGETS, Inbox as Inbox, PendingInput as PendingInput
from ._log import (
    Session as Session,
    last_ending as last_ending,
    replay as replay,
)
from ._order import OwedCall as OwedCall, Place as Place
from ._reading import (
    PAGE as PAGE,
    Follower as Follower,
    Reader as Reader,
    checked as checked,
)
from ._recovery import (
    CRASH as CRASH,
    Closing as Closing,
    NewId as NewId,
    anchor_draft as anchor_draft,
    answer_draft as answer_draft,
    asks_again as asks_again,
    closers as closers,
    withdrawn as withdrawn,
)
from ._surface import (
    Folds as Folds,
    Messages as Messages,
    Node as Node,
    Surface as Surface,
    is_snapshot as is_snapshot,
)
from ._views import AgentStatus as AgentStatus, AgentView as AgentView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._consumed import ConsumedWork as ConsumedWork, consumed_work as consumed_work
    from ._prefix import (
        Cause as Cause,
        Growth as Growth,
        canonical as canonical,
        growths as growths,
    )
    from ._rebuild import SentRequest as SentRequest, rebuild as rebuild
else:
    __getattr__, __dir__ = at_first_use(
        __name__,
        {
            "._consumed": "ConsumedWork consumed_work",
            "._prefix": "Cause Growth canonical growths",
            "._rebuild": "SentRequest rebuild",
        },
    )
