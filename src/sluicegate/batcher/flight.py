"""The batches in flight: their items, receipts and slots, and the times that bound them.

1. A flight has at most one slot. Flights that return from a backoff precede fresh batches, in the
   order of their return.
2. A flight may force a slot over the limit. Then no other flight gets one until the count is below
   the limit.
3. One timer serves the flush timeouts of all flights.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from uuid import uuid4

from .._core.batch import Lineage, RowBatch
from .._core.classify import caused
from .._core.clock import Signal
from .._core.delivery.delivery import GRACE, Delivery
from .._core.errors import TimedOutError, UnknownOutcomeError, WithdrawnError
from .._core.order.left_out import WITHDRAWN
from .gathering.pack import matching
from .log import own_context
from .receipt import Doubts

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .._core.batch import Reason
    from .._core.clock import Clock, TimerHandle
    from .._core.delivery.host import Condition
    from .._core.errors import ErrorClass
    from .._core.outcome import Outcome
    from .gathering.pack import Matches, Sealed
    from .governor import Governor, Running
    from .lifecycle import Lifecycle
    from .monitor import Monitor
    from .setup import Setup


T = TypeVar("T")


class FlightHost(Protocol[T]):
    """The dispatcher's side that a flight uses."""

    lifecycle: Lifecycle
    slots: FifoSlots
    monitor: Monitor
    tries: Governor

    @property
    def keeps_slot(self) -> bool: ...

    def slot_given(self) -> None: ...

    def backs_off(self, flight: Flight[T]) -> None: ...

    def book_outcome(
        self,
        flight: Flight[T],
        indices: Sequence[int],
        outcome: Outcome,
        details: Mapping[int, object] | None,
    ) -> None: ...

    def heard(self, flight: Flight[T], errors: Iterable[BaseException]) -> None: ...

    def adapt(self) -> None: ...

    def breaks(self, error: BaseException) -> None: ...


class Flight(Generic[T]):
    """A batch from its start to the end of its write: bookkeeping and slot of its delivery."""

    __slots__ = (
        "_ends",
        "_host",
        "_landing",
        "_stretch",
        "_timer",
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
        "unbooked",
    )

    def __init__(
        self,
        host: FlightHost[T],
        sealed: Sealed[T],
        now: float,
        timer: Alarm,
        *,
        id: str,  # noqa: A002  # as in `Lineage`
        name: str,
        stretch: float,
    ) -> None:
        self.sealed = sealed
        self.has_slot = True
        self.backing_off = False
        self.task: asyncio.Task[dict[int, BaseException]] | None = None
        self.started_at = now
        self.outcomes: dict[Outcome, int] = {}
        self.cut_cause: BaseException | None = None
        self._host = host
        self._stretch = stretch
        self._timer = timer
        """Rings when the first stretch of any flight ends, or earlier."""
        self._verdict: TimerHandle | None = None
        self._landing: Callable[[asyncio.Task[Any]], None] | None = None
        lineage = Lineage(
            id=id,
            reason=sealed.reason,
            name=name,
            oldest_at=sealed.oldest_at,
            sealed_at=sealed.sealed_at,
            tenant=sealed.tenant,
        )
        items = tuple(sealed.items)
        size = self.unbooked = len(items)
        """Number of items whose outcome is not booked, and that do not wait again."""
        delivery = Delivery(size, self, self)
        if sealed.keeps_prefix:
            delivery.keep_prefix()
        self._ends: dict[object, float] = {delivery.activity: now + stretch}
        """The end of each activity's stretch."""
        self.batch = RowBatch(
            items, lineage=lineage, delivery=delivery, keys=sealed.keys, sizes=sealed.sizes
        )
        self.running: Running | None = host.tries.begins(size, sealed, now)
        """The current attempt, for adaptive control."""
        timer.set(host.lifecycle.clock, now + stretch)
        host.slots.take()  # last: nothing would release the slot of a flight that is not complete

    def start(
        self, task: asyncio.Task[dict[int, BaseException]], landed: Callable[[Flight[T], Any], None]
    ) -> None:
        """Call `landed` when the task of the write has ended.

        It runs in the batcher's context, not in that of a write that made room for this one.
        """
        self.task = task
        self._landing = partial(landed, self)
        task.add_done_callback(self._landing, context=self._host.lifecycle.context.copy())

    def lands_in_task(self) -> bool:
        """Return whether the write needs no verdicts; `landed` is then not called."""
        task, delivery = self.task, self.batch.delivery
        if delivery.states.left or delivery.closed or self.cut_cause is not None:
            return False
        if task is None or self._landing is None:
            return False  # a factory of eager tasks is still creating it
        return bool(task.remove_done_callback(self._landing))

    @property
    def left(self) -> int:
        return self.batch.delivery.states.left

    def book(self, items: int) -> None:
        """Note items that have their outcome in all books, or that wait again."""
        self.unbooked -= items

    def cause(self, index: int) -> BaseException | None:
        return self.batch.delivery.error(index) or self.cut_cause

    # -- tries -------------------------------------------------------------------------------------

    def begin_try(self) -> None:
        if self.running is None:
            self.running = self._host.tries.begins(self.left, self.sealed, self.clock.now())

    def end_try(self, *, rests: bool = False) -> None:
        running, self.running = self.running, None
        told = not (self.stopping or isinstance(self.cut_cause, WithdrawnError))
        told = told or self.cut_cause is None
        if running is not None and self._host.tries.ends(
            running, self.clock.now(), rests=rests, told=told
        ):
            self._host.adapt()

    # -- cutting -----------------------------------------------------------------------------------

    def watch(self, activity: object) -> None:
        """Start a stretch: the write is cut if it lasts longer than the flush timeout."""
        if self.cut_cause is None:
            clock = self.clock
            ends_at = self._ends[activity] = clock.now() + self._stretch
            self._timer.set(clock, ends_at)

    def unwatch(self, activity: object) -> None:
        self._ends.pop(activity, None)

    @property
    def stretch_ends_at(self) -> float | None:
        """The end of the first stretch; `None` in a backoff, or once cut."""
        return min(self._ends.values(), default=None)

    def check_stretches(self, now: float) -> None:
        """Cut the write if a stretch is over."""
        ends_at = self.stretch_ends_at
        if ends_at is not None and now >= ends_at:
            error = TimedOutError(
                f"the write was cut off: it ran for more than flush_timeout={self._stretch} s"
            )
            self.heard((error,))
            self.cut(error, now + GRACE)

    def ended(self) -> None:
        """Note the end of the write: nothing cuts it any more."""
        self._landing = None
        self._ends.clear()
        if self._verdict is not None:
            self._verdict.cancel()

    def exited(self, error: BaseException) -> None:
        """Note the exception that ended the write, which `send` lets pass (an exit)."""
        if self.cut_cause is None:
            message = f"the sink raised {type(error).__name__}, which ended the write"
            self.cut_cause = caused(UnknownOutcomeError(message), error)

    def close(self, cause: BaseException) -> None:
        """Give the items of an ended write their verdicts; `cause` is why they have no outcome."""
        self.cut_cause = self.cut_cause or cause
        self.batch.delivery.close()

    def cut(self, cause: BaseException, verdict_at: float) -> None:
        """Cancel the write. At `verdict_at` its items get their verdicts, even if it continues."""
        if self.cut_cause is not None:
            return
        self.cut_cause = cause
        self._ends.clear()
        if self.task is not None:
            self.task.cancel()
        self._verdict = self.clock.call_at(verdict_at, self.batch.delivery.close)

    def release_slot(self) -> None:
        if self.has_slot:
            self._host.slots.give()
            self.has_slot = False

    def withdraw(self, matches: Matches, error: WithdrawnError) -> int:
        """Withdraw the items with matching receipts; return how many end now, as in a backoff.

        A write that has nothing left to send is ended.
        """
        if not (gone := matching(self.sealed.receipts, matches)):
            return 0
        self.batch.delivery.withdraw(gone)
        return self._end_withdrawn(error) if self.backing_off else 0

    def _end_withdrawn(self, error: WithdrawnError) -> int:
        delivery, gone = self.batch.delivery, self.batch.delivery.withdrawn or ()
        if delivery.closed:
            return 0
        ended: dict[Outcome, list[int]] = {}
        left = [index for index in sorted(gone) if not delivery.is_settled(index)]
        for index in left:
            ended.setdefault(delivery.verdict_unsent(index), []).append(index)
        delivery.left_out(dict.fromkeys(left, error))
        for outcome, indices in ended.items():
            delivery.finish(indices, outcome)
        self._host.backs_off(self)
        if not self.left and (len(gone) == len(self.batch) or not delivery.has_stragglers):
            self.cut(error, self.clock.now() + GRACE)
        return len(left)

    # -- slots -------------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        return self._host.lifecycle.clock

    @property
    def deadline(self) -> float | None:
        return self._host.lifecycle.deadline

    @property
    def stopping(self) -> bool:
        return self._host.lifecycle.stopping

    @property
    def waits_for_repair(self) -> bool:
        return True  # a batcher's log reports the wait

    async def pause(self, until: float, *signals: Signal, through_stop: bool) -> None:
        await self._host.lifecycle.pause(until, *signals, through_stop=through_stop)

    def give_slot(self) -> None:
        """Release the slot during a backoff, unless total order needs it."""
        self.backing_off = True
        try:
            self.end_try(rests=True)
            if self.batch.delivery.withdrawn:
                self._end_withdrawn(WithdrawnError(f"not sent again: {WITHDRAWN}"))
            self._host.backs_off(self)
            if self.has_slot and not self._host.keeps_slot:
                self.release_slot()
                self._host.slot_given()
        except BaseException as error:
            self._host.breaks(error)

    async def take_slot(self) -> None:
        while not self.has_slot:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            try:
                self._host.slots.queue(waiter)
                self._host.slot_given()
                await waiter
            except BaseException as error:
                if not isinstance(error, (asyncio.CancelledError, GeneratorExit)):
                    self._host.breaks(error)
                raise
            finally:
                if waiter.done() and not waiter.cancelled():
                    if self.has_slot:  # another branch was faster
                        self._host.slots.give()
                        self._host.slot_given()
                    self.has_slot = True
        self._resume()

    def force_slot(self) -> None:
        """Take a slot immediately after an exception in a backoff, even over the limit."""
        if not self.has_slot:
            self.has_slot = True
            self._host.slots.take()
        self._resume()

    def _resume(self) -> None:
        self.backing_off = False
        try:
            self.begin_try()
        except BaseException as error:
            self._host.breaks(error)

    # -- books -------------------------------------------------------------------------------------

    def book_outcome(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None
    ) -> None:
        self._host.book_outcome(self, indices, outcome, details)

    def throttled(self, until: float) -> None:
        self._host.lifecycle.throttled(until)

    def heard(self, errors: Iterable[BaseException]) -> None:
        self._host.heard(self, errors)

    def reported(self, source: object, condition: Condition | None) -> None:
        self._host.monitor.reported(source, condition)

    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None:
        self._host.monitor.retrying(self.batch, kind, items, delay)


class Flights(Generic[T]):
    """The flights of one batcher, their ids, and one timer for their flush timeouts."""

    def __init__(
        self,
        setup: Setup[T],
        clock: Callable[[], Clock],
        on_error: Callable[[BaseException], object],
    ) -> None:
        self._name, self._stretch = setup.name, setup.limits.stretch
        self._is_ordered = setup.is_ordered
        self._clock = clock
        self._flights: dict[Flight[T], None] = {}
        self._timer = Alarm(self.cut_late, on_error)
        self._id = uuid4().hex
        self._serial = itertools.count(1)
        self._context = own_context()
        self.doubts = Doubts()
        self.by_reason: Counter[Reason] = Counter()
        """Batches started, by reason."""
        self.changed = Signal()
        """Fires when the drain should check again."""

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight[T]]:
        return iter(tuple(self._flights))

    def launch(self, host: FlightHost[T], sealed: Sealed[T], now: float) -> Flight[T]:
        """Put a batch into a slot; its write begins later."""
        batch_id = f"{self._id}-{next(self._serial)}"
        stretch, timer = self._stretch, self._timer
        flight = Flight(host, sealed, now, timer, id=batch_id, name=self._name, stretch=stretch)
        self._flights[flight] = None
        self.by_reason[sealed.reason] += 1
        if self.doubts.count and (doubtful := self.doubts.launched(sealed.receipts)):
            flight.batch.delivery.doubt(doubtful)
        return flight

    def context(self) -> contextvars.Context:
        """The context of a write: empty except for the mark of a batcher's own work."""
        return self._context.copy()

    def discard(self, flight: Flight[T]) -> None:
        """Remove a flight that has ended."""
        self._flights.pop(flight, None)

    def tell_drain(self, *, every: bool) -> None:
        """Notify the drain of an ended flight or wait; until the cut, only the last one counts."""
        if every or not self._flights:
            self.changed.fire()

    def close(self) -> None:
        """Stop the timer: every flight has ended, or is left behind."""
        self._timer.cancel()

    def cut_late(self) -> None:
        """Cut the writes whose stretch is over, and set the timer for the next one."""
        clock = self._clock()
        now = clock.now()
        for flight in self:
            flight.check_stretches(now)
        ends = [at for flight in self._flights if (at := flight.stretch_ends_at) is not None]
        if ends:
            self._timer.set(clock, min(ends))

    @property
    def hold_back(self) -> bool:
        """Return whether the next batch waits for one in a backoff without a slot, for total order."""
        if not self._is_ordered or not self._flights:
            return False
        return not all(flight.batch.delivery.lets_pass for flight in self._flights)

    @property
    def any_lets_pass(self) -> bool:
        """Whether any flight lets later batches go first."""
        return any(flight.batch.delivery.lets_pass for flight in self._flights)

    @property
    def all_settled(self) -> bool:
        """Whether every item has an outcome."""
        return all(flight.left == 0 for flight in self._flights)

    def left_until(self, number: int) -> int:
        """Count the items without an outcome in batches up to this number."""
        return sum(flight.left for flight in self._flights if flight.sealed.number <= number)

    @property
    def backing_off(self) -> list[Flight[T]]:
        """Flights in a backoff."""
        return [flight for flight in self if flight.backing_off]


class FifoSlots:
    """A count of flush slots, and the queue of returning flights."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._returning: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> bool:
        """Whether a slot is free."""
        return self.used < self.limit

    def resize(self, limit: int) -> None:
        """Change the limit; slots in use are kept."""
        self.limit = limit

    def take(self) -> None:
        """Take a slot, even over the limit."""
        self.used += 1

    def give(self) -> None:
        """Release a slot."""
        self.used -= 1

    def queue(self, waiter: asyncio.Future[None]) -> None:
        """Queue a future for a slot, ahead of fresh batches; it is set together with the slot."""
        self._returning.append(waiter)

    def grant(self) -> bool:
        """Give a free slot to the first waiter; return whether there was one."""
        while self._returning and self.free:
            waiter = self._returning.popleft()
            if not waiter.done():
                self.take()
                waiter.set_result(None)
                return True
        return False


class Alarm:
    """Calls `ring` at the earliest time that was set, and `on_error` if that raises."""

    __slots__ = ("_at", "_on_error", "_ring", "_timer")

    def __init__(
        self, ring: Callable[[], object], on_error: Callable[[BaseException], object]
    ) -> None:
        self._ring = ring
        self._on_error = on_error
        self._timer: TimerHandle | None = None
        self._at = 0.0

    def set(self, clock: Clock, when: float) -> None:
        """Ring at `when`, unless an earlier time is set."""
        if self._timer is not None:
            if self._at <= when:
                return
            self._timer.cancel()
        self._at = when
        self._timer = clock.call_at(when, self._rings)

    def cancel(self) -> None:
        """Cancel the alarm."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer = None
        try:
            self._ring()
        except BaseException as error:
            self._on_error(error)
