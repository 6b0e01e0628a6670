"""Stretch: the part of a turn that an interruption would cut.

`interrupt` cuts the stream or the batch that runs, and the turn goes on. A cancel scope for
each of them would cost as much as a task. So a turn has one, begun with its first stream. An
interruption ends it; what the turn does next begins another. The same with the nursery of
the calls: one for each batch would cost more than the call of most.

It belongs to the driver's task and nests in the scope of the activity. It is left without an
exception: what was raised inside goes on past it as it is.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType

import trio
from attrs import define

from ..vocabulary import without
from ._run_state import RunState


@define(eq=False)
class Stretch:
    """Of one agent, for one turn after the other.

    Used as a block, around a stream or a batch: that is what `interrupt` cuts, and nothing
    else. An interruption ends the block without an exception, and the stretch has to be ended
    before the turn goes on (`RunState.interrupted`). What a clean-up raises at that
    goes on, and the cancellation in it is left out if anything else is.
    """

    state: RunState
    _scope: trio.CancelScope | None = None
    _opened: AbstractAsyncContextManager[trio.Nursery] | None = None
    _calls: trio.Nursery | None = None
    _spoilt: bool = False

    def __enter__(self) -> None:
        scope = self._scope
        if scope is None:
            scope = self._scope = trio.CancelScope()
            scope.__enter__()
        self.state.step = scope

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.state.step = None
        if error is None or not self.state.interrupted:
            return False
        rest = without(error, trio.Cancelled)
        if rest is not None and rest is not error:
            raise rest
        # If the turn is cancelled as well, its next checkpoint says so once more.
        return rest is None

    async def calls(self) -> trio.Nursery:
        """The nursery for the tasks of a batch, inside the scope. Whoever starts tasks in it
        waits for them before the block is left. A batch that was cancelled leaves it cancelled,
        and says so with `spoil`."""
        if self._calls is None or self._spoilt:
            await self.end_calls()
            self._opened = trio.open_nursery()
            self._calls = await self._opened.__aenter__()
        return self._calls

    def spoil(self) -> None:
        """That nursery is cancelled, and takes no further batch."""
        self._spoilt = True

    async def end_calls(self) -> None:
        """Close that nursery. A turn of the scheduler, which no cancellation cuts, if there
        is one: who decides that a turn ends closes it before he looks, not after."""
        opened, self._opened, self._calls = self._opened, None, None
        self._spoilt = False
        if opened is not None:
            await opened.__aexit__(None, None, None)

    async def end(self) -> None:
        """Leave the scope; nothing runs in it any more."""
        try:
            await self.end_calls()
        finally:
            self.state.interrupted = False
            scope, self._scope = self._scope, None
            if scope is not None:
                scope.__exit__(None, None, None)
