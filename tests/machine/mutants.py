"""Planted bugs: each is a small change of one method that could be made by accident.

White box: the bugs are planted in private code.

A mutant is a function that plants itself with `monkeypatch`; its docstring describes the fault. The
machine has to detect every one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sluicegate import Batch, Outcome
from sluicegate._core.clock import Signal
from sluicegate._core.delivery import states
from sluicegate._core.delivery.delivery import Delivery
from sluicegate.batcher import Reason
from sluicegate.batcher.books import Bookkeeper, Fences
from sluicegate.batcher.dispatch import Dispatcher
from sluicegate.batcher.drain import Drain
from sluicegate.batcher.flight import Alarm, FifoSlots, Flight, Flights
from sluicegate.batcher.gathering import pack
from sluicegate.batcher.gathering.pack import AddGroup, Evicted
from sluicegate.batcher.gathering.plain import PlainGatherer
from sluicegate.batcher.intake import Intake
from sluicegate.batcher.ledger import Ledger
from sluicegate.batcher.lifecycle import Lifecycle
from sluicegate.retry.series import RetrySeries

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Mutant = Callable[[pytest.MonkeyPatch], None]

ALL: dict[str, Mutant] = {}


def mutant(plant: Mutant) -> Mutant:
    ALL[plant.__name__] = plant
    return plant


# -- producers -------------------------------------------------------------------------------------


@mutant
def a_cancelled_add_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It returns as if its item were accepted."""
    real = Intake.add

    async def add(self: Intake[Any], items: Any, *rest: Any) -> None:
        try:
            await real(self, items, *rest)
        except asyncio.CancelledError:
            return

    monkeypatch.setattr(Intake, "add", add)


@mutant
def an_item_is_doubled_on_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is accepted, but its producer, which got an error, offers it again."""
    real = Intake.add

    async def add(self: Intake[Any], items: Any, *rest: Any) -> None:
        try:
            await real(self, items, *rest)
        except asyncio.CancelledError:
            self._dispatcher.accept(AddGroup(items, None, rest[0]))
            raise

    monkeypatch.setattr(Intake, "add", add)


@mutant
def a_granted_room_is_kept_by_who_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger shrinks permanently."""

    real = Ledger.leave

    def leave(self: Ledger, waiter: Any) -> None:
        task = asyncio.current_task()
        if not (waiter.granted and task is not None and task.cancelling()):
            real(self, waiter)

    monkeypatch.setattr(Ledger, "leave", leave)


@mutant
def who_gives_up_waiting_does_not_hand_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large request at the head leaves, and smaller ones behind it keep waiting although they
    fit.
    """
    real = Ledger.grant

    def grant(self: Ledger) -> None:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            real(self)

    monkeypatch.setattr(Ledger, "grant", grant)


@mutant
def a_waiter_is_overtaken_by_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any waiter that fits is admitted."""

    def grant(self: Ledger) -> None:
        for waiter in list(self._waiters):
            if not waiter.future.done() and self.fits(waiter.items, waiter.bytes):
                self._waiters.remove(waiter)
                self._granted_items += waiter.items
                self._granted_bytes += waiter.bytes
                waiter.grant()

    monkeypatch.setattr(Ledger, "grant", grant)


@mutant
def a_waiter_is_overtaken_by_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer that fits is admitted while another one waits."""
    monkeypatch.setattr(Ledger, "admits", Ledger.fits)


@mutant
def a_wake_up_is_lost_at_a_full_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed items make room, and no waiter is woken."""
    real = Dispatcher.book_outcome

    def book_outcome(
        self: Dispatcher[Any], flight: Any, indices: Any, outcome: Outcome, details: Any
    ) -> None:
        accepting = self.lifecycle.accepting
        self.lifecycle.accepting = accepting and outcome.is_safe
        real(self, flight, indices, outcome, details)
        self.lifecycle.accepting = accepting

    monkeypatch.setattr(Dispatcher, "book_outcome", book_outcome)


@mutant
def waiting_producers_make_no_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the linger although a worker is idle."""
    monkeypatch.setattr(
        Dispatcher,
        "_take_early",
        lambda self, now: None if not self.lifecycle.stopping else _take_stopping(self, now),
    )


def _take_stopping(dispatcher: Dispatcher[Any], now: float) -> Any:
    dispatcher.gathering.gatherer.seal(Reason.SHUTDOWN, now)
    return dispatcher.gathering.gatherer.take(now)


@mutant
def room_in_bytes_comes_back_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a batch is settled in parts, each part returns all of its bytes."""
    real = Dispatcher.book_outcome

    def book_outcome(
        self: Dispatcher[Any], flight: Any, indices: Any, outcome: Outcome, details: Any
    ) -> None:
        sizes = flight.sealed.sizes
        if sizes is not None:
            self.ledger.bytes -= sum(
                size for index, size in enumerate(sizes) if index not in indices
            )
        real(self, flight, indices, outcome, details)

    monkeypatch.setattr(Dispatcher, "book_outcome", book_outcome)


# -- overflow --------------------------------------------------------------------------------------


@mutant
def a_dropped_item_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts twice in the tally, but not in the receipts."""
    real = Intake.evict_for

    def evict_for(self: Intake[Any], reservation: Any) -> list[Any]:
        counts = self._ledger.outcomes
        before = counts[Outcome.DROPPED]
        gone = real(self, reservation)
        counts[Outcome.DROPPED] += counts[Outcome.DROPPED] - before
        return gone

    monkeypatch.setattr(Intake, "evict_for", evict_for)


@mutant
def receipts_stay_where_they_were_when_the_oldest_item_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So each receipt then belongs to the previous item."""

    def pop_first(
        items: list[Any], receipts: dict[int, Any], sizes: list[int] | None
    ) -> Evicted[Any]:
        return Evicted(
            items.pop(0), sizes.pop(0) if sizes is not None else 0, receipts.pop(0, None)
        )

    monkeypatch.setattr(pack, "_pop_first", pop_first)


@mutant
def the_newest_goes_in_place_of_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest item of the open batch is dropped."""
    real = PlainGatherer.evict_oldest

    def evict_oldest(self: PlainGatherer[Any]) -> Any:
        items = self._pack.items
        if not self._queue and len(items) > 1:
            items.insert(0, items.pop())
        return real(self)

    monkeypatch.setattr(PlainGatherer, "evict_oldest", evict_oldest)


# -- batches, slots and timers ---------------------------------------------------------------------


@mutant
def batches_go_last_in_first_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest sealed batch is taken first."""
    real = PlainGatherer.take

    def take(self: PlainGatherer[Any], now: float) -> Any:
        self._queue.batches.rotate(1)
        return real(self, now)

    monkeypatch.setattr(PlainGatherer, "take", take)


@mutant
def a_due_batch_is_forgotten_while_workers_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is checked when the timer fires, and never again."""
    real = PlainGatherer.take

    def take(self: PlainGatherer[Any], now: float) -> Any:
        due = self.due_at()
        if not self._queue and due is not None and now > due:
            return None
        return real(self, now)

    monkeypatch.setattr(PlainGatherer, "take", take)


@mutant
def a_slot_leaks_after_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut flight keeps its slot forever."""
    real = Dispatcher._landed

    def landed(self: Dispatcher[Any], flight: Any, task: Any) -> None:
        flight.has_slot = flight.has_slot and flight.cut_cause is None
        real(self, flight, task)

    monkeypatch.setattr(Dispatcher, "_landed", landed)


@mutant
def a_slot_is_granted_to_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flight that was cut while it waited for a slot still gets it."""

    def grant(self: FifoSlots) -> bool:
        if not self.free or not self._returning:
            return False
        waiter = self._returning.popleft()
        self.take()
        if not waiter.done():
            waiter.set_result(None)
        return True

    monkeypatch.setattr(FifoSlots, "grant", grant)


@mutant
def two_batches_share_a_slot_after_a_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """A returning batch continues at once, with or without a slot."""

    async def take_slot(self: Flight[Any]) -> None:
        self.force_slot()

    monkeypatch.setattr(Flight, "take_slot", take_slot)


@mutant
def one_worker_lets_others_go_while_it_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is lost."""
    monkeypatch.setattr(Dispatcher, "keeps_slot", False)


@mutant
def a_timer_is_left_after_the_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fires after the close, without effect."""
    monkeypatch.setattr(Flights, "close", lambda self: None)


@mutant
def the_linger_goes_on_after_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its timer is dropped without being cancelled."""
    monkeypatch.setattr(Alarm, "cancel", lambda self: None)


@mutant
def the_flush_timeout_ends_with_the_first_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that hangs afterwards hangs forever."""
    monkeypatch.setattr(Flight, "watch", lambda self, activity: None)


@mutant
def a_signal_remembers_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every backoff leaves an entry behind."""
    monkeypatch.setattr(Signal, "leave", lambda self, waiter: None)


# -- outcomes --------------------------------------------------------------------------------------


@mutant
def a_settled_item_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt sends the whole batch."""
    real = RetrySeries.after

    def after(self: RetrySeries, *arguments: Any, **options: Any) -> Any:
        before = self.pending
        classes = real(self, *arguments, **options)
        if self.pending:
            self.pending = before
        return classes

    monkeypatch.setattr(RetrySeries, "after", after)
    monkeypatch.setattr(Batch, "unsettled", lambda self: range(len(self)))  # what `send` accepts


@mutant
def a_late_completion_changes_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deaf sink's result after its verdict changes the tally."""
    real = Delivery.settle

    def settle(self: Delivery, indices: Any, outcome: Outcome, details: Any = None) -> None:
        books: Any = self.books
        if self.closed and books is not None:
            counts = books._host.ledger.outcomes
            counts[Outcome.UNKNOWN] -= len(indices)
            counts[outcome] += len(indices)
        real(self, indices, outcome, details)

    monkeypatch.setattr(Delivery, "settle", settle)


@mutant
def what_was_cut_off_at_the_destination_counts_as_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are returned to the caller, which sends them again."""
    for code in (states.CUT, states.SENDING):
        monkeypatch.setitem(states.VERDICTS, code, Outcome.UNSENT)
    monkeypatch.setattr(Delivery, "interrupted", lambda self, indices: None)


@mutant
def an_earlier_doubt_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off once, refused at the second attempt: rejected, although the first may have been
    applied.
    """

    real = Delivery.failed

    def failed(self: Delivery, errors: Any) -> None:
        doubts = set(self.states.maybe)
        real(self, errors)
        self.states.maybe = doubts

    monkeypatch.setattr(Delivery, "failed", failed)


@mutant
def a_receipt_is_told_of_successes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter for a failed item waits forever."""
    real = Dispatcher.book_outcome

    def book_outcome(
        self: Dispatcher[Any], flight: Any, indices: Any, outcome: Outcome, details: Any
    ) -> None:
        receipts = flight.sealed.receipts
        if not outcome.is_safe:
            flight.sealed.receipts = {}
        real(self, flight, indices, outcome, details)
        flight.sealed.receipts = receipts

    monkeypatch.setattr(Dispatcher, "book_outcome", book_outcome)


# -- fences and shutting down ----------------------------------------------------------------------


@mutant
def a_fence_leaves_out_the_newest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush returns too early."""
    real = Fences.add

    monkeypatch.setattr(Fences, "add", lambda self, number: real(self, number - 1))


@mutant
def who_waits_for_room_is_not_told_of_the_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits forever."""

    monkeypatch.setattr(Dispatcher, "turn_away", lambda self: self.lifecycle.stop_accepting())


@mutant
def backoffs_go_on_in_a_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """No flight is woken for the last attempt."""

    def begin_stop(self: Lifecycle) -> None:
        self.stopping = True

    monkeypatch.setattr(Lifecycle, "begin_stop", begin_stop)


@mutant
def unsent_items_are_counted_and_not_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that a last resort did not accept are not returned."""
    real = Bookkeeper.end

    def end(self: Bookkeeper[Any], items: Any, outcome: Outcome, cause: Any) -> None:
        unsent = list(self.unsent)
        real(self, items, outcome, cause)
        if cause is not None and self.held is not None:
            self.unsent[:] = unsent

    monkeypatch.setattr(Bookkeeper, "end", end)


@mutant
def the_first_deadline_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller with an earlier deadline has to wait."""
    monkeypatch.setattr(Drain, "hasten", lambda self, seconds: None)


@mutant
def a_deaf_write_has_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is complete while its items are still inside."""

    def cut(self: Flight[Any], cause: BaseException, verdict_at: float) -> None:
        if self.cut_cause is None:
            self.cut_cause = cause
            self._ends.clear()
            if self.task is not None:
                self.task.cancel()

    monkeypatch.setattr(Flight, "cut", cut)


@mutant
def the_end_of_a_flight_wakes_no_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits until its deadline."""
    monkeypatch.setattr(Dispatcher, "notify", lambda self: self.advance(self.clock.now()))
