"""The sender of a spool: a pipe from its source into the batcher that the user has described.

First, batches whose writes a crash has interrupted are written again, as they were.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ..._core.classify import classified
from ..._core.clock import wait_until
from ..._core.delivery.host import DestinationState
from ..._core.logs import for_log, log_safely
from ..._core.opening import opened
from ..._core.retry_policy import RetryPolicy, RetryState, run_with_retries
from ..._core.sink import classifier_of
from ...batcher.batcher import Batcher
from ...consumer.options import InFlight, Poison
from ..pipe import Pipe
from .parked import ParkingSink
from .sinks import ExtentSink, Spooled, write_again
from .source import SpoolSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..._core.clock import Signal
    from ...batcher.setup import Setup
    from ...consumer.lanes.message import Message
    from .running import RunningSpool
    from .spool import Spool

logger = logging.getLogger("sluicegate.spool")
_INTERRUPTED = "%s: the batches that were interrupted cannot be written yet (%s)"
RESERVE = 0.2
"""The share of a shutdown's time that is left for the last writes."""
SEALS_EVERY = 0.05
"""Seconds between the ends of open batches in a shutdown: retried items join them late."""


class Sender:
    """Sends the items of one open spool until it is finished."""

    def __init__(self, spool: Spool, running: RunningSpool, setup: Setup[Any]) -> None:
        self._spool = spool
        self._running = running
        self._setup = setup
        self._batcher = batcher_for(setup, running)
        self._source = SpoolSource(spool)
        self.pipe = Pipe(
            self._source,
            self._batcher,
            _to_item,
            name=self._batcher.name,
            poison=spool.poison or Poison("skip", dead_letters=ParkingSink(running, self._source)),
            in_flight=InFlight(setup.limits.ledger_items, size_of=_size_of),
            drain=setup.shutdown_deadline or 1.0,
        )
        self._is_stopping = False
        self._task: asyncio.Task[Any] | None = None

    def start(self, broken: Callable[[BaseException], object]) -> None:
        """Begin to send in the background; see `SpoolFront.start`."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"sluicegate {self._batcher.name}"
        )
        self._task.add_done_callback(lambda task: _tell(task, broken))

    @property
    def is_open(self) -> bool:
        """Whether the destination is open."""
        return self._batcher.stats().state == "open"

    @property
    def pressed(self) -> Signal:
        """Fires at each report that the destination does not accept writes."""
        return self._batcher._dispatcher.pressed  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    @property
    def keeps_up(self) -> bool:
        """Whether all items were read, and the destination accepts writes."""
        stats = self._batcher.stats()
        is_available = stats.destination.state == DestinationState.AVAILABLE.value
        return self._source.is_read and stats.state == "open" and is_available

    async def _run(self) -> None:
        running, sink = self._running, self._setup.sink
        if running.store.extents():
            classify = classifier_of(sink)
            policy = RetryPolicy(attempts=sys.maxsize, unlisted_attempts=sys.maxsize)
            retries = RetryState(policy, lambda error: classified(error, classify))
            await run_with_retries(self._write_again, retries)
        if not self._is_stopping:
            await self.pipe.run()

    async def _write_again(self) -> None:
        try:
            async with opened(self._setup.sink):
                await write_again(self._running, self._setup, self._spool.codec)
        except Exception as error:
            log_safely(logger, logging.WARNING, _INTERRUPTED, self._batcher.name, for_log(error))
            raise

    async def finish(self, until: float) -> None:
        """Send what is left, with the retries and dead letters of its items; see
        `SpoolFront.finish`.
        """
        task, clock, running = self._task, self._setup.clock, self._running
        if task is None:
            return
        task.add_done_callback(lambda _: running.freed.fire())
        share = RESERVE * max(0.0, until - clock.now())
        self._source.end()
        try:
            while not task.done() and clock.now() < until - share:
                soon = clock.now() + SEALS_EVERY if self._source.is_read else until
                await wait_until(clock, min(soon, until - share), running.freed)
                if self._source.is_read and self._batcher.stats().state == "open":
                    await self._batcher.flush(0.0)
        finally:
            self._is_stopping = True
            if not task.done():
                self._stop(task)
        timer = clock.call_at(until, task.cancel)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            timer.cancel()

    def _stop(self, task: asyncio.Task[Any]) -> None:
        try:
            self.pipe.stop()
        except Exception:  # it is not open yet
            task.cancel()


def batcher_for(setup: Setup[Any], running: RunningSpool) -> Batcher[Any]:
    """Make the batcher that sends: that of `setup`, for items with their places in the spool."""

    def of_item(function: Callable[[Any], Any] | None) -> Any:
        return None if function is None else lambda spooled: function(spooled.item)

    handler = setup.on_failure
    if not isinstance(handler, str):
        told = handler
        handler = lambda items, error: told([each.item for each in items], error)  # noqa: E731
    made: Batcher[Any] = object.__new__(Batcher)
    made._use(  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        replace(
            setup,
            sink=ExtentSink(setup.sink, running),
            name=f"{setup.name}-sending",
            overflow="block",
            open="lazy",
            measure=of_item(setup.measure),
            key=of_item(setup.key),
            tenant=of_item(setup.tenant),
            on_failure=handler,
            spool=None,
        )
    )
    return made


def _to_item(message: Message) -> Spooled:
    record = message.record
    return Spooled(record.offset, message.value)


def _size_of(record: Any) -> int:
    return cast("int", getattr(record, "size", None) or len(record.value))


def _tell(task: asyncio.Task[Any], broken: Callable[[BaseException], object]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        broken(error)
