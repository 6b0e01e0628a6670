"""The built-in executor, as anyone may call it: a batch in a nursery of its own.

An agent's batches share the nursery of their turn (`run_in`); how a batch runs is ``_batch``'s.
"""

from __future__ import annotations

import trio

from ._batch import run_in
from ._executing import BatchResult, ToolBatch


class PoolExecutor:
    """The built-in executor: a rolling pool with exclusive barriers and touched resources."""

    async def execute(self, batch: ToolBatch) -> BatchResult:
        failure: BaseException
        async with trio.open_nursery() as nursery:
            try:
                return await run_in(nursery, batch)
            except (Exception, KeyboardInterrupt) as error:
                failure = error  # as itself: the nursery would wrap it
        raise failure
