"""The sink of a batcher that stores items only while its destination does not keep up.

1. Batches take their turns in the order in which they were sealed. The first in line is written
   from memory, if nothing is stored and a worker is free; otherwise it waits, or is stored.
2. It is stored if memory is full, or the destination is unavailable, or after half of a
   `flush_timeout`. It waits if the sender has everything and will be done soon: otherwise a steady
   inflow would go through the disk forever.
3. Before a batch is stored, all those that are being written from memory are *copied* to the spool.
   So their items precede later ones, whatever becomes of their writes: a copy is settled when its
   write has succeeded or was refused for good, and is the item itself otherwise.
4. A copied batch that only waits in a backoff is released: its items are spooled. One whose write
   is cut is copied in the time that it has to end. In a shutdown, no write from memory begins after
   half of the time, and all are cut after three quarters: what they hold back can still be stored
   then.
5. Nothing is sent from the spool while a batch is being written from memory, and nothing is written
   from memory while the spool has items.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from ..._core.classify import classified
from ..._core.clock import Signal, wait_until
from ..._core.decorator import WrappingSink
from ..._core.errors import ErrorClass, KeyStopped, SinkError, StoppedError
from ..._core.logs import for_log, log_safely
from ..._core.opening import Openable, opened
from ..._core.order.left_out import leaders
from ..._core.outcome import Outcome
from ..._core.send import send
from ..._core.sink import WriteResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..._core.batch import Batch
    from ..._core.sink import Sink
    from ..._core.spooling import SpoolHost
    from ...batcher.setup import Setup
    from .folder import SpoolFolder
    from .running import RunningSpool
    from .sending import Sender

logger = logging.getLogger("sluicegate.spool")
_NOT_COPIED = "%r: a batch that is being written cannot be copied to the disk yet (%s)"
_AWAY = frozenset(
    {
        ErrorClass.UNAVAILABLE,
        ErrorClass.REFUSED,
        ErrorClass.THROTTLE,
        ErrorClass.UNKNOWN,
        ErrorClass.STOPPED,
    }
)
"""Classes of errors after which an item is stored: they say nothing about the item."""
DISK_PAUSE = 1.0
"""Seconds between two tries to write to a disk that refuses it."""

CUT_AFTER = 0.75
"""The part of a shutdown's time after which writes from memory are cut."""


@dataclass(slots=True, eq=False)
class _Write:
    """A batch that is being written from memory."""

    batch: Batch[Any]
    task: asyncio.Task[Any]
    copying: asyncio.Task[bool] | None = None
    copies: Mapping[int, int] | None = None
    """The offsets of its items in the spool, by their indices; `None` before they are there."""
    is_storing: bool = False
    """Whether its write has ended, and its failed items are being stored."""
    is_released: bool = False
    """Whether it was ended, since its items are in the spool."""

    def release(self) -> None:
        """End it, since its items are in the spool."""
        self.is_released = True
        self.task.cancel()

    def begins_copy(self, copying: asyncio.Task[bool]) -> asyncio.Task[bool]:
        """Note the task that copies it."""
        self.copying = copying
        return copying

    def forget_copy(self, copying: asyncio.Task[bool]) -> None:
        """Let another task try to copy it."""
        if self.copying is copying:
            self.copying = None

    def copied(self, copies: Mapping[int, int]) -> None:
        """Note where its items are."""
        self.copies = copies

    def begins_storing(self) -> None:
        """Note that its failed items are being stored."""
        self.is_storing = True


class SpillSink(WrappingSink[Any]):
    """Writes batches from memory while the destination keeps up, and stores the others."""

    def __init__(self, setup: Setup[Any], store: Sink[Any], folder: SpoolFolder) -> None:
        super().__init__(setup.sink)
        folder.hold_back(lambda: self.writes_now)
        self._setup = setup
        self._clock = setup.clock
        self._store = store
        self._folder = folder
        self._line: deque[Batch[Any]] = deque()
        self._writes: list[_Write] = []
        self._is_storing = False
        self._was_full = False
        """Whether memory was full during a write, while no other batch was in line: all keys may have
        been in that one.
        """
        self._changed = Signal()
        """Fires when the line moves, or a write or a copy has ended."""

    async def _open(self, stack: AsyncExitStack) -> None:
        self._stack = await stack.enter_async_context(AsyncExitStack())
        self._is_inner_open = False
        if self._setup.open == "eager":
            await self._open_inner()
        await stack.enter_async_context(opened(self._store))
        self._running: RunningSpool = await stack.enter_async_context(self._folder.opened())

    async def _open_inner(self) -> None:
        await self._stack.enter_async_context(opened(self.inner))
        self._is_inner_open = True

    def start(self, host: SpoolHost, sender: Sender) -> None:
        """Begin to release batches that wait for the destination."""
        self._host, self._sender = host, sender
        task = asyncio.get_running_loop().create_task(self._watch(), name=f"{self._folder!r}")
        self._stack.push_async_callback(_end, task)

    @property
    def writes_now(self) -> bool:
        """Whether a batch is being written from memory."""
        return bool(self._writes)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Write a batch, or store it. Suspends for a turn, and while the spool is full."""
        self._line.append(batch)
        try:
            writing = await self._turn(batch)
            errors = await self._stored(batch) if writing is None else {}
        finally:
            self._line.remove(batch)
            self._changed.fire()
        if writing is not None:
            errors = await self._written(writing)
        return WriteResult.failed(batch, errors) if errors else None

    # -- turns -------------------------------------------------------------------------------------

    async def _turn(self, batch: Batch[Any]) -> _Write | None:
        """Wait for the turn of a batch; return its write, or `None` if it is to be stored now."""
        while self._line[0] is not batch:
            await self._back_off(batch, math.inf)
        clock, running = self._clock, self._running
        until, stops = clock.now() + self._setup.limits.stretch / 2, False
        while True:
            if not self._is_inner_open and self._sender.is_open:
                await self._open_inner()
            now = clock.now()
            if batch.stopping and not stops:
                stops, until = True, min(until, (now + (batch.deadline or now)) / 2)
            if self._may_write() and not self._was_full and not (stops and now >= until):
                task = asyncio.current_task()
                assert task is not None
                writing = _Write(batch, task)
                self._writes.append(writing)
                return writing
            if now < until and not self._is_late():
                signals = (self._changed, running.freed, self._host.pressed, self._sender.pressed)
                await wait_until(clock, until, *signals)
            elif await self._copied():
                self._was_full = False
                return None
            else:
                await self._back_off(batch, now + DISK_PAUSE, running.freed)

    def _may_write(self) -> bool:
        is_free = len(self._writes) < self._setup.limits.workers and self._is_inner_open
        is_empty = not (self._running.store.unsettled or self._is_storing)
        return is_free and is_empty and not any(each.is_storing for each in self._writes)

    def _is_late(self) -> bool:
        """Return whether the first batch in line should not wait any longer."""
        if self._host.is_full or self._was_full:
            return True
        if not self._writes:
            return not self._sender.keeps_up
        return self._is_away() or any(each.copies is not None for each in self._writes)

    def _is_away(self) -> bool:
        """Return whether a batch waits for a destination that does not accept writes."""
        is_waiting = any(each.batch.delivery.states.are_waiting for each in self._writes)
        return is_waiting and self._host.is_troubled

    async def _back_off(self, batch: Batch[Any], until: float, *signals: Signal) -> None:
        if await batch.back_off(until, self._changed, *signals):
            raise StoppedError(
                f"neither written nor stored in {self._folder!r} before the deadline"
            )

    # -- copies ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Release batches that wait for the destination, even while no other one is in line, and
        cut writes in a shutdown.
        """
        began: float | None = None
        while True:
            until = math.inf
            if self._writes and not self._line and self._host.is_full:
                self._was_full = True
            if self._is_away():
                await self._copied()
            if self._writes and self._writes[0].batch.stopping:
                now, deadline = self._clock.now(), self._writes[0].batch.deadline
                began = now if began is None else began
                cut_at = began + CUT_AFTER * max(0.0, (deadline or now) - began)
                if now >= cut_at:
                    await self._cut()
                else:
                    until = cut_at
            await wait_until(self._clock, until, self._host.pressed)

    async def _cut(self) -> None:
        for writing in tuple(self._writes):
            if not writing.is_storing and await self._copy(writing):
                self._release(writing, by_force=True)

    async def _copied(self) -> bool:
        """Copy the batches that are being written, and release those that wait; return whether a
        later batch may be stored now.
        """
        for writing in tuple(self._writes):
            if writing.is_storing or not await self._copy(writing):
                return False
            self._release(writing)
        return True

    def _release(self, writing: _Write, *, by_force: bool = False) -> None:
        """End the backoff, or `by_force` the write, of a batch whose items are all in the spool."""
        batch, copies = writing.batch, writing.copies or {}
        if writing.is_released or writing not in self._writes:
            return
        is_waiting = by_force or batch.delivery.states.are_waiting
        if is_waiting and copies.keys() >= set(batch.unsettled()):
            writing.release()

    async def _copy(self, writing: _Write) -> bool:
        """Copy the items of a batch, once; return whether they are in the spool."""
        copying = writing.copying
        if copying is None:
            loop = asyncio.get_running_loop()
            copying = writing.begins_copy(loop.create_task(self._put(writing)))
        is_done = await asyncio.shield(copying)
        if not is_done:
            writing.forget_copy(copying)
        return is_done

    async def _put(self, writing: _Write) -> bool:
        batch = writing.batch
        encoded, _ = self._folder.encoded((at, batch[at]) for at in batch.unsettled())
        values = [*encoded.values()]
        try:
            if not self._folder.has_room(len(values), sum(len(each.value) for each in values)):
                return False
            first = await self._running.put(values) if values else 0
        except SinkError as error:
            log_safely(logger, logging.WARNING, _NOT_COPIED, self._folder, for_log(error))
            return False
        writing.copied(dict(zip(encoded, count(first))))
        return True

    # -- writing and storing -----------------------------------------------------------------------

    async def _written(self, writing: _Write) -> dict[int, BaseException]:
        """Write a batch from memory; return the errors of items that are neither there nor stored."""
        try:
            errors = await self._sent(writing)
            if writing.copying is not None:
                await self._copy(writing)
            if writing.copies is None:
                return await self._store_failed(writing, errors)
            return await self._settle_copies(writing, errors)
        except asyncio.CancelledError:
            if not writing.is_storing:
                with suppress(SinkError):
                    await self._save(writing)
            raise
        finally:
            self._writes.remove(writing)
            self._changed.fire()
            if self._running.store.unsettled:
                self._running.news.fire()

    async def _sent(self, writing: _Write) -> dict[int, BaseException]:
        batch, task = writing.batch, writing.task
        errors: dict[int, BaseException]
        try:
            errors = await send(self.inner, batch)
        except asyncio.CancelledError:
            if not writing.is_released:
                raise
            errors = dict.fromkeys(batch.unsettled(), StoppedError("stored in the spool instead"))
        if writing.is_released and task.uncancel():
            raise asyncio.CancelledError
        return errors

    async def _store_failed(
        self, writing: _Write, errors: dict[int, BaseException]
    ) -> dict[int, BaseException]:
        """Store the items that failed because the destination is unavailable."""
        batch, ahead = writing.batch, leaders(writing.batch, errors)
        away = [at for at in errors if self._is_of_destination(errors[ahead.get(at, at)])]
        away = [at for at in away if not isinstance(errors[ahead.get(at, at)], KeyStopped)]
        if not away:
            return errors
        writing.begins_storing()
        failed = await self._stored(batch.pick(away))
        left = {at: error for at, error in errors.items() if at not in set(away)}
        return left | {away[at]: error for at, error in failed.items()}

    async def _settle_copies(
        self, writing: _Write, errors: dict[int, BaseException]
    ) -> dict[int, BaseException]:
        """Keep the copies of items that failed because the destination is unavailable; settle the
        others.
        """
        batch, copies = writing.batch, writing.copies or {}
        kept = [
            at for at, error in errors.items() if at in copies and self._is_of_destination(error)
        ]
        ended = sorted(copies[at] for at in copies.keys() - kept)
        batch.settle(kept, Outcome.SPOOLED)
        while ended:
            try:
                await self._running.settle(ended)
                break
            except SinkError:
                if await batch.back_off(self._clock.now() + DISK_PAUSE):
                    break  # they are sent again after the next start
        return {at: error for at, error in errors.items() if at not in set(kept)}

    async def _save(self, writing: _Write) -> None:
        """Store the items of a write that was cut, within the time that it has to end."""
        batch = writing.batch
        if batch.delivery.closed or not await self._copy(writing):
            return
        if not batch.delivery.closed:
            errors: dict[int, BaseException] = dict.fromkeys(batch.unsettled(), StoppedError())
            await self._settle_copies(writing, errors)

    def _is_of_destination(self, error: BaseException) -> bool:
        return classified(error, self.classify) in _AWAY

    async def _stored(self, batch: Batch[Any]) -> dict[int, BaseException]:
        """Store items; return errors. One batch at a time, so that they stay in order."""
        while self._is_storing:
            await self._back_off(batch, math.inf)
        self._is_storing = True
        try:
            return await send(self._store, batch)
        finally:
            self._is_storing = False
            self._changed.fire()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class _Shared(WrappingSink[Any]):
    """A sink of a class with an `async with` of its own, opened once for two batchers."""

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        errors = await send(self.inner, batch)
        return WriteResult.failed(batch, errors) if errors else None


def shared(sink: Sink[Any]) -> Sink[Any]:
    """Return a sink that two batchers may open."""
    return sink if isinstance(sink, Openable) else _Shared(sink)
