"""One sealed batch on its way: its items, receipts and slot, and the timers that bound it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from .._core.batch import RowBatch
from .._core.delivery.delivery import GRACE, Delivery
from .._core.errors import TimedOutError
from .._core.lineage import Lineage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .._core.clock import Clock, Signal, TimerHandle
    from .._core.condition import Condition
    from .._core.errors import ErrorClass
    from .._core.outcome import Outcome
    from .adaptive.governor import Running
    from .gathering.plain import Sealed
    from .monitor import Monitor
    from .slots import FifoSlots

T = TypeVar("T")


class Engine(Protocol[T]):
    """What a flight needs from its batcher."""

    clock: Clock
    slots: FifoSlots

    @property
    def deadline(self) -> float | None: ...
    @property
    def stopping(self) -> bool: ...
    @property
    def keeps_slot(self) -> bool: ...
    async def pause(self, until: float, *signals: Signal, through_stop: bool) -> None: ...
    def slot_given(self) -> None: ...
    def backs_off(self, flight: Flight[T]) -> None: ...
    def throttled(self, until: float) -> None: ...
    def try_begins(self, flight: Flight[T]) -> None: ...
    def heard(self, flight: Flight[T], errors: Iterable[BaseException]) -> None: ...
    @property
    def monitor(self) -> Monitor: ...
    def try_ends(self, flight: Flight[T], *, rests: bool = False) -> None: ...
    def item_settled(
        self,
        flight: Flight[T],
        indices: Sequence[int],
        outcome: Outcome,
        details: Mapping[int, object] | None,
    ) -> None: ...


class Flight(Generic[T]):
    """A batch between being taken by a worker and the end of its write. The books and
    slots of its delivery.
    """

    __slots__ = (
        "_engine",
        "_stretch",
        "_timers",
        "_verdict",
        "backing_off",
        "batch",
        "cut_cause",
        "has_slot",
        "outcomes",
        "running",
        "sealed",
        "started_at",
        "task",
    )

    def __init__(
        self, engine: Engine[T], sealed: Sealed[T], *, batch_id: str, name: str, stretch: float
    ) -> None:
        self.sealed = sealed
        self.has_slot = False
        self.backing_off = False
        self.task: asyncio.Task[dict[int, BaseException]] | None = None
        self.started_at = engine.clock.now()
        self.outcomes: dict[Outcome, int] = {}
        self.cut_cause: BaseException | None = None
        self.running: Running | None = None
        """The try that is under way, where somebody adapts to it."""
        self._engine = engine
        self._stretch = stretch
        self._timers: dict[object, TimerHandle] = {}
        self._verdict: TimerHandle | None = None
        self.batch = RowBatch(
            tuple(sealed.items),
            lineage=Lineage(
                id=batch_id,
                reason=sealed.reason,
                name=name,
                oldest_at=sealed.oldest_at,
                sealed_at=sealed.sealed_at,
                tenant=sealed.tenant,
            ),
            delivery=Delivery(
                len(sealed.items), books=self, slots=self, keeps_prefix=sealed.keeps_prefix
            ),
            keys=sealed.keys,
            sizes=sealed.sizes,
        )

    @property
    def left(self) -> int:
        """Items that have no outcome yet."""
        return self.batch.delivery.left

    def cause(self, index: int) -> BaseException | None:
        """Why an item failed, as far as anybody knows."""
        return self.batch.delivery.error(index) or self.cut_cause

    # -- cutting -----------------------------------------------------------------------------------

    def watch(self, activity: object) -> None:
        """A new stretch begins: cut the write if it lasts longer than the flush timeout."""
        self.unwatch(activity)
        if self.cut_cause is None:
            self._timers[activity] = self.clock.call_at(
                self.clock.now() + self._stretch, self._timed_out
            )

    def unwatch(self, activity: object) -> None:
        """The stretch has ended."""
        timer = self._timers.pop(activity, None)
        if timer is not None:
            timer.cancel()

    def ended(self) -> None:
        """The write has ended; nothing is waited for any more."""
        self._unwatch_all()
        if self._verdict is not None:
            self._verdict.cancel()

    def _unwatch_all(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _timed_out(self) -> None:
        message = f"the write was cut off: it ran for more than flush_timeout={self._stretch} s"
        error = TimedOutError(message)
        self.heard((error,))
        self.cut(error, self.clock.now() + GRACE)

    def cut(self, cause: BaseException, verdict_at: float) -> None:
        """Cancel the write; at `verdict_at` its items get their verdicts, whether or not it has
        ended.
        """
        if self.cut_cause is not None:
            return
        self.cut_cause = cause
        self._unwatch_all()
        if self.task is not None:
            self.task.cancel()
        self._verdict = self.clock.call_at(verdict_at, self.batch.delivery.close)

    # -- the delivery's books and slots -----------------------------------------------------------

    @property
    def clock(self) -> Clock:
        """The batcher's clock."""
        return self._engine.clock

    @property
    def deadline(self) -> float | None:
        """When a shutdown will cut writes."""
        return self._engine.deadline

    @property
    def stopping(self) -> bool:
        """Whether a shutdown has begun."""
        return self._engine.stopping

    @property
    def waits_for_repair(self) -> bool:
        """A batcher waits, and its log tells of it."""
        return True

    def settled(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None
    ) -> None:
        """Book outcomes."""
        self._engine.item_settled(self, indices, outcome, details)

    async def pause(self, until: float, *signals: Signal, through_stop: bool) -> None:
        """Wait out a backoff, or until a shutdown begins."""
        await self._engine.pause(until, *signals, through_stop=through_stop)

    def give_slot(self) -> None:
        """A backoff begins: the slot serves others unless total order needs it."""
        self.backing_off = True
        self._engine.try_ends(self, rests=True)
        self._engine.backs_off(self)
        if self.has_slot and not self._engine.keeps_slot:
            self.has_slot = False
            self._engine.slots.give()
            self._engine.slot_given()

    async def take_slot(self) -> None:
        """The backoff is over: wait for a slot."""
        while not self.has_slot:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._engine.slots.queue(waiter)
            self._engine.slot_given()
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._got_slot()
                raise
            self._got_slot()
        self.backing_off = False
        self._engine.try_begins(self)

    def _got_slot(self) -> None:
        if self.has_slot:  # another branch was faster
            self._engine.slots.give()
            self._engine.slot_given()
        self.has_slot = True

    def force_slot(self) -> None:
        """A backoff was left by an exception: go on at once, over the limit if need be."""
        if not self.has_slot:
            self.has_slot = True
            self._engine.slots.take()
        self.backing_off = False
        self._engine.try_begins(self)

    def throttled(self, until: float) -> None:
        """The destination asked for a pause."""
        self._engine.throttled(until)

    def heard(self, errors: Iterable[BaseException]) -> None:
        """A write, or a part of one, has ended with these errors."""
        self._engine.heard(self, errors)

    def reported(self, source: object, condition: Condition | None) -> None:
        """A decorator tells the state of its destination."""
        self._engine.monitor.reported(source, condition)

    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None:
        """Items of the batch are to be sent again."""
        self._engine.monitor.retrying(self.batch, kind, items, delay)
