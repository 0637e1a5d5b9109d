"""What every batcher shares: the ledger, the flush slots, the flights, the one timer. A thin shell
around the pure parts.

1. State changes in one stretch without `await`; every stretch ends with `advance`, which starts
   what may start, sets the timer and works out `limit`.
2. `limit` is what keeps the way of an ordinary item short: while the open batch is shorter than it,
   an item is simply appended. It covers at once: the batch is empty (the first item needs the time)
   or about to be full, the ledger is full, somebody waits for room, items have to be measured, it
   is time to let other tasks run, the batcher is closed.
3. Counts are kept per batch, never per item: how many were accepted follows from the lengths.
4. A flight's items leave the ledger when they are settled; its slot is free when its write has
   ended. A sink that ignores its cancellation keeps its slot: a second write beside it would break
   order and concurrency.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

from .._core.clock import Signal, wait_until
from .._core.errors import (
    BatcherBroken,
    ClosedError,
    DeadLetterLimit,
    KeyStopped,
    StoppedError,
    UnknownOutcomeError,
)
from .._core.ledger import Room
from .._core.lineage import Reason
from .._core.observer import Observer, Observers
from .._core.order.prefix import leaders
from .._core.outcome import Outcome
from .._core.runtime.exits import exit_later
from .._core.runtime.own_context import own_context
from .._core.send import send
from .._core.tally import Tally
from .._core.told import repr_of
from . import log
from .adaptive.adaptive import Setting
from .adaptive.governor import Governor
from .flight import Flight
from .gathering.plain import Accumulator, Evicted, Leftover, Sealed
from .monitor import Monitor
from .slots import FifoSlots

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from .._core.clock import Clock, TimerHandle
    from .._core.ledger import Waiter
    from .._core.sink import Sink
    from .adaptive.adaptive import Adaptive
    from .bounds import Bound
    from .gathering.add_group import AddGroup
    from .limits import Limits
    from .receipt import ReceiptBase

T = TypeVar("T")

YIELD_EVERY = 128
"""Items that a producer may add without letting other tasks run: a producer in a tight loop never
suspends otherwise.
"""
LONG_WAY = 8
"""As how many of those an item counts that comes by the long way, which takes at least as many
times as long as the short one.
"""

FailureHandler = Callable[[list[Any], BaseException], object]


class Fence:
    """Waits for every batch up to a number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcomes: dict[Outcome, int] = {}
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.not_before = 0
        """How many items, at least, have their outcome by the time that this opens: counting what
        is in front of it means looking everywhere.
        """

    def add(self, outcomes: Mapping[Outcome, int]) -> None:
        """Count what one batch came to."""
        for outcome, count in outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count

    def open(self) -> None:
        """Whoever waits need not wait any longer."""
        if not self.passed.done():
            self.passed.set_result(None)


class Engine(Generic[T]):
    """The running part of a batcher: made when it opens."""

    def __init__(  # noqa: PLR0915  # a line for each part of its state
        self,
        sink: Sink[T],
        limits: Limits,
        *,
        name: str,
        clock: Clock,
        observers: Iterable[Observer],
        on_failure: str | FailureHandler,
        sized: bool,
        sink_of_oversize: Sink[T] | None = None,
        adaptive: Adaptive | None = None,
        accumulator: Accumulator[T],
        sink_of_parked: Sink[T] | None = None,
    ) -> None:
        self.clock = clock
        self.limits = limits
        self.name = name
        self.slots = FifoSlots(limits.workers)
        self.room = Room(limits.ledger_items, limits.max_pending_bytes)
        self.accumulator = accumulator
        self.items = accumulator.items
        """The open batch, and the short way in."""
        self.limit = 0
        """While that is shorter than this, an item may simply be appended to it."""
        self.try_limit = 0
        """The same for `try_add`, which cannot let other tasks run and so need not stop for
        them.
        """
        self.counts: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.refused = 0
        self.flushes: dict[str, int] = {}
        self.flights: set[Flight[T]] = set()
        self.accepting = True
        self.admitting = False
        """Whether a closing batcher still lets in who waited before."""
        self.broken: BaseException | None = None
        self.stopping = False
        self.deadline: float | None = None
        self.throttled_until = 0.0
        self.unsent: list[T] = []
        """Items handed back: known not to be applied. What was on a flight stands before what no
        worker had taken, as it came in.
        """
        self.held: list[Leftover[T]] | None = None
        """Items known not to be applied that a last resort may still take; `None` where there is no
        last resort.
        """
        self.parked = 0
        """How many of what was given up had been held behind a failed item of its key."""
        self.unknown: list[T] = []
        """Items whose outcome became unknown since a shutdown began."""
        self.observers = Observers(observers)
        self.on_change: Callable[[], None] | None = None
        """Called when a flight has ended, or a producer waits no longer; the drain listens."""
        self.on_room: Callable[[], None] | None = None
        """Called when the room that is left may have changed; what lends it to threads listens."""
        self._sink = sink
        self._sink_of_oversize = sink_of_oversize
        self._sized = sized
        self._sink_of_parked = sink_of_parked
        self._on_failure = on_failure
        self._flying = 0
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0
        self._handed_back = 0
        self._gave_up = False
        self._fences: list[Fence] = []
        self._stop_signal = Signal()
        self._id = uuid4().hex
        self._serial = itertools.count(1)
        self._context = own_context()
        self._unyielded = 0
        self._counted = 0
        self.waiting: set[Waiter] = set()
        """Those who wait for room, and who have been granted it just now."""
        self.waits = 0
        """How often one has had to."""
        self.monitor = Monitor(self, sink)
        self.unlisted = log.Unlisted(name, sink)
        self._governor = None if adaptive is None else Governor(adaptive, limits, sink)
        if self._governor is not None:
            self.slots.limit, self.accumulator.max_items = self._governor.setting

    # -- what is inside ----------------------------------------------------------------------------

    @property
    def inside(self) -> int:
        """Items that do not have their outcome."""
        return self.accumulator.queued + self._flying + len(self.held or ())

    @property
    def producers(self) -> int:
        """Producers that wait for room."""
        return len(self.waiting)

    @property
    def keeps_slot(self) -> bool:
        """Whether a batch keeps its slot while it backs off: with one worker, order would be lost
        otherwise, unless the accumulator keeps it.
        """
        return self._keeps_batches_in_order and not any(
            flight.batch.delivery.lets_pass for flight in self.flights
        )

    @property
    def _keeps_batches_in_order(self) -> bool:
        return self.limits.workers == 1 and not self.accumulator.keeps_order

    @property
    def _must_wait_in_order(self) -> bool:
        """Whether a fresh batch may not start, since one in front of it that has no slot at the
        moment does not let it pass.
        """
        return self._keeps_batches_in_order and not all(
            flight.batch.delivery.lets_pass for flight in self.flights
        )

    def tally(self) -> Tally:
        """The counts at this moment."""
        backing_off = sum(flight.left for flight in tuple(self.flights) if flight.backing_off)
        settled = sum(self.counts.values())
        return Tally(
            accepted=settled + self.inside,
            queued=self.accumulator.queued + len(self.held or ()),
            in_flight=self._flying - backing_off,
            backing_off=backing_off,
            refused=self.refused,
            **{outcome.value: count for outcome, count in self.counts.items()},
        )

    def closed_error(self) -> ClosedError:
        """Why nothing is accepted."""
        if self.broken is None:
            return ClosedError(f"batcher {self.name!r} is closed and takes no more items")
        error = BatcherBroken(
            f"batcher {self.name!r} has stopped after a failure: {repr_of(self.broken)}"
        )
        error.__cause__ = self.broken
        return error

    # -- in ----------------------------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """Whether nothing is inside, on its way in, or at the destination.

        What is held does not go by itself, so neither that nor who waits for its room is waited
        for.
        """
        queued = self.accumulator
        if self.flights or queued.queued != queued.held:
            return False
        return not (self.admitting and any(waiter.granted for waiter in self.waiting))

    def admits(self, items: int, size: int) -> bool:
        """Whether so much may come in now without overtaking anybody."""
        return not self.room.contended and self.room.fits(self.inside, items, size)

    @property
    def yield_due(self) -> bool:
        """Whether the running producer should let other tasks run before its next item."""
        return self._unyielded + len(self.items) - self._counted >= YIELD_EVERY

    def yielded(self) -> None:
        """Other tasks run, or are about to."""
        self._unyielded = 0
        self._counted = len(self.items)

    def came(self, items: int) -> None:
        """So many come by the long way, and have not let other tasks run; those that find no room
        count as well.
        """
        self._unyielded += LONG_WAY * items

    def _count_short_way(self) -> None:
        self._unyielded += len(self.items) - self._counted
        self._counted = len(self.items)

    def accept(self, parcel: AddGroup[T]) -> None:
        """Take items in, in one stretch."""
        now = self.clock.now()
        self._count_short_way()
        self.room.bytes_inside += sum(parcel.sizes)
        for item, size, receipt, key in zip(
            parcel.items, parcel.sizes, parcel.receipts, parcel.keys, strict=True
        ):
            self.accumulator.offer(item, size, receipt, now, key)
        self._counted = len(self.items)
        self._fail_keys()
        self.advance(now)

    def accept_plain(self, items: Sequence[T]) -> None:
        """Take in items that nothing measures and nobody has receipts for, in one stretch."""
        now = self.clock.now()
        self.accumulator.offer_all(items, now)
        self.advance(now)

    def drop(self, items: Sequence[T], receipts: Sequence[ReceiptBase | None]) -> None:
        """Accept items and give them up at once."""
        self.count_dropped(receipts)
        self.tell_dropped(items)

    def count_dropped(self, receipts: Sequence[ReceiptBase | None]) -> None:
        """Book items that are given up."""
        self.counts[Outcome.DROPPED] += len(receipts)
        for receipt in receipts:
            if receipt is not None:
                receipt.resolve(Outcome.DROPPED, None, None)

    def tell_dropped(self, items: Sequence[T]) -> None:
        """Tell observers of it, once everything else is done: they may add something."""
        if self.observers and items:
            self.observers.tell(lambda observer: observer.on_dropped(self.name, items, "overflow"))

    def evict_for(self, bound: Bound[T]) -> list[T]:
        """Drop the oldest items that no worker has taken until there is room; return them."""
        gone: list[Evicted[T]] = []
        self._count_short_way()
        while not bound.fits and (evicted := bound.evict()) is not None:
            self.room.bytes_inside -= evicted.size
            gone.append(evicted)
        self._counted = len(self.items)
        self.count_dropped([evicted.receipt for evicted in gone])
        self.check_fences()
        return [evicted.item for evicted in gone]

    def advance(self, now: float) -> None:
        """Start what may start, set the timer, and work out the short way in. Every change of state
        ends here.
        """
        self._pump(now)
        self._arm(now)
        self.refresh()

    def refresh(self) -> None:
        """Work out `limit` and `try_limit`."""
        if self.on_room is not None:
            self.on_room()
        self._count_short_way()
        self.items = self.accumulator.items
        filled = self._counted = len(self.items)
        spare = self.accumulator.spare
        if not self.accepting or self._sized or spare <= 0 or self.room.contended:
            self.limit = self.try_limit = 0
            return
        self.try_limit = filled + min(spare, self.room.left(self.inside))
        self.limit = min(self.try_limit, filled + max(0, YIELD_EVERY - self._unyielded))

    def _arm(self, now: float) -> None:
        if not self.accepting:
            return
        due = self.accumulator.due_at()
        if due is None or due <= now:
            return
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.clock.call_at(due, self._on_timer)

    def begun(self) -> None:
        """The short way in has begun a batch: its time starts."""
        now = self.clock.now()
        self.accumulator.begin(now)
        self._arm(now)

    def passed(self) -> None:
        """The short way in has put an item past the open batch, into a lane: it takes room all the
        same.
        """
        self._unyielded += 1
        self.limit -= 1
        self.try_limit -= 1

    def _on_timer(self) -> None:
        self._timer = None
        self.advance(self.clock.now())

    # -- out ---------------------------------------------------------------------------------------

    def _pump(self, now: float) -> None:
        while self.slots.free:
            if self.slots.grant():
                continue
            if self.flights and self._must_wait_in_order:
                return
            if self.broken is not None:
                return  # what is on its way may come back from a backoff; nothing else starts
            sealed = self.accumulator.take(now) or self._take_early(now)
            if sealed is None:
                return
            self._launch(sealed)

    def _take_early(self, now: float) -> Sealed[T] | None:
        """The open batch before it is due: because the batcher closes, or because somebody waits
        for room and a worker has nothing to do.

        Room that was granted and not yet used will fill the batch, so it is waited for: sealing on
        every free slot would make batches of one for ever.
        """
        if not self.accumulator.queued:
            return None
        if self.stopping:
            self.accumulator.seal(Reason.SHUTDOWN, now)
        elif self.room.waiting and not self.room.granted:
            self.accumulator.seal(Reason.PRESSURE, now)
        return self.accumulator.take(now)

    def _launch(self, sealed: Sealed[T]) -> None:
        batch_id = f"{self._id}-{next(self._serial)}"
        flight = Flight(
            self, sealed, batch_id=batch_id, name=self.name, stretch=self.limits.stretch
        )
        self.slots.take()
        flight.has_slot = True
        self.try_begins(flight)
        self.flights.add(flight)
        self._flying += len(sealed.items)
        self.flushes[sealed.reason.value] = self.flushes.get(sealed.reason.value, 0) + 1
        flight.batch.delivery.new_stretch()
        loop = asyncio.get_running_loop()
        flight.task = loop.create_task(
            self._fly(flight), name=f"penstock flush {batch_id}", context=self._context.copy()
        )
        flight.task.add_done_callback(lambda task: self._landed(flight, task))
        if self.observers:
            self.observers.tell(lambda observer: observer.on_sealed(flight.batch))

    async def _fly(self, flight: Flight[T]) -> dict[int, BaseException]:
        if self.observers:
            self.observers.tell(lambda observer: observer.on_flush_start(flight.batch))
        if flight.sealed.spilled and self._sink_of_parked is not None:
            return await send(self._sink_of_parked, flight.batch)
        most = self.limits.max_bytes
        if self._sink_of_oversize is not None and most is not None and flight.sealed.bytes > most:
            return await send(self._sink_of_oversize, flight.batch)
        return await send(self._sink, flight.batch)

    def _landed(self, flight: Flight[T], task: asyncio.Task[dict[int, BaseException]]) -> None:
        """A write has ended, however that came about: even before its task had its first step."""
        flight.ended()
        flight.cut_cause = flight.cut_cause or _exit_of(task)
        try:
            self.try_ends(flight)
            failed = self._book_failures(flight, self._put_back(flight, _errors_of(task)))
            self.flights.discard(flight)
            self.accumulator.done(flight.sealed, list(failed))
            self._fail_keys()
            self.check_fences()  # what went back may be held now
            if flight.has_slot:
                flight.has_slot = False
                self.slots.give()
            if failed:
                self._report_failure(flight, failed)
            self._tell_flushed(flight, failed)
        except BaseException as error:  # a bug of ours: stop, and say so to every producer
            self.break_down(error)
            exit_later(error)
        flight.batch.delivery.detach()
        self.yielded()
        self.changed()

    def changed(self) -> None:
        """A flight has ended, or a producer waits no longer."""
        self.advance(self.clock.now())
        if self.on_change is not None:
            self.on_change()

    def _put_back(
        self, flight: Flight[T], errors: dict[int, BaseException]
    ) -> dict[int, BaseException]:
        """Let what only stands behind a failed item of its key wait again, to be sent after it;
        return the other errors.
        """
        delivery = flight.batch.delivery
        if not delivery.keeps_prefix or delivery.closed or not errors:
            return errors
        behind = leaders(flight.batch, errors)
        back = [i for i, error in errors.items() if i in behind or isinstance(error, KeyStopped)]
        back = [i for i in back if i not in delivery.maybe_applied]
        if self._gave_up:
            delivery.finish(back, Outcome.UNSENT)
        else:
            delivery.withdraw(back)
            self._flying -= len(back)
            self.accumulator.put_back(flight.sealed, back)
            if (
                back and flight.left == 0
            ):  # its last items have gone back, and nothing more of it is to be settled
                self._pass_fences(flight)
        gone = set(back)
        return {i: error for i, error in errors.items() if i not in gone}

    def _book_failures(
        self, flight: Flight[T], errors: dict[int, BaseException]
    ) -> dict[int, BaseException]:
        """Give every item that is left its outcome; return the errors of those that ended badly."""
        delivery = flight.batch.delivery
        if delivery.closed:
            return self._cut_items(flight)
        by_outcome: dict[Outcome, list[int]] = {}
        for index, error in errors.items():
            outcome = delivery.ended(index, error)
            by_outcome.setdefault(outcome, []).append(index)
        for outcome, indices in by_outcome.items():
            delivery.finish(indices, outcome)
        if delivery.left:
            delivery.close()
            return {**errors, **self._cut_items(flight)}
        return errors

    @staticmethod
    def _cut_items(flight: Flight[T]) -> dict[int, BaseException]:
        delivery = flight.batch.delivery
        cause = flight.cut_cause or UnknownOutcomeError("the write was cut off")
        return {
            index: delivery.error(index) or cause
            for index in range(len(flight.batch))
            if not delivery.verdict(index).is_success
        }

    def _tell_flushed(self, flight: Flight[T], failed: Mapping[int, BaseException]) -> None:
        if self.observers:
            seconds = self.clock.now() - flight.started_at
            self.observers.tell(lambda observer: observer.on_flushed(flight.batch, seconds, failed))

    def _report_failure(self, flight: Flight[T], failed: dict[int, BaseException]) -> None:
        log.failed_flush(flight.batch, failed)
        limit = next(
            (error for error in failed.values() if isinstance(error, DeadLetterLimit)), None
        )
        if limit is not None:
            self.break_down(limit)
        elif self._on_failure == "crash":
            self.break_down(next(iter(failed.values())))
        elif callable(self._on_failure):
            by_error: dict[int, list[int]] = {}
            for index, error in failed.items():
                by_error.setdefault(id(error), []).append(index)
            for indices in by_error.values():
                self._hand_over(
                    [flight.batch[i] for i in indices], failed[indices[0]], self._on_failure
                )

    def _hand_over(self, items: list[T], error: BaseException, handler: FailureHandler) -> None:
        """Call the program's failure handler. Whatever it raises stops the batcher, and it still
        gets the other items of the batch.
        """
        try:
            handler(items, error)
        except BaseException as raised:  # told to every producer
            self.break_down(raised)
            exit_later(raised)

    def item_settled(
        self,
        flight: Flight[T],
        indices: Sequence[int],
        outcome: Outcome,
        details: Mapping[int, object] | None,
    ) -> None:
        """Book outcomes of a flight's items: they leave the ledger now, and their receipts
        resolve.
        """
        self._flying -= len(indices)
        if outcome is Outcome.UNSENT and self.held is not None:
            sealed = flight.sealed
            back = [
                Leftover(
                    flight.batch[i], sealed.receipts.get(i), sealed.number, tenant=sealed.tenant
                )
                for i in indices
            ]
            self.held[self._handed_back : self._handed_back] = back
            self._handed_back += len(back)
            self.accumulator.stop(flight.sealed, indices)
            if flight.left == 0:
                self._pass_fences(flight)
            return
        flight.outcomes[outcome] = flight.outcomes.get(outcome, 0) + len(indices)
        self.counts[outcome] += len(indices)
        if outcome is Outcome.UNSENT:
            self.unsent[self._handed_back : self._handed_back] = [flight.batch[i] for i in indices]
            self._handed_back += len(indices)
        elif outcome is Outcome.UNKNOWN and self.stopping:
            self.unknown.extend(flight.batch[i] for i in indices)
        sizes = flight.sealed.sizes
        if sizes is not None:
            self.room.bytes_inside -= (
                sum(sizes) if len(indices) == len(sizes) else sum(sizes[i] for i in indices)
            )
        receipts = flight.sealed.receipts
        if receipts:
            for index in indices:
                receipt = receipts.get(index)
                if receipt is not None:
                    cause = None if outcome.is_success else flight.cause(index)
                    receipt.resolve(outcome, cause, details.get(index) if details else None)
        if self.observers:
            self.observers.tell(
                lambda observer: observer.on_outcome(flight.batch, outcome, indices)
            )
        if self._stops_keys(flight, outcome):
            self.accumulator.stop(flight.sealed, indices)
        self.room_freed()
        if flight.left == 0:
            self._pass_fences(flight)

    def _stops_keys(self, flight: Flight[T], outcome: Outcome) -> bool:
        """Whether what comes after items that ended so has to wait: they are handed back, or failed
        for good.
        """
        if outcome is Outcome.UNSENT:
            return self.stopping
        if not self.accumulator.holds_keys or flight.sealed.spilled:
            return False
        return outcome in {Outcome.DEAD_LETTERED, Outcome.REJECTED}

    def let_go(self, key: Hashable) -> int:
        """Let what is held of a key go; return how many items that are. `key` is what the
        accumulator's `identity` says of its items.
        """
        now = self.clock.now()
        count = self.accumulator.let_go(key, now)
        self.advance(now)
        return count

    def _fail_keys(self) -> None:
        """What comes after a failed item of its key fails too, where that is the policy."""
        gone = self.accumulator.failed()
        if not gone:
            return
        self.room.bytes_inside -= sum(item.size for item in gone)
        error = StoppedError("not sent: an earlier item of its key has failed for good")
        self.end(gone, Outcome.REJECTED, error)
        log.keys_failed(self.name, len(gone))
        self.room_freed()
        self.check_fences()

    def backs_off(self, flight: Flight[T]) -> None:
        """A flight is not at its destination: keys whose items have ended need not wait for the
        rest of their batch.

        Unless a branch that nobody waits for may still be behind with them.
        """
        delivery = flight.batch.delivery
        if self.accumulator.keeps_order and not delivery.is_fresh and not delivery.has_stragglers:
            self.accumulator.settled(
                flight.sealed,
                [index for index in range(len(flight.batch)) if delivery.is_settled(index)],
            )
            self._fail_keys()

    def room_freed(self) -> None:
        """Let those who wait have the room."""
        if self.accepting or self.admitting:
            self.room.grant(self.inside)
            self.refresh()

    def give_up(self, cause: BaseException) -> None:
        """End everything that no worker has taken as unsent, or hold it for the last resort."""
        self._gave_up = True
        if self.accumulator.holds_keys:
            self.parked += self.accumulator.held
        self.room.bytes_inside -= self.accumulator.queued_bytes
        items = self.accumulator.clear(self.clock.now())
        if self.held is not None:
            self.held += items
        else:
            self.end(items, Outcome.UNSENT, cause)
        self.check_fences()

    def end(
        self, items: Sequence[Leftover[T]], outcome: Outcome, cause: BaseException | None
    ) -> None:
        """Give items that are on no flight their outcome; the caller then calls `check_fences`."""
        self.counts[outcome] += len(items)
        if outcome is Outcome.UNSENT:
            self.unsent.extend(item.item for item in items)
        for item in items:
            if item.receipt is not None:
                item.receipt.resolve(outcome, cause, None)
        for fence in self._fences:
            behind = sum(1 for item in items if item.number <= fence.number)
            if behind:
                fence.add({outcome: behind})

    def seal_open(self, now: float) -> None:
        """Seal the open batch because somebody asked for it."""
        self.accumulator.seal(Reason.MANUAL, now)

    # -- adapting ----------------------------------------------------------------------------------

    def try_begins(self, flight: Flight[T]) -> None:
        """A flight has its slot, and goes to its destination."""
        if self._governor is not None and flight.running is None:
            flight.running = self._governor.begins(
                flight.left,
                self.clock.now(),
                of_tenant=flight.sealed.share is not None,
                full=flight.sealed.reason in {Reason.SIZE, Reason.BYTES},
            )

    def heard(self, flight: Flight[T], errors: Iterable[BaseException]) -> None:
        """Its try has met errors."""
        self.monitor.heard(errors)
        self.unlisted.look_at(errors)
        if self._governor is not None and flight.running is not None:
            self._governor.heard(flight.running, errors)

    def try_ends(self, flight: Flight[T], *, rests: bool = False) -> None:
        """A flight backs off, or has ended."""
        if self._governor is None or flight.running is None:
            return
        one, flight.running = flight.running, None
        if self._governor.ends(
            one, self.clock.now(), rests=rests, told=flight.cut_cause is None or not self.stopping
        ):
            self._follow(self._governor)

    def _follow(self, governor: Governor) -> None:
        """Apply a setting. What is under way goes on; what waits is cut when it is taken."""
        before = Setting(self.slots.limit, self.accumulator.max_items)
        self.slots.limit, max_items = governor.setting
        log.adapted(self.name, before, governor.setting)
        self.observers.tell(lambda observer: observer.on_adapted(self.name, *governor.setting))
        self.accumulator.resize(max_items, self.clock.now())
        self.refresh()

    # -- fences ------------------------------------------------------------------------------------

    def fence(self) -> Fence:
        """A fence around everything accepted so far."""
        fence = Fence(self.accumulator.last_number)
        self._fences.append(fence)
        self.check_fences()
        return fence

    def before(self, fence: Fence) -> int:
        """Items in front of the fence that are still inside, and not held until somebody says
        otherwise.
        """
        flying = sum(flight.left for flight in self.flights if flight.sealed.number <= fence.number)
        held = sum(1 for item in self.held or () if item.number <= fence.number)
        return flying + held + self.accumulator.queued_until(fence.number)

    def remove(self, fence: Fence) -> None:
        """Nobody waits for this fence any more."""
        if fence in self._fences:
            self._fences.remove(fence)

    def _pass_fences(self, flight: Flight[T]) -> None:
        for fence in self._fences:
            if flight.sealed.number <= fence.number:
                fence.add(flight.outcomes)
        self.check_fences()

    def check_fences(self) -> None:
        """Open the fences that have nothing in front of them."""
        if not self._fences:
            return
        ended = sum(self.counts.values())
        for fence in tuple(self._fences):
            if ended < fence.not_before and not self.accumulator.held_keys:
                continue
            before = self.before(fence)
            fence.not_before = ended + before
            if not before:
                self._fences.remove(fence)
                fence.open()

    # -- pauses, throttling, stopping --------------------------------------------------------------

    async def pause(self, until: float, *signals: Signal, through_stop: bool) -> None:
        """Wait until the clock reads `until`, one of `signals` fires, or stopping begins, unless
        that is waited through.
        """
        stop = () if through_stop else (self._stop_signal,)
        await wait_until(self.clock, until, *stop, *signals)

    def slot_given(self) -> None:
        """A slot may be free."""
        self.advance(self.clock.now())

    def throttled(self, until: float) -> None:
        """The destination asked for a pause."""
        self.throttled_until = max(self.throttled_until, until)

    def stop_accepting(self, *, admit_waiting: bool = False) -> None:
        """No more items. Whoever waits for room is told so, or with `admit_waiting` is still let in
        as room comes free.
        """
        self.accepting = False
        self.admitting = admit_waiting
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not admit_waiting:
            self.turn_away()
        self.refresh()

    def turn_away(self) -> None:
        """Tell whoever waits for room that there will be none."""
        self.admitting = False
        for waiter in (*self.room.turn_away(), *self.accumulator.turn_away()):
            if not waiter.future.done():
                waiter.future.set_exception(self.closed_error())

    def begin_stop(self) -> None:
        """End every backoff with an immediate try; from now on they are shortened."""
        self.stopping = True
        self.accumulator.begin_stop()
        self._stop_signal.fire()

    def deadline_moved(self, deadline: float) -> None:
        """Writes are cut earlier than backoffs reckoned with."""
        self.deadline = deadline
        self._stop_signal.fire()

    def break_down(self, error: BaseException) -> None:
        """Stop for good: nothing more is accepted or started; what waits for a worker is handed
        back as unsent.
        """
        if self.broken is not None:
            return
        self.broken = error
        log.broken(self.name, error)
        self.stop_accepting()
        self.give_up(self.closed_error())
        for fence in self._fences:
            fence.open()
        if self.observers:
            self.observers.tell(lambda observer: observer.on_state(self.name, "broken"))


def _exit_of(task: asyncio.Task[Any]) -> UnknownOutcomeError | None:
    """Why the items of a write are unknown that ended with an exception `send` does not keep: a
    sink asked the process to end.
    """
    raised = None if task.cancelled() else task.exception()
    if raised is None:
        return None
    error = UnknownOutcomeError(f"the sink raised {type(raised).__name__}, which ended the write")
    error.__cause__ = raised
    return error


def _errors_of(task: asyncio.Task[dict[int, BaseException]]) -> dict[int, BaseException]:
    """What a write ended with; nothing where it was cut, since the verdicts tell then."""
    return {} if task.cancelled() or task.exception() is not None else task.result()
