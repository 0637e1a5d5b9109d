"""What flows between a sealed batch and its batcher during a write.

One `Delivery` per sealed batch, shared by everything picked or derived from it. Outside a batcher
(no host) it is a harmless stand-in. Indices here are the sealed batch's.

1. Success is final at once: `settle` books it, and later answers for the item only count if they
   contradict it.
2. Failure travels outward as errors. What an unsettled item would become if everything were cut now
   is its *verdict*, read from where it stands: not sent, or waiting in a backoff or for its turn,
   is `unsent`, failed and waiting for its series is `rejected`, at the destination is `unknown`.
   Whatever may have been applied by an earlier try is `unknown` too.
3. A fork gives items several ways at once (or one other way). An item is settled when every
   required branch has settled it; its verdict is the worst of its branches'.
4. A closed delivery has given every item its verdict. It remembers later settles and books none.
5. A batch holds one flush slot while at least one of its activities (one, or one per branch that
   goes on beside others) is not backing off. The flush timeout runs for each activity by itself,
   and stands still while that one backs off.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..clock import LOOP_CLOCK, Signal, wait_until
from ..errors import CircuitOpenError, ResultMismatch, StoppedError, UnknownOutcomeError
from ..outcome import Outcome, outcome_of, worst
from ..patience import LONGEST_ASKED, latest_try, next_try

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..clock import Clock
    from ..condition import Condition
    from ..errors import ErrorClass
    from .fork import Fork
    from .host import Books, Slots

Settled = Callable[[Sequence[int], Outcome, Mapping[int, object] | None], None]

GRACE = 0.1
"""Seconds that a write has to end after it was cut, before its items get their verdicts without
it.
"""

_FRESH, _SENDING, _FAILED, _WAITING, _CUT, _HELD, _SETTLED = 0, 1, 2, 3, 4, 5, 8
_OUTCOMES = tuple(Outcome)
_CODE = {outcome: _SETTLED + place for place, outcome in enumerate(_OUTCOMES)}
_VERDICT = {
    _FRESH: Outcome.UNSENT,
    _SENDING: Outcome.UNKNOWN,
    _FAILED: Outcome.REJECTED,
    _WAITING: Outcome.UNSENT,
    _CUT: Outcome.UNKNOWN,
    _HELD: Outcome.UNSENT,
}
_STANDING = {Outcome.UNSENT: _WAITING, Outcome.REJECTED: _FAILED, Outcome.UNKNOWN: _CUT}


@dataclass(frozen=True, slots=True)
class Tries:
    """The tries of one item that failed. Times are the clock's monotonic seconds."""

    count: int
    first_at: float
    last_at: float


class Delivery:
    """The progress of one sealed batch, or of one branch of it."""

    __slots__ = (
        "_activities",
        "_beside",
        "_books",
        "_closed",
        "_errors",
        "_forks",
        "_hurried",
        "_hurry",
        "_idle",
        "_left",
        "_lets_pass",
        "_line",
        "_listeners",
        "_maybe",
        "_parent",
        "_partly",
        "_settled_by",
        "_slots",
        "_state",
        "_tries",
        "contradictions",
        "distrusts",
        "keeps_prefix",
        "labels",
        "late",
    )

    def __init__(
        self,
        size: int,
        *,
        books: Books | None = None,
        slots: Slots | None = None,
        parent: Delivery | None = None,
        labels: tuple[str, ...] = (),
    ) -> None:
        self.labels = labels
        """The path of forks that led here, outermost first; part of every `write_key`."""
        self.contradictions = 0
        """How many items were settled again with another outcome."""
        self.late = 0
        """How many items were settled after this delivery had been closed."""
        self.keeps_prefix = False
        """Whether an item goes no further than the one before it of its key; see `prefix`."""
        self._books = books
        self._slots = slots
        self._parent = parent
        self._state = bytearray(size)
        self._left = size
        self._closed = False
        self._maybe: set[int] = set()
        self._partly: set[int] = set()
        self._errors: dict[int, BaseException] = {}
        self.distrusts: dict[int, ResultMismatch] = {}
        """By item, a `settle` that did not fit its batch and has not been reported by its write
        yet.
        """
        self._forks: list[Fork[Any]] = []
        self._tries: dict[int, Tries] = {}
        self._settled_by: Settled | None = None
        self._line: Delivery | None = None if parent is None else parent._activity
        self._beside = 0
        self._hurry = Signal()
        self._hurried = False
        self._lets_pass = False
        self._listeners: list[Callable[[float], None]] = []
        self._activities = 1
        self._idle = 0

    # -- what is known -----------------------------------------------------------------------------

    @property
    def is_fresh(self) -> bool:
        """Whether no item has an outcome yet."""
        return self._left == len(self._state)

    @property
    def left(self) -> int:
        """How many items have no outcome yet."""
        return self._left

    @property
    def closed(self) -> bool:
        """Whether every item has its final outcome, by answer or by verdict."""
        return self._closed or (self._parent is not None and self._parent.closed)

    @property
    def was_cut(self) -> bool:
        """Whether this branch itself was closed: it had its time, and what it still does changes
        nothing.
        """
        return self._closed

    @property
    def clock(self) -> Clock:
        """The batcher's clock; the running loop's outside a batcher."""
        slots = self._root._slots
        return LOOP_CLOCK if slots is None else slots.clock

    @property
    def deadline(self) -> float | None:
        """When writes will be cut, once a shutdown has begun."""
        slots = self._root._slots
        return None if slots is None else slots.deadline

    @property
    def stopping(self) -> bool:
        """Whether a shutdown has begun, or this branch is not waited for any more: backoffs are
        shortened, or end.
        """
        slots = self._root._slots
        return (slots is not None and slots.stopping) or self.is_hurried

    @property
    def waits_for_repair(self) -> bool:
        """Whether a destination that refuses everything is waited for. Not outside a batcher, where
        no log would tell of the wait.
        """
        slots = self._root._slots
        return slots is not None and slots.waits_for_repair

    @property
    def is_hurried(self) -> bool:
        """Whether this branch is not waited for any more: what backs off has one immediate last
        try.
        """
        return any(delivery._hurried for delivery in self._way())

    @property
    def maybe_applied(self) -> set[int]:
        """The items of which an earlier try ended in an unknown outcome."""
        return self._maybe

    @property
    def _root(self) -> Delivery:
        delivery = self
        while delivery._parent is not None:
            delivery = delivery._parent
        return delivery

    @property
    def _activity(self) -> Delivery:
        """The delivery that stands for this one's activity. Nothing refers to itself: a batch must
        be free as soon as nobody holds it.
        """
        return self if self._line is None else self._line

    def _way(self) -> Iterator[Delivery]:
        """This delivery and what it branched off from, without the batch's own."""
        delivery = self
        while delivery._parent is not None:
            yield delivery
            delivery = delivery._parent

    def is_settled(self, index: int) -> bool:
        """Whether the item has its outcome."""
        return self._state[index] >= _SETTLED

    def error(self, index: int) -> BaseException | None:
        """The last error that a try of this item ended with."""
        return self._errors.get(index)

    def tries(self, index: int) -> Tries | None:
        """What is known of the item's failed tries; `None` where none failed."""
        return self._tries.get(index)

    def recall(self, index: int, tries: Tries) -> None:
        """Count on from tries that were made before this delivery began; a dead letter then tells
        of all of them.
        """
        self._tries[index] = tries

    def verdict(self, index: int) -> Outcome:
        """The item's outcome, or what it would be if everything were cut now."""
        code = self._state[index]
        if code >= _SETTLED:
            return _OUTCOMES[code - _SETTLED]
        forks = [fork for fork in self._forks if index in fork.members]
        if forks:
            answer = worst(fork.verdict(index) for fork in forks)
        elif code == _FAILED and isinstance(self._errors.get(index), StoppedError):
            answer = Outcome.UNSENT
        else:
            answer = _VERDICT[code]
        if index in self._partly and answer is Outcome.UNSENT:
            return Outcome.UNKNOWN
        return Outcome.UNKNOWN if index in self._maybe and not answer.is_success else answer

    def was_applied_in_part(self, index: int) -> bool:
        """Whether one of several branches has the item, although it has not succeeded as a
        whole.
        """
        return index in self._partly

    def ended(self, index: int, error: BaseException) -> Outcome:
        """The outcome of an item whose series ended with `error`: what was applied in a part is
        never unsent.
        """
        outcome = outcome_of(error, maybe_applied=index in self._maybe)
        return Outcome.UNKNOWN if outcome is Outcome.UNSENT and index in self._partly else outcome

    def verdicts(self, indices: Sequence[int]) -> dict[Outcome, int]:
        """How many of these items have, or would have, each outcome."""
        counts: dict[Outcome, int] = {}
        for index in indices:
            verdict = self.verdict(index)
            counts[verdict] = counts.get(verdict, 0) + 1
        return counts

    # -- answers that do not fit -------------------------------------------------------------------

    def distrust(self, indices: Sequence[int], error: ResultMismatch) -> None:
        """A `settle` did not fit its batch: those of these items that have no outcome may have been
        applied, and are not sent again.
        """
        if self.closed:
            return
        doubtful = [index for index in indices if not self.is_settled(index)]
        self.distrusts.update((index, error) for index in doubtful if index not in self.distrusts)
        self._maybe.update(doubtful)

    def distrusted(self, indices: Iterable[int]) -> ResultMismatch | None:
        """The error of the first of these items that a `settle` left in doubt."""
        return next(
            (error for index in indices if (error := self.distrusts.get(index)) is not None), None
        )

    def reported(self, indices: Iterable[int]) -> None:
        """The write of these items has failed with that error, so it is known outside."""
        for index in indices:
            self.distrusts.pop(index, None)

    # -- what happens ------------------------------------------------------------------------------

    def begin(self, indices: Sequence[int]) -> None:
        """A write of these items begins. Raises `CancelledError` on a closed delivery: after a cut
        nothing is sent.
        """
        if self.closed:
            raise asyncio.CancelledError
        self._mark(indices, _SENDING)

    def hold(self, indices: Sequence[int], *, tried: bool) -> None:
        """These are not at the destination, while others of a write in parts are. What was not
        tried in it has no error of its own.
        """
        self._mark(indices, _HELD)
        if self._errors and not tried:
            for index in indices:
                self._errors.pop(index, None)

    def is_held(self, index: int) -> bool:
        """Whether the item waits while others of its write are at the destination."""
        return self._state[index] == _HELD

    def failed(self, errors: Mapping[int, BaseException]) -> None:
        """A write has ended with these errors."""
        self._count_tries(errors)
        self._mark(errors, _FAILED)
        self._errors.update(errors)
        self._maybe.update(
            i for i, error in errors.items() if isinstance(error, UnknownOutcomeError)
        )
        self.heard(errors.values())

    def heard(self, errors: Iterable[BaseException]) -> None:
        """A write, or a part of one, has ended with these errors, whatever becomes of its items:
        what they say about load is the batcher's.
        """
        books = self._root._books
        if books is not None:
            books.heard(errors)

    def interrupted(self, indices: Iterable[int]) -> None:
        """A write of these items was cancelled: those still at the destination may have been
        applied.
        """
        state = self._state
        cut = [index for index in indices if state[index] == _SENDING]
        self._count_tries(dict.fromkeys(cut))
        for index in cut:
            state[index] = _CUT
        self._maybe.update(cut)

    def _count_tries(self, errors: Mapping[int, BaseException | None]) -> None:
        """Count a try once, where it ended: what passes on through the decorators is no longer at
        the destination.
        """
        state = self._state
        ended = [
            i
            for i, error in errors.items()
            if state[i] == _SENDING and not isinstance(error, CircuitOpenError)
        ]
        if not ended:
            return
        now = self.clock.now()
        for index in ended:
            before = self._tries.get(index)
            self._tries[index] = (
                Tries(1, now, now)
                if before is None
                else Tries(before.count + 1, before.first_at, now)
            )

    def settle(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None = None
    ) -> None:
        """Book a success for good. A closed delivery remembers it and books nothing."""
        if self.closed:
            self.late += len(indices)
            return
        new = indices if self.is_fresh else self._not_settled(indices, _CODE[outcome])
        if new:
            self._finish(new, outcome, details)

    def close(self) -> None:
        """Give every unsettled item its verdict now. What a deaf sink answers later changes
        nothing.
        """
        if self._closed:
            return
        by_outcome: dict[Outcome, list[int]] = {}
        for index, code in enumerate(self._state):
            if code < _SETTLED:
                by_outcome.setdefault(self.verdict(index), []).append(index)
        for outcome, indices in by_outcome.items():
            self._finish(indices, outcome, None)
        self._closed = True

    def finish(self, indices: Sequence[int], outcome: Outcome) -> None:
        """Give these items, settled or not, a final outcome that may be a failure. Only the
        batcher, at the end of a series.
        """
        new = self._not_settled(indices, _CODE[outcome])
        if new:
            self._finish(new, outcome, None)

    def withdraw(self, indices: Sequence[int]) -> None:
        """These items are not this delivery's any more: they go back to where they came from,
        without an outcome.
        """
        self._mark_all(indices, _CODE[Outcome.UNSENT])
        self._left -= len(indices)

    def _finish(
        self, indices: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None
    ) -> None:
        self._mark_all(indices, _CODE[outcome])
        self._left -= len(indices)
        if self._settled_by is not None:
            self._settled_by(indices, outcome, details)
        elif self._books is not None:
            self._books.settled(indices, outcome, details)

    def _not_settled(self, indices: Sequence[int], code: int) -> list[int]:
        state = self._state
        self.contradictions += sum(1 for i in indices if state[i] >= _SETTLED and state[i] != code)
        return [i for i in indices if state[i] < _SETTLED]

    def _mark(self, indices: Iterable[int], code: int) -> None:
        state = self._state
        if self.is_fresh and isinstance(indices, range) and len(indices) == len(state):
            state[:] = bytes((code,)) * len(state)
            return
        for index in indices:
            if state[index] < _SETTLED:
                state[index] = code

    def _mark_all(self, indices: Sequence[int], code: int) -> None:
        state = self._state
        if len(indices) == len(state):
            state[:] = bytes((code,)) * len(state)
            return
        for index in indices:
            state[index] = code

    def detach(self) -> None:
        """The batcher is done with this batch. Host and batch hold each other, so its items would
        otherwise wait for the garbage collector.
        """
        self._books = self._slots = None

    # -- forks -------------------------------------------------------------------------------------

    def branch(
        self, label: str, settled_by: Settled | None, maybe_applied: Iterable[int]
    ) -> Delivery:
        """A delivery for the same items on a way of their own."""
        branch = Delivery(len(self._state), parent=self, labels=(*self.labels, label))
        branch._settled_by = settled_by
        branch._maybe.update(maybe_applied)
        return branch

    @property
    def has_stragglers(self) -> bool:
        """Whether an item may have its outcome here while a branch that nobody waits for is still
        to be sent it.
        """
        return any(fork.has_stragglers for fork in self._forks)

    def fork_begins(self, fork: Fork[Any]) -> None:
        """Until it ends, the fork's branches know more of its items than this delivery does."""
        self._forks.append(fork)

    def fork_ends(self, fork: Fork[Any]) -> None:
        """Keep what the branches knew of items that are not settled."""
        for index in fork.members:
            if self.is_settled(index):
                continue
            verdict = fork.verdict(index)
            self._state[index] = _STANDING.get(verdict, self._state[index])
            if verdict is Outcome.UNKNOWN:
                self._maybe.add(index)
            if fork.has_part_of(index):
                self._partly.add(index)
            own, theirs = self._tries.get(index), fork.tries(index)
            if theirs is not None and (own is None or theirs.count > own.count):
                self._tries[index] = theirs
        self._forks.remove(fork)

    # -- waiting, slots and the flush timeout ------------------------------------------------------

    async def back_off(
        self,
        indices: Sequence[int],
        until: float,
        *signals: Signal,
        through_stop: bool = False,
        not_before: float = 0.0,
        lasts: float = 0.0,
    ) -> bool:
        """Wait, as `Batch.back_off` says."""
        if self.closed:
            raise asyncio.CancelledError
        if math.isnan(until):
            until = self.clock.now()
        began_stopping = self.stopping
        when = self._next_try(until, through_stop=through_stop, not_before=not_before, lasts=lasts)
        if when is None:
            return True
        self._mark(indices, _WAITING)
        root = self._root
        slots = root._slots
        signals = (*signals, *(delivery._hurry for delivery in self._way()))
        if slots is None:
            await wait_until(self.clock, when, *signals)
            return self.is_hurried
        slots.unwatch(self._activity)
        root._rest(slots)
        try:
            await slots.pause(when, *signals, through_stop=through_stop)
            if self._is_asked_to_wait(not_before, lasts) and not began_stopping:
                await slots.pause(not_before, *signals, through_stop=True)
            if self.closed:
                raise asyncio.CancelledError
            await slots.take_slot()
        except BaseException:
            slots.force_slot()
            raise
        finally:
            root._idle -= 1
            slots.watch(self._activity)
        return self.is_hurried if through_stop else not self.has_time(lasts)

    def _next_try(
        self, until: float, *, through_stop: bool, not_before: float = 0.0, lasts: float = 0.0
    ) -> float | None:
        """When a batch that would wait until then tries again; `None` if no time is left for
        another wait and a try.
        """
        if self.is_hurried:
            return None
        if through_stop or not self.stopping:
            return until
        deadline = self.deadline
        if deadline is None:
            return None
        return next_try(self.clock.now(), until, deadline, not_before=not_before, lasts=lasts)

    def has_time(self, lasts: float) -> bool:
        """Whether a try that takes so many seconds can end before a shutdown cuts writes."""
        if not self.stopping:
            return True
        deadline = self.deadline
        return (
            deadline is not None
            and not self.is_hurried
            and self.clock.now() <= latest_try(deadline, lasts)
        )

    def _is_asked_to_wait(self, not_before: float, lasts: float) -> bool:
        """Whether a shutdown has begun in the middle of a wait that the destination asked for, and
        that leaves time for a try.
        """
        deadline = self.deadline
        if (
            deadline is None
            or not self.stopping
            or self.is_hurried
            or not_before <= self.clock.now()
        ):
            return False
        return not_before <= latest_try(deadline, lasts)

    def _rest(self, slots: Slots) -> None:
        self._idle += 1
        if self._idle == self._activities:
            slots.give_slot()

    @property
    def lets_pass(self) -> bool:
        """Whether a later batch may go first, although one worker keeps batches in order: otherwise
        none ever would.
        """
        return self._root._lets_pass

    def let_pass(self, *, others: bool) -> None:
        """Say whether later batches may go first while this one backs off."""
        self._root._lets_pass = others

    def hurry(self) -> None:
        """Nobody waits for this branch any more: what backs off has one immediate last try."""
        self._hurried = True
        self._hurry.fire()

    def go_on_beside(self, lines: Sequence[Sequence[Delivery]]) -> None:
        """What follows is written at the same time: each line of branches is an activity until
        `ended_beside` was called for its first.
        """
        root = self._root
        slots = root._slots
        self._activity._beside += len(lines)
        root._activities += len(lines) - 1
        for first, *others in lines:
            first._line = None
            for branch in others:
                branch._line = first
        if slots is not None:
            slots.unwatch(self._activity)
            for first, *_ in lines:
                slots.watch(first)

    def ended_beside(self, branch: Delivery) -> None:
        """A line has ended; with the last of them the activity that had started them goes on."""
        root = self._root
        slots = root._slots
        self._activity._beside -= 1
        if slots is not None:
            slots.unwatch(branch)
        if not self._activity._beside:
            if slots is not None:
                slots.watch(self._activity)
            return
        root._activities -= 1
        if slots is not None and root._idle == root._activities:
            slots.give_slot()

    def new_stretch(self) -> None:
        """Another destination comes next: the flush timeout counts from now."""
        slots = self._root._slots
        if slots is not None:
            slots.watch(self._activity)

    def listen(self, listener: Callable[[float], None]) -> None:
        """Have `listener` called with the end of each pause that a destination on this delivery, or
        on a branch of it, asks for.
        """
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[float], None]) -> None:
        """Not any more."""
        self._listeners.remove(listener)

    def report(self, source: object, condition: Condition | None) -> None:
        """Tell the batcher the state of a destination, as `source` knows it; `None`: it is
        available.
        """
        books = self._root._books
        if books is not None:
            books.reported(source, condition)

    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None:
        """Tell the batcher that so many items are to be sent again after `delay` seconds."""
        books = self._root._books
        if books is not None:
            books.retrying(kind, items, delay)

    def throttled(self, until: float) -> None:
        """Pass on the end of a pause that the destination asks for, to the decorators that listen
        and to the batcher.

        A time without end counts as the longest pause that is believed, and what is no number as
        none.
        """
        if math.isnan(until):
            return
        if math.isinf(until):
            until = self.clock.now() + LONGEST_ASKED
        for delivery in (*self._way(), self._root):
            for listener in delivery._listeners:
                listener(until)
        books = self._root._books
        if books is not None:
            books.throttled(until)
