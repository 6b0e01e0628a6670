"""Floor 2: acting."""

from ._answer import (
    VALUE as VALUE,
    AnswerForm as AnswerForm,
    answer_forms as answer_forms,
    type_name as type_name,
)
from ._bodies import unprotected_frames as unprotected_frames
from ._executing import (
    BatchLog as BatchLog,
    BatchResult as BatchResult,
    ToolBatch as ToolBatch,
    ToolExecutor as ToolExecutor,
)
from ._hooks import (
    Allow as Allow,
    Approver as Approver,
    Ask as Ask,
    Deny as Deny,
    PreExecute as PreExecute,
    ToolCallHook as ToolCallHook,
    ToolHooks as ToolHooks,
    ToolResultHook as ToolResultHook,
)
from ._pipeline import ToolPipeline as ToolPipeline
from ._pool import PoolExecutor as PoolExecutor
from ._registry import Guard as Guard, ToolLayer as ToolLayer
from ._running import OverdueCall as OverdueCall, RunningCall as RunningCall
from ._spill import LongResult as LongResult, Spill as Spill, check_spill as check_spill
from ._tool import (
    Tool as Tool,
    ToolOutcome as ToolOutcome,
    ToolRun as ToolRun,
    raw_tool as raw_tool,
    tool as tool,
)
from ._touches import Read as Read, Touch as Touch, Write as Write
