"""Floor 2: what the model is told beside the conversation."""

from ._admission import PromptChange as PromptChange, admit_prompt as admit_prompt
from ._context import (
    owed_snapshot as owed_snapshot,
    refreshed as refreshed,
    snapshot_text as snapshot_text,
    working_directory as working_directory,
)
from ._sections import PromptLayer as PromptLayer, Text as Text, arrange_tools as arrange_tools
