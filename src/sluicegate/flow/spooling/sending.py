"""The sender of a spool: a pipe from its source into the batcher that the user has described.

First, batches whose writes a crash has interrupted are written again, as they were.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..._core.classify import classified
from ..._core.clock import wait_until
from ..._core.delivery.host import DestinationState
from ..._core.logs import for_log, log_safely
from ..._core.opening import opened
from ..._core.retry_policy import RetryPolicy, RetryState, run_with_retries
from ..._core.sink import classifier_of
from ..._core.text import text_of
from ...batcher.batcher import batcher_of, pressed_signal
from ...consumer.handling.results import UndecodableError
from ...consumer.options import InFlight, Poison
from ..pipe import Pipe
from .parked import ParkedItem
from .sinks import ExtentSink, Spooled, write_again
from .source import SpoolRecord, SpoolSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..._core.batch import Batch
    from ..._core.clock import Signal
    from ...batcher.batcher import Batcher
    from ...batcher.setup import Setup
    from ...consumer.lanes.message import Message
    from ...letters.letter import DeadLetterRecord
    from .folder import SpoolFolder
    from .running import RunningSpool
    from .segment import Item

logger = logging.getLogger("sluicegate.spool")
_INTERRUPTED = "%s: the batches that were interrupted cannot be written yet (%s)"
RESERVE = 0.2
"""The share of a shutdown's time that is left for the last writes."""
SEALS_EVERY = 0.05
"""Seconds between the ends of open batches in a shutdown: retried items join them late."""


class Sender:
    """Sends the items of one open spool until it is finished."""

    def __init__(
        self,
        folder: SpoolFolder,
        running: RunningSpool,
        setup: Setup[Any],
        poison: Poison | None,
    ) -> None:
        self._folder = folder
        self._running = running
        self._setup = setup
        self._batcher = batcher_for(setup, running)
        self._source = SpoolSource(folder)
        self.pipe = Pipe(
            self._source,
            self._batcher,
            _to_item,
            name=self._batcher.name,
            poison=poison or Poison("skip", dead_letters=ParkingSink(running, self._source)),
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
        return pressed_signal(self._batcher)

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
                await write_again(self._running, self._setup, self._folder.settings.codec)
        except Exception as error:
            log_safely(logger, logging.WARNING, _INTERRUPTED, self._batcher.name, for_log(error))
            raise

    async def finish(self, until: float) -> None:
        """Send the remaining items, with the retries and dead letters of its items; see
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


class ParkingSink:
    """The dead letters of a spool's sender: parks the items of letters."""

    def __init__(self, running: RunningSpool, source: SpoolSource) -> None:
        self._running = running
        self._source = source

    async def write(self, batch: Batch[DeadLetterRecord[Mapping[str, Any]]]) -> None:
        """Copy the items to the file; suspends until they are on disk."""
        store = self._running.store
        letters = {int(letter.item["offset"]): letter for letter in batch}
        items = await self._running.call(store.find, [*letters])
        parked = [self._parked(item, letters[item.offset]) for item in items]
        await self._running.call(store.parked.add, parked)

    def _parked(self, item: Item, letter: DeadLetterRecord[Any]) -> ParkedItem:
        error_type, message = letter.error_type, letter.message
        if error_type == UndecodableError.__name__:  # it does not have the reason's text
            try:
                self._source.decoded(item)
            except Exception as error:
                error_type, message = type(error).__name__, text_of(error)
        return ParkedItem(
            item,
            int(letter.last_at.timestamp() * 1000),
            error_type,
            message,
            letter.attempts,
            letter.maybe_delivered,
        )


def batcher_for(setup: Setup[Any], running: RunningSpool) -> Batcher[Any]:
    """Make the batcher that sends: that of `setup`, for items with their places in the spool."""

    def of_item(function: Callable[[Any], Any] | None) -> Any:
        def called(spooled: Spooled) -> Any:
            return None if function is None else function(spooled.item)

        return None if function is None else called

    handler = setup.on_failure
    if not isinstance(handler, str):
        told = handler

        def of_items(items: list[Spooled], error: BaseException) -> object:
            return told([each.item for each in items], error)

        handler = of_items
    large = setup.oversize_sink
    return batcher_of(
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
            oversize_sink=None if large is None else ExtentSink(large, running),
            spool=None,
        )
    )


def _to_item(message: Message) -> Spooled:
    record = message.record
    return Spooled(record.offset, message.value)


def _size_of(record: Any) -> int:
    return record.size if isinstance(record, SpoolRecord) else len(record.value)


def _tell(task: asyncio.Task[Any], broken: Callable[[BaseException], object]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        broken(error)
