"""The progress of one sealed batch, shared by all batches picked or derived from it.

Indices are those of the sealed batch. Outside a batcher there are neither books nor slots.

1. Success is final: `settle` books it, and a later answer only counts as a contradiction.
2. Failures propagate outward as errors. An unsettled item's *verdict* is the outcome it would have
   if all writes were cut now. It follows from the item's state (`states.VERDICTS`), and is at least
   `unknown` if an earlier attempt may have been applied.
3. A fork gives items one or several branches. An item is settled when every required branch has
   settled it; its verdict is the worst of its branches'.
4. A closed delivery has given every item its verdict; it counts later settles and books none.
5. In a transaction, outcomes are final at its commit. Until then the items count as settled, so
   that no write inside sends them twice, and nothing is booked. A rollback makes them unsettled
   again: a batch may be sent once more.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import TYPE_CHECKING, cast
from weakref import ref

from ..classify import distinct
from ..delivery.pacing import LONGEST_ASKED
from ..errors import CircuitOpenError
from ..outcome import Outcome, worst
from .host import PassesReports
from .pacing import WHOLE_BATCH, Pacing
from .states import HELD, SENDING, WAITING, Failures, ItemStates, indices_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from ..clock import Clock, Signal
    from ..errors import ResultMismatch
    from .host import Books, Branches, Details, Slots
    from .states import RetryEnd, Tries

    SinkReference = Callable[[], object]
    """Returns a sink, or `None` if it is gone: a batch must not hold a sink that may hold it."""

GRACE = 0.1
"""Seconds from a write's cancellation to the verdicts of its items if it does not end."""


class HoldingSink:
    """Base of the sinks that hold the outcomes of their batches: transactions."""

    destination: object
    """The sink by which items are settled after the commit."""


class HeldOutcomes(PassesReports["Books"]):
    """The books of a delivery inside a transaction, over its own `books`: outcomes are held."""

    __slots__ = ("_outcomes", "holder", "settled_by")

    def __init__(
        self, books: Books | None, holder: HoldingSink, settled_by: tuple[SinkReference, ...]
    ) -> None:
        super().__init__(books)
        self.holder = holder
        """The open transaction."""
        self.settled_by = settled_by
        """The sinks that had settled items of the delivery before."""
        self._outcomes: list[tuple[Sequence[int], Outcome, Details]] = []

    def book_outcome(self, indices: Sequence[int], outcome: Outcome, details: Details) -> None:
        self._outcomes.append((indices, outcome, details))

    @property
    def has_any(self) -> bool:
        return bool(self._outcomes)

    def book(self) -> None:
        """Book the held outcomes."""
        if self.books is not None:
            for indices, outcome, details in self._outcomes:
                self.books.book_outcome(indices, outcome, details)

    def reopen(self, states: ItemStates, *, doubtful: bool) -> None:
        """Make the items unsettled."""
        for indices, _, _ in self._outcomes:
            states.reopen(indices, doubtful=doubtful)


def _strong_reference(sink: object) -> SinkReference:
    """For a sink whose class does not support weak references."""
    return lambda: sink


class Delivery(PassesReports["Books"]):
    """The progress of one sealed batch: item states, errors, forks and pacing."""

    __slots__ = (
        "__weakref__", "_closed", "_failures", "_forks", "_listeners", "_pacing", "_slots", "activity",
        "distrusts", "held", "keeps_prefix", "labels", "late", "settled_by", "states", "withdrawn",
    )  # fmt: skip

    def __init__(
        self,
        size: int,
        books: Books | None = None,
        slots: Slots | None = None,
        *,
        pacing: Pacing | None = None,
        labels: tuple[str, ...] = (),
        keeps_prefix: bool = False,
    ) -> None:
        self.books = books
        self.held: HeldOutcomes | None = None
        """The books inside a transaction."""
        self.settled_by: tuple[SinkReference, ...] = ()
        """The sinks whose writes have settled items; in a transaction, those of it."""
        self.labels = labels
        """The path of forks to this delivery, outermost first; part of every `write_key`."""
        self.keeps_prefix = keeps_prefix  # whether the prefix rule holds; see `order/prefix.py`
        self.states = ItemStates(size)
        self.activity: object = WHOLE_BATCH
        """The activity of the writes on this delivery; see `activity`."""
        self.late = 0  # items settled after this delivery was closed
        self.distrusts: dict[int, ResultMismatch] | None = None
        """By item: an invalid `settle` that its write has not reported yet."""
        self.withdrawn: set[int] | None = None
        """Items that no write may have any more; see `_core/order/left_out.py`."""
        self._slots = slots
        self._pacing = pacing  # created at the first access: most batches never back off
        self._closed = False
        self._failures: Failures | None = None  # created at the first failure
        self._forks: tuple[Branches, ...] = ()
        self._listeners: tuple[Callable[[float], None], ...] = ()

    def keep_prefix(self) -> None:
        """Apply the prefix rule. A method, since keyword arguments of a constructor are slow."""
        self.keeps_prefix = True

    def detach(self) -> None:
        """Drop references to the batcher and to errors, so that the items are freed immediately.

        The tracebacks of errors hold the batch.
        """
        self.books = self.held = None
        self._slots = None
        self._failures = None
        if self._pacing is not None:
            self._pacing.detach()

    # -- queries -----------------------------------------------------------------------------------

    @property
    def is_fresh(self) -> bool:
        return self.states.is_fresh

    @property
    def left(self) -> int:
        return self.states.left

    @property
    def closed(self) -> bool:
        """Whether every item has its final outcome, from an answer or by verdict."""
        return self._closed

    @property
    def was_cut(self) -> bool:
        """Whether this delivery itself is closed, independent of its parents."""
        return self._closed

    @property
    def maybe_applied(self) -> AbstractSet[int]:
        return self.states.maybe

    @property
    def has_stragglers(self) -> bool:
        """Whether a settled item may still be unsent on a best-effort branch."""
        return any(fork.has_stragglers for fork in self._forks)

    def is_settled(self, index: int) -> bool:
        return self.states.is_settled(index)

    def error(self, index: int) -> BaseException | None:
        return None if self._failures is None else self._failures.errors.get(index)

    def tries(self, index: int) -> Tries | None:
        return None if self._failures is None else self._failures.tries.get(index)

    def verdict(self, index: int) -> Outcome:
        """Return the item's outcome, or the outcome it would have if all writes were cut now."""
        if not self._forks:
            return self.states.verdict(index)
        forked = [fork.verdict(index) for fork in self._forks if index in fork.members]
        return self.states.verdict(index, worst(forked) if forked else None)

    def verdicts(self, indices: Sequence[int]) -> dict[Outcome, int]:
        return dict(Counter(map(self.verdict, indices)))

    def ended(self, index: int, error: BaseException) -> Outcome:
        return self.states.ended(index, error)

    # -- transactions ------------------------------------------------------------------------------

    def __getstate__(self) -> object:
        """Leave the sinks out of a copy: they may hold the batch, and stay where they are."""
        _, slots = cast("tuple[None, dict[str, object]]", super().__getstate__())
        books = self.books if self.held is None else self.held.books
        return None, {**slots, "books": books, "held": None, "settled_by": ()}

    def note_settled_by(self, sink: object) -> None:
        """Add a sink whose write has settled items."""
        for known in self.settled_by:
            if known() is sink:
                return
        try:
            made: SinkReference = ref(sink)
        except TypeError:
            made = _strong_reference(sink)
        self.settled_by += (made,)

    def hold_outcomes(self, holder: HoldingSink) -> None:
        """Hold outcomes from now on, until `end_hold`."""
        if self.held is None:
            self.books = self.held = HeldOutcomes(self.books, holder, self.settled_by)
            self.settled_by = ()

    def end_hold(self, *, is_committed: bool, doubtful: bool = False) -> None:
        """Book held outcomes after a commit, or make their items unsettled.

        A `doubtful` commit may have been applied, and so may its items.
        """
        held, self.held = self.held, None
        if held is None:
            return
        self.books, self.settled_by = held.books, held.settled_by
        if not is_committed:
            held.reopen(self.states, doubtful=doubtful)
        elif held.has_any:
            self.note_settled_by(held.holder.destination)
            held.book()

    # -- writes ------------------------------------------------------------------------------------

    def begin(self, indices: Sequence[int]) -> None:
        """Record the start of a write. Raises `CancelledError` if closed: no write after a cut."""
        if self._closed:
            raise asyncio.CancelledError
        self.states.move(indices, SENDING)

    def hold(self, indices: Sequence[int], *, tried: bool) -> None:
        """Record items that wait for other parts of their write; keep their errors if `tried`."""
        self.states.move(indices, HELD)
        if self._failures is not None and not tried:
            self._failures.forget_errors(indices)

    def failed(self, errors: Mapping[int, BaseException]) -> None:
        """Record the errors of an ended write."""
        each = distinct(errors.values())
        sent = self.states.sent(errors)
        if uncalled := [error for error in each if isinstance(error, CircuitOpenError)]:
            without_call = {*indices_of(uncalled, errors)}
            sent = [index for index in sent if index not in without_call]
        self._count_try(sent)
        self.states.fail(errors, each)
        self._known_failures().errors.update(errors)
        self.heard(each)

    def interrupted(self, indices: Iterable[int]) -> None:
        """Record a cancelled write; those of its items that were sent may have been applied."""
        sent = self.states.sent(indices)
        self._count_try(sent)
        self.states.cut(sent)

    def doubt(self, indices: Iterable[int]) -> None:
        self.states.doubt(indices)

    def end_retries(self, ends: Sequence[tuple[BaseException, RetryEnd]]) -> None:
        """Record the errors with which items have left a retry, for dead letters outside of it."""
        self._known_failures().end_retries(ends)

    def retry_end(self, error: BaseException) -> RetryEnd | None:
        """Return why retries have ended with this error; `None` if none have."""
        return None if self._failures is None else self._failures.retry_end(error)

    def recall(self, index: int, tries: Tries) -> None:
        """Continue the count of earlier attempts, so that a dead letter shows all of them."""
        self._known_failures().tries[index] = tries

    def _count_try(self, indices: Sequence[int]) -> None:
        if indices:
            self._known_failures().count_try(indices, self.clock.now())

    def _known_failures(self) -> Failures:
        if self._failures is None:
            self._failures = Failures()
        return self._failures

    # -- invalid answers ---------------------------------------------------------------------------

    def distrust(self, indices: Sequence[int], error: ResultMismatch) -> None:
        """Mark the unsettled items as in doubt after an invalid `settle`; they are not resent."""
        if self.closed:
            return
        doubtful = [index for index in indices if not self.is_settled(index)]
        self.distrusts = dict.fromkeys(doubtful, error) | (self.distrusts or {})
        self.doubt(doubtful)

    def distrusted(self, indices: Iterable[int]) -> ResultMismatch | None:
        """Return the error of the first of these items that an invalid `settle` left in doubt."""
        known = self.distrusts
        if not known:
            return None
        return next((known[index] for index in indices if index in known), None)

    def forget_distrust(self, indices: Iterable[int]) -> None:
        if self.distrusts:
            for index in indices:
                self.distrusts.pop(index, None)

    # -- outcomes ----------------------------------------------------------------------------------

    def settle(self, indices: Sequence[int], outcome: Outcome, details: Details = None) -> None:
        """Book a safe outcome; after closing, only count it."""
        if self._closed:
            self.late += len(indices)
            return
        settled = self.states.settle(indices, outcome)
        if settled and self.books is not None:
            self.books.book_outcome(settled, outcome, details)

    def finish(self, indices: Sequence[int], outcome: Outcome, details: Details = None) -> None:
        """Book a final outcome for the unsettled ones of these items."""
        settled = self.states.settle(indices, outcome)
        if settled and self.books is not None:
            self.books.book_outcome(settled, outcome, details)

    def put_back(self, indices: Sequence[int]) -> None:
        """Release items that return to the open batch; book nothing."""
        self.states.settle(indices, Outcome.UNSENT)

    def withdraw(self, indices: Collection[int]) -> None:
        """Stop sending these items, on any branch; a write in flight may still deliver them."""
        self.withdrawn = {*indices, *(self.withdrawn or ())}
        for fork in self._forks:
            fork.withdraw(indices)

    def left_out(self, errors: Mapping[int, BaseException]) -> None:
        """Record the errors of items that are not sent again; this counts no attempt."""
        self.states.fail(errors, distinct(errors.values()))
        self._known_failures().errors.update(errors)

    def verdict_unsent(self, index: int) -> Outcome:
        """Like `verdict`, for an item whose failure is not final: `unsent` if applied nowhere."""
        verdict = self.verdict(index)
        if verdict is not Outcome.REJECTED:
            return verdict
        forks = [fork for fork in self._forks if index in fork.members]
        is_partly = index in self.states.partly or any(fork.has_part_of(index) for fork in forks)
        return Outcome.UNKNOWN if is_partly else Outcome.UNSENT

    def close(self) -> None:
        """Make the verdict of every unsettled item final."""
        if self._closed:
            return
        self.end_hold(is_committed=False, doubtful=True)
        by_outcome: dict[Outcome, list[int]] = {}
        for index in self.states.unsettled():
            by_outcome.setdefault(self.verdict(index), []).append(index)
        for outcome, indices in by_outcome.items():
            self.finish(indices, outcome)
        self._closed = True

    # -- forks -------------------------------------------------------------------------------------

    def fork_begins(self, fork: Branches) -> None:
        self._forks += (fork,)

    def fork_ends(self, fork: Branches) -> None:
        """Take over the branches' knowledge of unsettled items."""
        for index in fork.members:
            if self.is_settled(index):
                continue
            self.states.leave_fork(index, fork.verdict(index), partly=fork.has_part_of(index))
            self._known_failures().take_over(index, fork.tries(index))
        self._forks = tuple(other for other in self._forks if other is not fork)

    # -- pacing ------------------------------------------------------------------------------------

    @property
    def pacing(self) -> Pacing:
        if self._pacing is None:
            self._pacing = Pacing(self._slots)
        return self._pacing

    @property
    def clock(self) -> Clock:
        return self.pacing.clock

    @property
    def deadline(self) -> float | None:
        return self.pacing.deadline

    @property
    def stopping(self) -> bool:
        """Whether backoffs are shortened: in a shutdown, or because this branch is hurried."""
        return self.pacing.stopping or self.is_hurried

    @property
    def waits_for_repair(self) -> bool:
        return self.pacing.waits_for_repair

    @property
    def is_hurried(self) -> bool:
        """Whether the fork has stopped waiting: a backoff ends with one immediate last attempt."""
        return False

    @property
    def lets_pass(self) -> bool:
        """Whether later batches may overtake this one although a single worker keeps the order."""
        return self._pacing is not None and self._pacing.lets_pass

    def let_pass(self, *, others: bool) -> None:
        self.pacing.let_pass(others=others)

    def has_time(self, lasts: float) -> bool:
        return not self.is_hurried and self.pacing.has_time(lasts)

    def new_stretch(self) -> None:
        """Restart the flush timeout for another destination."""
        self.pacing.watch(self.activity)

    def join(self, activity: object) -> None:
        self.activity = activity

    async def back_off(
        self,
        indices: Sequence[int],
        until: float,
        *signals: Signal,
        through_stop: bool = False,
        not_before: float = 0.0,
        lasts: float = 0.0,
    ) -> bool:
        """See `Batch.back_off`."""
        if self.closed:
            raise asyncio.CancelledError
        pacing, through = self.pacing, through_stop
        when = pacing.next_try(until, through_stop=through, not_before=not_before, lasts=lasts)
        if when is None or self.is_hurried:
            return True
        self.states.move(indices, WAITING)
        ends = (*signals, *self.hurries())
        await pacing.rest(
            self, when, *ends, through_stop=through, not_before=not_before, lasts=lasts
        )
        return self.is_hurried if through_stop else not self.has_time(lasts)

    def hurries(self) -> tuple[Signal, ...]:
        return ()

    # -- reports to the batcher --------------------------------------------------------------------

    def throttled(self, until: float) -> None:
        """Report the end of a requested pause; infinity means `LONGEST_ASKED`, NaN no pause."""
        if math.isnan(until):
            return
        if math.isinf(until):
            until = self.clock.now() + LONGEST_ASKED
        for listener in self._listeners:
            listener(until)
        super().throttled(until)

    def listen(self, listener: Callable[[float], None]) -> None:
        """Call `listener` with the end of each pause requested here or on a branch."""
        self._listeners += (listener,)

    def unlisten(self, listener: Callable[[float], None]) -> None:
        place = self._listeners.index(listener)
        self._listeners = self._listeners[:place] + self._listeners[place + 1 :]
