"""Booking of outcomes: ledger, receipts, fences, observers, and the lists of a shutdown.

A fence lets a flush wait for exactly the items that were accepted before it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._core.errors import DeadLetterLimit, KeyStopped, UnknownOutcomeError, WithdrawnError
from .._core.observer import Observers
from .._core.order.left_out import WITHDRAWN, leaders, with_withdrawn
from .._core.outcome import Outcome
from .._core.runtime.loops import exit_later
from . import log
from .gathering.pack import Leftover
from .receipt import Doubtful, ReceiptBase, is_missed, original

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence

    from .flight import Flight
    from .ledger import Ledger
    from .lifecycle import Lifecycle
    from .receipt import Resolvable, ResolvesAll
    from .setup import Setup


T = TypeVar("T")

STOPPING = frozenset({Outcome.DEAD_LETTERED, Outcome.REJECTED})
"""Outcomes after which `on_key_failure` acts on the key."""

_IN_TRANSACTION = (
    "the write has returned, but its transaction has not ended, so the outcome of its items is not "
    "known; let the sink's write begin and end the transaction"
)


class Bookkeeper(Generic[T]):
    """Books every outcome of one batcher."""

    def __init__(
        self, setup: Setup[T], ledger: Ledger, fences: Fences, lifecycle: Lifecycle
    ) -> None:
        self._name = setup.name
        self._on_failure = setup.on_failure
        self._stopping = STOPPING if setup.on_key_failure != "skip" else frozenset[Outcome]()
        self._ledger = ledger
        self._fences = fences
        self._lifecycle = lifecycle
        self.observers = Observers(setup.observers)
        self._is_observed = bool(setup.observers)
        self.unlisted = log.Unlisted(setup.name, setup.sink)
        self.unsent: list[T] = []
        """Returned items: first those of batches, then those that no worker had taken."""
        self.unknown: list[T] = []
        """Items with an outcome that became unknown since a shutdown began."""
        self.held: list[Leftover[T]] | None = None
        """Items for the last resort; `None` without one."""
        self.parked = 0
        """Returned items that a failed item of their key had stopped."""
        self._from_flights = 0
        self._resolve_all: ResolvesAll | None = None

    def follow_source(self, holds: Collection[Outcome], resolve_all: ResolvesAll | None) -> None:
        """Hold also the keys of items that end with an outcome of `holds`; pass the receipts of a
        batch whose items all have the same success, without details, to `resolve_all`.
        """
        self._stopping |= frozenset(holds)
        self._resolve_all = resolve_all

    def keep_for_last_resort(self) -> None:
        """Keep returned items until the last resort has taken or declined them."""
        self.held = []

    # -- items of a batch --------------------------------------------------------------------------

    def settle(
        self,
        flight: Flight[T],
        indices: Sequence[int],
        outcome: Outcome,
        details: Mapping[int, object] | None,
    ) -> None:
        """Book outcomes of a batch's items: they leave the ledger, and their receipts resolve."""
        sealed = flight.sealed
        if sealed.receipts and not outcome.is_safe:
            receipts = sealed.receipts
            self._ledger.note_returned(sum(_is_of_source(receipts.get(i)) for i in indices))
        kept = indices if outcome is Outcome.UNSENT else ()
        if kept and flight.batch.delivery.withdrawn:
            kept = _not_withdrawn(flight, indices)
            self._ledger.note_withdrawn(len(indices) - len(kept))
        if kept and self.held is not None:
            self._hold(flight, kept, self.held)
            left = set(indices).difference(kept)
            if not left:
                return
            indices, kept = sorted(left), ()
        size = 0 if sealed.sizes is None else sealed.size_of(indices)
        self._ledger.settle(len(indices), size, outcome)
        flight.outcomes[outcome] = flight.outcomes.get(outcome, 0) + len(indices)
        if kept:
            place = self._from_flights
            self.unsent[place:place] = [flight.batch[i] for i in kept]
            self._from_flights += len(kept)
        elif outcome is Outcome.UNKNOWN and self._lifecycle.stopping:
            self.unknown.extend(flight.batch[i] for i in indices)
        if sealed.receipts:
            self._resolve(flight, indices, outcome, details)
        flight.book(len(indices))
        if self._is_observed:
            self.observers.tell(lambda seen: seen.on_outcome(flight.batch, outcome, indices))

    def _resolve(
        self,
        flight: Flight[T],
        indices: Sequence[int],
        outcome: Outcome,
        details: Mapping[int, object] | None,
    ) -> None:
        receipts = flight.sealed.receipts
        # a dead-lettered item has the error that it was taken for
        has_cause = not outcome.is_success
        if not has_cause and not details and len(indices) == len(flight.batch):
            each = [*receipts.values()]
            if self._resolve_all is None or not self._resolve_all(each, outcome):
                for receipt in each:
                    receipt.resolve(outcome, None, None)
            return
        for index in indices:
            if index in receipts:
                cause = flight.cause(index) if has_cause else None
                receipts[index].resolve(outcome, cause, details.get(index) if details else None)

    def catch_up(self, flight: Flight[T]) -> None:
        """Book the outcomes of an ended flight that a failed step has left out."""
        if not flight.unbooked:
            return
        delivery, receipts = flight.batch.delivery, flight.sealed.receipts
        verdicts = [delivery.verdict(index) for index in range(len(flight.batch))]
        for outcome, count in Counter(verdicts).items():
            left = count - flight.outcomes.get(outcome, 0)
            if left > 0:
                self._ledger.settle(left, 0, outcome)
                flight.outcomes[outcome] = count
        for index, receipt in receipts.items():
            if isinstance(receipt, ReceiptBase) and is_missed(receipt):
                receipt.resolve(verdicts[index], flight.cause(index), None)
        flight.book(flight.unbooked)

    def _hold(self, flight: Flight[T], indices: Sequence[int], held: list[Leftover[T]]) -> None:
        sealed, place = flight.sealed, self._from_flights
        held[place:place] = [
            Leftover(flight.batch[i], sealed.receipts.get(i), sealed.number, tenant=sealed.tenant)
            for i in indices
        ]
        self._from_flights += len(indices)
        self._ledger.hand_back(len(indices), from_flight=True)
        flight.book(len(indices))

    def stopping(
        self, flight: Flight[T], indices: Sequence[int], outcome: Outcome
    ) -> Sequence[int]:
        """Select the ended items that hold their keys. Withdrawn items do not: they never return."""
        stops = outcome in self._stopping and not flight.sealed.spilled
        if outcome is Outcome.UNSENT:
            stops = stops or self._lifecycle.stopping or self.held is not None
        return _not_withdrawn(flight, indices) if stops else ()

    # -- items of no batch -------------------------------------------------------------------------

    def end(
        self, items: Sequence[Leftover[T]], outcome: Outcome, cause: BaseException | None
    ) -> None:
        """Book the outcome of items that are in no batch; the caller then checks the fences."""
        if not outcome.is_safe:
            items, doubtful = _by_doubt(items)
            if doubtful and self._lifecycle.stopping:
                self.unknown.extend(item.item for item in doubtful)
            self._end(doubtful, Outcome.UNKNOWN, cause)
        if outcome is Outcome.UNSENT:
            self.unsent.extend(item.item for item in items)
        self._end(items, outcome, cause)

    def withdraw(self, items: Sequence[Leftover[T]], cause: BaseException) -> None:
        """Like `end` with `unsent`, for items that are not returned: their source has them."""
        items, doubtful = _by_doubt(items)
        self._ledger.note_withdrawn(len(items))
        self._end(doubtful, Outcome.UNKNOWN, cause)
        self._end(items, Outcome.UNSENT, cause)

    def _end(
        self, items: Sequence[Leftover[T]], outcome: Outcome, cause: BaseException | None
    ) -> None:
        if not outcome.is_safe:
            self._ledger.note_returned(sum(_is_of_source(item.receipt) for item in items))
        self._ledger.ended(len(items), outcome)
        self._resolve_each(items, outcome, cause)
        if items:
            self._fences.count_items([item.number for item in items], outcome)

    def hand_back(self, items: list[Leftover[T]], cause: BaseException, parked: int) -> None:
        """Book queued items as unsent, or keep them for the last resort."""
        self.parked += parked if self._stopping else 0
        if self.held is None:
            self.end(items, Outcome.UNSENT, cause)
        else:
            self.held += items
            self._ledger.hand_back(len(items))

    def answered(self, items: Sequence[Leftover[T]], taken: set[int], cause: BaseException) -> None:
        """Book the first held items: dead-lettered if the last resort took them, or unsent."""
        if self.held is not None:
            del self.held[: len(items)]
        self._ledger.take_handed_back(len(items))
        left = [item for place, item in enumerate(items) if place not in taken]
        self.end([items[place] for place in sorted(taken)], Outcome.DEAD_LETTERED, cause)
        self.end(left, Outcome.UNSENT, cause)

    def stop_holding(self) -> None:
        """From now on, book returned items as unsent."""
        self.held = None

    def drop(self, items: Sequence[Leftover[T]]) -> None:
        """Book items dropped for newer ones, or for lack of room."""
        self._resolve_each(items, Outcome.DROPPED, None)
        self._ledger.ended(len(items), Outcome.DROPPED)

    def _resolve_each(
        self, items: Sequence[Leftover[T]], outcome: Outcome, cause: BaseException | None
    ) -> None:
        for item in items:
            receipt = item.receipt
            try:
                if receipt is not None:
                    receipt.resolve(outcome, cause, None)
            except BaseException as error:  # the others must still be resolved
                log.not_cleared(self._name, error)
                if isinstance(receipt, ReceiptBase) and is_missed(receipt):
                    receipt.resolve(outcome, cause, None)

    def tell_dropped(self, items: Sequence[T]) -> None:
        """Notify observers, at the very end of a stretch: they may add items."""
        if self.observers and items:
            self.observers.tell(lambda observer: observer.on_dropped(self._name, items, "overflow"))

    # -- failures ----------------------------------------------------------------------------------

    def report_failure(
        self, flight: Flight[T], failed: Mapping[int, BaseException]
    ) -> Generator[BaseException]:
        """Log failed items and follow `on_failure`; yields errors that break the batcher."""
        log.failed_flush(flight.batch, failed)
        limits = [error for error in failed.values() if isinstance(error, DeadLetterLimit)]
        if limits:
            yield limits[0]
        elif self._on_failure == "crash":
            yield next(iter(failed.values()))
        elif callable(self._on_failure):
            by_error: dict[int, list[int]] = {}
            for index, error in failed.items():
                by_error.setdefault(id(error), []).append(index)
            for indices in by_error.values():
                items = [flight.batch[i] for i in indices]
                try:
                    self._on_failure(items, failed[indices[0]])
                except BaseException as raised:  # reported to every producer
                    yield raised
                    exit_later(raised)


def _is_of_source(receipt: Resolvable | None) -> bool:
    """Whether a feed has submitted the item: its source gets the outcome, and has the item."""
    return receipt is not None and not isinstance(original(receipt), ReceiptBase)


def _by_doubt(
    items: Sequence[Leftover[T]],
) -> tuple[Sequence[Leftover[T]], list[Leftover[T]]]:
    """Return the items known not to be applied, and the doubtful ones."""
    doubtful = [item for item in items if isinstance(item.receipt, Doubtful)]
    if not doubtful:
        return items, doubtful
    return [item for item in items if not isinstance(item.receipt, Doubtful)], doubtful


def _not_withdrawn(flight: Flight[Any], indices: Sequence[int]) -> Sequence[int]:
    gone = flight.batch.delivery.withdrawn
    return [index for index in indices if index not in gone] if gone else indices


class Fence:
    """Waits for every batch up to a number, and counts their outcomes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcomes: dict[Outcome, int] = {}
        self.passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._not_before = 0
        """The number of settled items before which it cannot open; saves counting the earlier
        items.
        """

    def add(self, outcomes: Mapping[Outcome, int]) -> None:
        """Count the outcomes of a batch."""
        for outcome, count in outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count

    def opens(self, settled: int, before: Callable[[int], int], *, holding: bool) -> bool:
        """Return whether no earlier items are left."""
        if settled < self._not_before and not holding:
            return False
        left = before(self.number)
        self._not_before = settled + left
        return not left

    def open(self) -> None:
        """End the wait."""
        if not self.passed.done():
            self.passed.set_result(None)


class Fences:
    """The closed fences. `before` counts the pending items up to a batch number."""

    def __init__(self, before: Callable[[int], int]) -> None:
        self._before = before
        self.pending: list[Fence] = []

    def add(self, number: int) -> Fence:
        """Add a fence after the batches up to this number."""
        fence = Fence(number)
        self.pending.append(fence)
        return fence

    def remove(self, fence: Fence) -> None:
        """Remove a fence."""
        if fence in self.pending:
            self.pending.remove(fence)

    def count(self, number: int, outcomes: Mapping[Outcome, int]) -> None:
        """Count the outcomes of a batch for the fences after it."""
        for fence in self.pending:
            if number <= fence.number:
                fence.add(outcomes)

    def count_items(self, numbers: Sequence[int], outcome: Outcome) -> None:
        """Count the outcome of items by the numbers of their batches."""
        for fence in self.pending:
            behind = sum(1 for number in numbers if number <= fence.number)
            if behind:
                fence.add({outcome: behind})

    def check(self, settled: int, *, holding: bool) -> None:
        """Open the fences without earlier items; `settled` is the number of items with an outcome."""
        for fence in tuple(self.pending):
            if fence.opens(settled, self._before, holding=holding):
                fence.open()
                self.remove(fence)

    def open_all(self) -> None:
        """End all waits: the batcher is broken."""
        for fence in self.pending:
            fence.open()


def errors_of(task: asyncio.Task[dict[int, BaseException]]) -> dict[int, BaseException]:
    """Return the errors of an ended write, by index in its batch.

    Empty if the write was cancelled or raised as a whole: then the verdicts of its delivery decide
    about the items.
    """
    return {} if task.cancelled() or task.exception() is not None else task.result()


def behind_failed(flight: Flight[Any], errors: dict[int, BaseException]) -> list[int]:
    """Return the items known not to be applied that only follow a failed one of their key."""
    delivery = flight.batch.delivery
    if not delivery.keeps_prefix or delivery.closed or not errors:
        return []
    behind = leaders(flight.batch, with_withdrawn(flight.batch, errors))
    doubtful, gone = delivery.maybe_applied, delivery.withdrawn or ()
    return [
        index
        for index, error in errors.items()
        if (index in behind or isinstance(error, KeyStopped))
        and index not in doubtful
        and index not in gone
    ]


def book_failures(
    flight: Flight[Any], errors: dict[int, BaseException]
) -> dict[int, BaseException]:
    """Give every remaining item its outcome; return the errors of the failed ones.

    Items withdrawn since their write ended are also unsent, and are not failures.
    """
    if gone := flight.batch.delivery.withdrawn:
        error = WithdrawnError(f"not sent again: {WITHDRAWN}")
        withdrawn: dict[int, BaseException] = dict.fromkeys(gone.intersection(errors), error)
        flight.batch.delivery.left_out(withdrawn)
        failed = _book(flight, {**errors, **withdrawn})
        return {i: each for i, each in failed.items() if i not in gone}
    return _book(flight, errors)


def _book(flight: Flight[Any], errors: dict[int, BaseException]) -> dict[int, BaseException]:
    delivery = flight.batch.delivery
    if delivery.held is not None:
        flight.close(UnknownOutcomeError(_IN_TRANSACTION))
    if delivery.closed:
        return _cut_items(flight)
    by_outcome: dict[Outcome, list[int]] = {}
    for index, error in errors.items():
        by_outcome.setdefault(delivery.ended(index, error), []).append(index)
    for outcome, indices in by_outcome.items():
        delivery.finish(indices, outcome)
    if delivery.states.left:
        delivery.close()
        return {**errors, **_cut_items(flight)}
    return errors


def _cut_items(flight: Flight[Any]) -> dict[int, BaseException]:
    delivery = flight.batch.delivery
    cause = flight.cut_cause or UnknownOutcomeError("the write was cut off")
    return {
        index: delivery.error(index) or cause
        for index in range(len(flight.batch))
        if not delivery.verdict(index).is_safe
    }
