"""Floor 2: asking a model."""

from ._adapter import Adapter as Adapter, ChunkStream as ChunkStream, PreparedCall as PreparedCall
from ._runtime import (
    ModelRuntime as ModelRuntime,
    StreamCall as StreamCall,
    failure_of as failure_of,
)
from ._together import several as several
