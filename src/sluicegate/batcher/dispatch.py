"""The dispatcher: takes batches from the gatherer, gives them slots, and acts on their outcomes.

1. Each change of state is one stretch without `await`. It begins by closing the window of the fast
   path and ends with `advance`, which starts ready batches, sets the timer and reopens the window.
2. Counts are kept per batch, never per item: the accepted ones follow from the lengths.
3. A flight's items leave the ledger when they are settled; its slot is free when its write has
   ended. A sink that ignores its cancellation keeps its slot: a second, concurrent write would
   break order and concurrency.
4. An exception in a step (a bug, a failed allocation, a task factory or a clock of the program)
   breaks the batcher: nothing more is accepted or started, and every waiter is released. No step
   raises to a sink, a timer or a task, where the exception would be taken for another one.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from .._core.batch import Reason
from .._core.clock import Signal
from .._core.errors import StoppedError
from .._core.outcome import Outcome
from .._core.runtime.loops import Exit, exit_later, is_first_exit
from .._core.send import send
from . import log
from .adaptive import Setting
from .books import Bookkeeper, Fences, behind_failed, book_failures, errors_of
from .flight import Alarm, FifoSlots, Flights
from .gathering.make import gathering_for
from .gathering.pack import Numbers
from .gathering.tenants import TenantGatherer
from .gathering.window import AddWindow
from .governor import Governor
from .ledger import Ledger, Producers
from .lifecycle import Lifecycle
from .monitor import Monitor

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from .._core.clock import Clock
    from .._core.observer import Observers
    from .._core.outcome import Tally
    from .flight import Flight
    from .gathering.pack import AddGroup, Leftover, Sealed
    from .setup import Setup

T = TypeVar("T")


class Dispatcher(Generic[T]):
    """The running part of a batcher, made when it opens.

    `on_room` is called after every change of state; the threads' batcher then lends its room.
    """

    def __init__(self, setup: Setup[T], on_room: Callable[[], object] | None = None) -> None:
        self.setup = setup
        self.lifecycle = Lifecycle(setup.name, setup.clock)
        self.ledger = Ledger(setup.limits.ledger_items, setup.limits.max_pending_bytes)
        self.producers = Producers()
        self.slots = FifoSlots(setup.limits.workers + setup.spare_workers)
        self.flights: Flights[T] = Flights(setup, lambda: self.clock, self.breaks)
        self.fences = Fences(self.before)
        self.books: Bookkeeper[T] = Bookkeeper(setup, self.ledger, self.fences, self.lifecycle)
        self.pressed = Signal()
        """Fires when `is_full` or `is_troubled` may have become true, or a shutdown begins."""
        self.monitor = Monitor(
            self.lifecycle,
            self.ledger,
            self.producers,
            self.books.observers,
            pressed=self.pressed,
            sink=setup.sink,
        )
        self.tries = Governor(setup.adaptive, setup.limits, setup.sink)
        self.window = AddWindow(self.ledger)
        self.numbers = Numbers()
        self.gathering = gathering_for(
            setup,
            self.ledger,
            self.numbers,
            self.window,
            wake=self._wake,
            time=self.lifecycle,
            breaks=self.breaks,
        )
        self._alarm = Alarm(self.slot_given, self.breaks)
        self._on_room = on_room
        self._resize()

    # -- state -------------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        """The batcher's clock."""
        return self.lifecycle.clock

    @property
    def name(self) -> str:
        """The batcher's name."""
        return self.setup.name

    @property
    def observers(self) -> Observers:
        """The batcher's observers."""
        return self.books.observers

    @property
    def is_full(self) -> bool:
        """Whether producers wait for room, or would be refused soon."""
        if self.setup.overflow == "block":
            return len(self.producers) > 0
        return self.ledger.is_nearly_full

    @property
    def is_troubled(self) -> bool:
        """Whether the destination does not accept writes at present."""
        return self.monitor.is_troubled

    @property
    def keeps_slot(self) -> bool:
        """Whether a batch keeps its slot during a backoff, for the total order of one worker."""
        return self.setup.is_ordered and not self.flights.any_lets_pass

    def tally(self) -> Tally:
        """The counts at this moment."""
        return self.ledger.tally(sum(flight.left for flight in self.flights.backing_off))

    # -- in ----------------------------------------------------------------------------------------

    def accept(self, group: AddGroup[T]) -> None:
        """Accept items, in one stretch. If that fails it raises `BatcherBroken`, and accepts none."""
        is_in, queued = False, None
        try:
            now = self.lifecycle.clock.now()
            self.window.close()
            queued = self.ledger.queued
            failed = self.gathering.gatherer.offer(group, now)
            is_in = True
            if failed:
                self.fail(failed)
            if self.gathering.shape.max_delay or not self.lifecycle.accepting:
                self.advance(now)
            else:  # due immediately: at the loop's next step, with other items added by then
                self._alarm.set(self.clock, now)
                self.refresh()
        except BaseException as error:
            self.breaks(error, () if is_in or queued is None else group.items, queued=queued)
            if not is_in:
                raise self.lifecycle.closed_error() from error

    def advance(self, now: float) -> None:
        """End a change of state: start ready batches, set the timer, open the window."""
        try:
            if self.window.is_open:
                self.window.close()
            self._pump(now)
            if self.lifecycle.accepting:
                due = self.gathering.gatherer.due_at()
                if due is not None and due > now:
                    self._alarm.set(self.clock, due)
            self.refresh()
        except BaseException as error:
            self.breaks(error)

    def refresh(self) -> None:
        """Open the window of the fast path as far as there is room."""
        if self._on_room is not None:
            self._on_room()
        spare = self.gathering.gatherer.spare if self.lifecycle.accepting else 0
        self.window.open(self.gathering.pack, spare)
        if self.pressed.waiters and self.is_full:
            self.pressed.fire()

    def _wake(self, at_once: bool) -> float:  # see `Wake`
        now = self.clock.now()
        if at_once:
            self.advance(now)
        elif self.lifecycle.accepting:
            self._alarm.set(self.clock, now + self.gathering.shape.max_delay)
        return now

    def producer_waits(self) -> None:
        """Close the window for others; seal the open batch early if a slot is free."""
        self.pressed.fire()
        if self.slots.free:
            self.advance(self.clock.now())
        else:
            self.refresh()

    @contextmanager
    def step(self) -> Generator[None]:
        """A caller's change of state. If it fails, raises `BatcherBroken`, like all later calls."""
        try:
            yield
        except BaseException as error:
            self.breaks(error)
            if isinstance(error, Exit):
                raise
            raise self.lifecycle.closed_error() from error

    def slot_given(self) -> None:
        """Advance: a slot may be free, or a batch due."""
        self.advance(self.clock.now())

    # -- out ---------------------------------------------------------------------------------------

    def _pump(self, now: float) -> None:
        slots = self.slots
        while slots.used < slots.limit:
            if slots.grant():
                continue
            if self.flights.hold_back:
                return
            if not self.lifecycle.launches:
                return  # flights may return from a backoff; nothing else starts
            sealed = self.gathering.gatherer.take(now) or self._take_early(now)
            if sealed is None:
                return
            try:
                self._launch(sealed, now)
            except BaseException as error:
                self._take_back(sealed, error)
                raise

    def _take_early(self, now: float) -> Sealed[T] | None:
        """Take the open batch early if the batcher closes or a producer waits for room."""
        is_stopping = self.lifecycle.stopping
        # with granted room unused, this would produce batches of one item forever
        is_pressed = self.ledger.contended and not self.ledger.granted
        if not (is_stopping or is_pressed) or not self.ledger.queued:
            return None
        self.gathering.gatherer.seal(Reason.SHUTDOWN if is_stopping else Reason.PRESSURE, now)
        return self.gathering.gatherer.take(now)

    def _launch(self, sealed: Sealed[T], now: float) -> None:
        flight = self.flights.launch(self, sealed, now)
        name, context = f"sluicegate flush {flight.batch.id}", self.flights.context()
        write = self._fly(flight)
        try:
            task = self.lifecycle.loop.create_task(write, name=name, context=context)
        except BaseException:
            write.close()
            raise
        flight.start(task, self._landed)
        if self.setup.observers:
            self.observers.tell(lambda observer: observer.on_sealed(flight.batch))
            self.window.close()  # an observer may have added items

    def _take_back(self, sealed: Sealed[T], error: BaseException) -> None:
        """End a batch whose write was not started: its items are unsent."""
        self.breaks(error)
        for flight in self.flights:
            if flight.sealed is sealed:
                if flight.task is not None:
                    flight.task.cancel()
                self._clear_away(flight, error)
                return
        self.ledger.put_back(len(sealed.items), sealed.bytes)
        self.ledger.left_queue(len(sealed.items), sealed.bytes)
        self.books.hand_back(sealed.leftovers(), self.lifecycle.closed_error(), 0)

    async def _fly(self, flight: Flight[T]) -> dict[int, BaseException]:
        """Write a batch; land it here, unless observers or a batch in a backoff go first."""
        if self.setup.observers:
            self.observers.tell(lambda observer: observer.on_flush_start(flight.batch))
        try:
            errors = await send(self.setup.sink_for(flight.sealed), flight.batch)
        except Exit as error:
            if is_first_exit():
                raise
            flight.exited(error)
            errors = {}
        # this write may have woken a flight without a slot, which precedes fresh batches
        is_plain = not (errors or self.setup.observers) and len(self.flights) == self.slots.used
        if is_plain and flight.lands_in_task():
            try:
                self._land(flight, errors)
            except BaseException as error:
                self._clear_away(flight, error)
        return errors

    def _landed(self, flight: Flight[T], task: asyncio.Task[dict[int, BaseException]]) -> None:
        try:
            raised = None if task.cancelled() else task.exception()
            if raised is not None:
                flight.exited(raised)
            if raised is not None and not isinstance(raised, Exit):
                self.breaks(raised)  # `send` raises no error of a sink
            self._land(flight, errors_of(task))
        except BaseException as error:
            self._clear_away(flight, error)

    def _land(self, flight: Flight[T], errors: dict[int, BaseException]) -> None:
        """End a flight after its write."""
        flight.ended()
        flight.end_try()
        failed = book_failures(flight, self._put_back(flight, errors) if errors else errors)
        if flight.unbooked:
            raise RuntimeError("outcomes of a batch were not booked")
        self.flights.discard(flight)
        self.window.close()
        if rejected := self.gathering.gatherer.done(flight.sealed):
            self.fail(rejected)
        if self.fences.pending:
            self.check_fences()  # returned items may be held now
        flight.release_slot()
        if failed or self.setup.observers:
            self._tell_landed(flight, failed)
        flight.batch.delivery.detach()
        self.window.yielded()
        self.notify()

    def _clear_away(self, flight: Flight[T], error: BaseException) -> None:
        """End a flight after a failed step: the rest of its end."""
        self.breaks(error)
        flight.ended()
        flight.close(self.lifecycle.closed_error())
        self.books.catch_up(flight)
        self.flights.discard(flight)
        flight.release_slot()
        flight.batch.delivery.detach()
        self.notify()

    def _tell_landed(self, flight: Flight[T], failed: dict[int, BaseException]) -> None:
        self.refresh()  # a handler or an observer may add items
        if failed:
            for error in self.books.report_failure(flight, failed):
                self.break_down(error)
        seconds = self.clock.now() - flight.started_at
        self.observers.tell(lambda seen: seen.on_flushed(flight.batch, seconds, failed))

    def notify(self) -> None:
        """Advance after a flight has ended, or a producer has stopped waiting."""
        self.advance(self.clock.now())
        self.flights.tell_drain(every=self.lifecycle.gave_up)

    def _put_back(
        self, flight: Flight[T], errors: dict[int, BaseException]
    ) -> dict[int, BaseException]:
        """Requeue items that only follow a failed one of their key; return the other errors."""
        back = behind_failed(flight, errors)
        if self.lifecycle.gave_up:
            flight.batch.delivery.finish(back, Outcome.UNSENT)
        elif back:
            flight.batch.delivery.put_back(back)
            flight.book(len(back))
            self.gathering.gatherer.done(flight.sealed, (), back)
            if self.fences.pending and flight.left == 0:
                self._pass_fences(flight)
        gone = set(back)
        return {i: error for i, error in errors.items() if i not in gone} if gone else errors

    # -- a flight's calls --------------------------------------------------------------------------

    def book_outcome(
        self,
        flight: Flight[T],
        indices: Sequence[int],
        outcome: Outcome,
        details: Mapping[int, object] | None,
    ) -> None:
        """Book an outcome of a flight's items, hold failed keys, grant the freed room."""
        try:
            self.books.settle(flight, indices, outcome, details)
            holds = self.gathering.holds
            if holds is not None and (failed := self.books.stopping(flight, indices, outcome)):
                holds.stop(flight.sealed, failed)
            self.room_freed()
            if self.fences.pending and flight.left == 0:
                self._pass_fences(flight)
        except BaseException as error:
            self.breaks(error)

    def backs_off(self, flight: Flight[T]) -> None:
        """Free the keys of settled items, unless a best-effort branch may still write them."""
        try:
            delivery = flight.batch.delivery
            if not self.setup.orders_itself or delivery.is_fresh or delivery.has_stragglers:
                return
            self.window.close()
            ended = [index for index in range(len(flight.batch)) if delivery.is_settled(index)]
            self.fail(self.gathering.gatherer.done(flight.sealed, ended))
            self.refresh()
        except BaseException as error:
            self.breaks(error)

    def heard(self, flight: Flight[T], errors: Iterable[BaseException]) -> None:
        """Note the errors of an attempt."""
        try:
            self.monitor.heard(errors)
            self.books.unlisted.look_at(errors)
            self.tries.heard(flight.running, errors)
        except BaseException as error:
            self.breaks(error)

    def adapt(self) -> None:
        """Apply a setting; queued batches are cut when they are taken."""
        before = Setting(self.slots.limit, self.gathering.shape.max_items)
        setting = self.tries.setting or before
        log.adapted(self.name, before, setting)
        self.observers.tell(lambda observer: observer.on_adapted(self.name, *setting))
        self.window.close()
        self._resize()
        self.gathering.gatherer.seal(Reason.SIZE, self.clock.now())
        self.refresh()

    def _resize(self) -> None:
        if self.tries.setting is not None:
            workers, max_items = self.tries.setting
            self.slots.resize(workers)
            self.gathering.shape.resize(max_items)

    # -- keys, room, fences ------------------------------------------------------------------------

    def fail(self, items: Sequence[Leftover[T]]) -> None:
        """Reject items that follow a failed one of their key."""
        if not items:
            return
        error = StoppedError("not sent: an earlier item of its key has failed for good")
        self.books.end(items, Outcome.REJECTED, error)
        log.keys_failed(self.name, len(items))
        self.room_freed()
        self.check_fences()

    def room_freed(self) -> None:
        """Grant free room to waiting producers."""
        if self.lifecycle.accepting or self.lifecycle.admitting:
            if self.ledger.contended:
                self.ledger.grant()
            if self.window.is_tight or self._on_room is not None:
                self.refresh()

    def before(self, number: int) -> int:
        """Count the pending items up to a batch number, without those of held keys."""
        held = sum(1 for item in self.books.held or () if item.number <= number)
        queued = self.gathering.gatherer.queued_until(number)
        return self.flights.left_until(number) + held + queued

    def _pass_fences(self, flight: Flight[T]) -> None:
        self.fences.count(flight.sealed.number, flight.outcomes)
        self.check_fences()

    def check_fences(self) -> None:
        """Open the fences without earlier items."""
        if self.fences.pending:
            self.fences.check(self.ledger.settled, holding=bool(self.gathering.held_keys))

    # -- stopping ----------------------------------------------------------------------------------

    def stop_accepting(self, *, admit_waiting: bool = False) -> None:
        """Accept no more items; turn waiting producers away unless `admit_waiting`."""
        self.lifecycle.stop_accepting(admit_waiting=admit_waiting)
        self._alarm.cancel()
        if not admit_waiting:
            self.turn_away()
        self.refresh()

    def turn_away(self) -> None:
        """Fail the waits of all producers."""
        self.lifecycle.stop_accepting()
        waiters = self.ledger.turn_away()
        if isinstance(self.gathering.gatherer, TenantGatherer):
            waiters += self.gathering.gatherer.turn_away()
        for waiter in waiters:  # each with its own error
            waiter.fail(self.lifecycle.closed_error())

    def begin_stop(self, reason: Reason) -> None:
        """Seal open batches, and end every backoff with an immediate attempt."""
        now = self.clock.now()
        self.window.close()
        self.gathering.gatherer.seal(reason, now)
        if self.gathering.holds is not None:
            self.gathering.holds.begin_stop()
        self.lifecycle.begin_stop()
        self.pressed.fire()
        self.advance(now)

    def give_up(
        self, cause: BaseException, refused: Sequence[T] = (), *, queued: int | None = None
    ) -> None:
        """Return all queued items: unsent, or kept for the last resort; without `refused` ones.

        `queued` is the number of items before them, if not all of them may have come in.
        """
        self.lifecycle.give_up()
        self.window.close()
        parked = self.gathering.held_items
        items = self.gathering.gatherer.clear(self.clock.now())
        if queued is not None:
            refused = refused[: max(0, len(items) - queued)]
        for item in reversed(refused):
            last = next((n for n in range(len(items))[::-1] if items[n].item is item), None)
            if last is not None:
                del items[last]
        self.books.hand_back(items, cause, parked)
        self.check_fences()
        self.refresh()

    def breaks(
        self, error: BaseException, refused: Sequence[T] = (), *, queued: int | None = None
    ) -> None:
        """Break down after a failed step; the `refused` items have not been accepted."""
        self.break_down(error, refused, queued=queued)
        exit_later(error)

    def break_down(
        self, error: BaseException, refused: Sequence[T] = (), *, queued: int | None = None
    ) -> None:
        """Stop for good: accept and start nothing more, return queued items, release all waiters.

        The step that failed may have left any state behind, so each part is done for itself.
        """
        if self.lifecycle.broken is not None:
            return
        self.lifecycle.breaks(error)
        log.broken(self.name, error)
        cause = self.lifecycle.closed_error()
        parts: tuple[Callable[[], object], ...] = (
            self.stop_accepting,
            lambda: self.give_up(cause, refused, queued=queued),
            lambda: self.ledger.recount(self.ledger.in_flight),
            self.fences.open_all,
            lambda: self._pump(self.clock.now()),  # for flights that return from a backoff
            self.flights.cut_late,
            lambda: self.observers.tell(lambda seen: seen.on_state(self.name, "broken")),
            lambda: self.flights.tell_drain(every=True),
        )
        for part in parts:
            try:
                part()
            except BaseException as further:
                log.not_cleared(self.name, further)
