"""A batcher behind a source that may lose items at any time, such as a partition's claim.

1. The source submits items with its own receipts. Several items may share one.
2. `withdraw` takes items back: items that are not in a write end immediately, and the others are
   not sent again.
3. With `holds`, an item that ended `unknown` (or `rejected`, or `unsent`, like items in a backoff
   when their write is cut) holds its key, so that no later item of the key overtakes it, until it
   is resubmitted (`resubmit`) or its key is released (`release`).

A submission accepts as many items at a time as fit:

1. Items are accepted in order, in pieces. A submission waits for the room of its next item alone,
   so that held keys cannot make it wait for more room than there can ever be.
2. A refused item does not affect others: it is listed with its error.
3. *Yield first, append last*: a submission suspends before it accepts a piece, never after.
4. Withdrawn items are refused, even if their room is already granted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .._core import checks
from .._core.classify import classified
from .._core.errors import ConfigError, WithdrawnError
from .._core.order.left_out import WITHDRAWN
from .._core.outcome import Outcome
from .._core.sink import classifier_of, walk
from .gathering.pack import AddGroup
from .receipt import original

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Sequence

    from .._core.clock import Signal
    from .._core.errors import ErrorClass
    from .dispatch import Dispatcher
    from .gathering.pack import Matches
    from .intake import Intake
    from .ledger import Waiter
    from .receipt import Resolvable, ResolvesAll
    from .reservations import Reservation


T = TypeVar("T")

HOLDABLE = frozenset({Outcome.UNKNOWN, Outcome.REJECTED, Outcome.UNSENT})

PIECE = 1024
"""Number of items that are measured and keyed at a time."""


class Feed(Generic[T]):
    """A source's side of a batcher, made by `Batcher.feed`. It belongs to the batcher's loop.

    A receipt is any object with `resolve(outcome, cause, detail)`, called once per accepted item,
    in the middle of a step of the batcher: it must not raise, and must not use the batcher.
    """

    def __init__(
        self,
        dispatcher: Dispatcher[T],
        intake: Intake[T],
        holds: Collection[Outcome],
        resolve_all: ResolvesAll | None,
    ) -> None:
        setup = dispatcher.setup
        for outcome in holds:
            if outcome not in HOLDABLE:
                raise checks.bad(
                    "holds", outcome, "must be among Outcome.UNKNOWN, REJECTED, UNSENT"
                )
        if setup.overflow != "block":
            raise checks.bad(
                "overflow", setup.overflow, 'feed() needs "block", since a source waits'
            )
        if setup.last_resort is not None:
            raise ConfigError("feed() takes no last_resort=: the source still has unsent items")
        if holds and setup.on_key_failure not in {"skip", "pause"}:
            rule = 'feed(holds=) needs "skip" or "pause", since held items are resubmitted'
            raise checks.bad("on_key_failure", setup.on_key_failure, rule)
        self._dispatcher = dispatcher
        self._intake = intake
        self._submissions: set[Submission[T]] = set()
        dispatcher.books.follow_source(holds, resolve_all)

    def submit(self, items: Sequence[T], receipts: Sequence[Resolvable]) -> Submission[T]:
        """Accept items in order, each with the receipt at its index, in pieces as there is room.

        `await` the result: it waits for room without a limit, and returns a list of (index, error)
        of the refused items, usually `[]`: `ItemTooLarge`, `KeyFailedError`, `TypeError`, the error
        of a function of that item, and `WithdrawnError` for an item that was withdrawn before it
        was accepted. A refused item's receipt never resolves, and no other item is affected. Raises
        `ClosedError` once the batcher is closed. The submission's `taken` and `refused` show the
        items accepted before that, or before a cancellation.
        """
        if len(items) != len(receipts):
            raise ValueError(f"submit: {len(items)} items with {len(receipts)} receipts")
        return Submission(self._dispatcher, self._intake, items, receipts, self._submissions)

    def withdraw(self, predicate: Callable[[Resolvable], object]) -> int:
        """Take back all items with matching receipts; return how many it ended. Never suspends.

        - Items that are not in a write end `unsent`, or `unknown` if an earlier attempt may have
          applied them. This includes items of batches that back off.
        - Items at the destination are delivered if that write succeeds. If it fails they end the
          same way, and nothing sends them again: no retry, branch or dead letter.
        - Items that wait to be accepted are refused with `WithdrawnError`.

        The cause in the receipts is a `WithdrawnError`. Withdrawn items hold no key, but a key held
        by an item that ended before stays held; see `release`. This also works in a shutdown. An
        item for which `predicate` raises is not withdrawn, and the first such exception is raised
        at the end.
        """
        dispatcher, errors = self._dispatcher, list[Exception]()
        dispatcher.lifecycle.check_here()
        if not dispatcher.lifecycle.is_running:
            return 0

        def matches(receipt: Resolvable) -> bool:
            try:
                return bool(predicate(original(receipt)))
            except Exception as error:
                errors.append(error)
                return False

        error = WithdrawnError(f"not sent: {WITHDRAWN}")
        with dispatcher.step():
            dispatcher.window.close()
            for submission in tuple(self._submissions):
                submission.turn_away(matches)
            dispatcher.window.close()
            gone = dispatcher.gathering.gatherer.withdraw(matches, dispatcher.clock.now())
            dispatcher.books.withdraw(gone, error)
            ended = len(gone)
            ended += sum(flight.withdraw(matches, error) for flight in dispatcher.flights)
            dispatcher.room_freed()
            dispatcher.check_fences()
            dispatcher.notify()
        if errors:
            raise errors[0]
        return ended

    def resubmit(
        self,
        items: Iterable[T],
        receipts: Iterable[Resolvable],
        *,
        maybe_applied: bool | Collection[int],
    ) -> None:
        """Accept items of one key again, in front of the waiting ones, and release the key.

        They are all items of the key that have ended with an outcome of `holds`, in their order. If
        a write of the key's earlier turn has not ended because it ignores its cancellation, they
        wait for it. `maybe_applied`, for all or by index, marks them in the next batch
        (`Batch.maybe_applied`) and in their outcome. Without keys they go to the end.

        They count as accepted once more, and need no room: they may exceed the ledger's bound.
        Never suspends. Raises `ValueError` for items of several keys, `ClosedError` once closed,
        and the errors of `add` for an invalid item; nothing is accepted then.
        """
        dispatcher = self._dispatcher
        dispatcher.lifecycle.check_open()
        rows, given = tuple(items), tuple(receipts)
        if len(rows) != len(given):
            raise ValueError(f"resubmit: {len(rows)} items with {len(given)} receipts")
        if not rows:
            return
        group = self._intake.measured(rows, given, together=False)
        keys = {*(group.keys or ())} if dispatcher.gathering.holds is not None else set[object]()
        if len(keys) > 1:
            raise ValueError(f"resubmit: items of {len(keys)} keys; resubmit one key at a time")
        doubtful = range(len(rows)) if maybe_applied is True else maybe_applied or ()
        if doubtful:
            wrap = dispatcher.flights.doubts.wrap
            doubts = [wrap(each) if i in doubtful else each for i, each in enumerate(given)]
            group = group._replace(receipts=tuple(doubts))
        with dispatcher.step():
            now = dispatcher.clock.now()
            dispatcher.window.close()
            dispatcher.fail(dispatcher.gathering.gatherer.resubmit(group, now))
            if dispatcher.gathering.holds is not None and group.keys:
                dispatcher.gathering.holds.let_go(group.keys[0], now)
            dispatcher.advance(now)

    def release(self, item: T) -> int:
        """Release the held key of `item`, without the item; return its number of held items.

        A key that is not held does not change, and neither does any key in a shutdown. Never
        suspends.
        """
        dispatcher = self._dispatcher
        dispatcher.lifecycle.check_here()
        holds, identity = dispatcher.gathering.holds, dispatcher.gathering.identity
        if holds is None or identity is None or dispatcher.lifecycle.state != "open":
            return 0
        key = identity(item)
        with dispatcher.step():
            now = dispatcher.clock.now()
            dispatcher.window.close()
            count = holds.let_go(key, now)
            dispatcher.advance(now)
        return count

    # -- questions ---------------------------------------------------------------------------------

    def key_of(self, item: T) -> Hashable:
        """Return a value that identifies the item's key; equal for items of one key. `None`
        if no key is held after a failed item; the key `None` also has a value.
        """
        gathering = self._dispatcher.gathering
        if gathering.holds is None or gathering.identity is None:
            return None
        return (gathering.identity(item),)

    def is_going(self, item: T) -> bool:
        """Return whether a write with an item of this key has not ended yet."""
        holds, identity = self._dispatcher.gathering.holds, self._dispatcher.gathering.identity
        return holds is not None and identity is not None and holds.is_going(identity(item))

    @property
    def landed(self) -> Signal:
        """Fires when the last write under way has ended."""
        return self._dispatcher.flights.changed

    @property
    def is_idle(self) -> bool:
        """Whether all pending items are held because of failed items."""
        dispatcher = self._dispatcher
        held = dispatcher.gathering.held_items
        return not dispatcher.flights and dispatcher.ledger.queued == held

    def classify(self, error: BaseException) -> ErrorClass:
        """Return the class of an error, from the classifiers of the stack's sinks."""
        parts = walk(self._dispatcher.setup.sink)
        return classified(error, *[classifier_of(part) for part in parts])


class Submission(Generic[T]):
    """Submitted items: `await` it until all are accepted or refused.

    Awaiting returns `refused`. It raises `ClosedError` if the batcher closes meanwhile. After that,
    and after a cancellation, `taken` and `refused` show which items were accepted; if it is awaited
    again, it continues with the others.
    """

    def __init__(
        self,
        dispatcher: Dispatcher[T],
        intake: Intake[T],
        items: Sequence[T],
        receipts: Sequence[Resolvable],
        waiting: set[Submission[T]],
    ) -> None:
        self.refused: list[tuple[int, Exception]] = []
        """The items that were not accepted, by index, each with its error; their receipts never
        resolve.
        """
        self._dispatcher = dispatcher
        self._intake = intake
        self._items = tuple(items)
        self._receipts = tuple(receipts)
        self._waiting = waiting
        """The submissions of a feed that may be waiting."""
        self._keyed = 0
        """Number of items that were measured and keyed, or skipped."""
        self._skipped: set[int] = set()
        """The withdrawn items among the others."""
        self._indices: Sequence[int] = ()
        self._ready: AddGroup[T] = AddGroup(())
        """Measured and keyed items, with their indices."""
        self._joined: list[tuple[Reservation, Waiter]] = []
        """The room that it waits for."""

    @property
    def taken(self) -> int:
        """How many of the first items are accepted or among `refused`."""
        return self._indices[0] if self._indices else self._keyed

    def __await__(self) -> Generator[object, None, list[tuple[int, Exception]]]:
        return self._run().__await__()

    async def _run(self) -> list[tuple[int, Exception]]:
        dispatcher = self._dispatcher
        lifecycle, window = dispatcher.lifecycle, dispatcher.window
        self._waiting.add(self)
        try:
            lifecycle.check_open()
            while self._has_more():
                if window.yield_due:
                    window.yielded()
                    await lifecycle.clock.sleep(0)
                lifecycle.check_open()
                if not self._take(first=False) and self._indices:
                    await self._wait()
        finally:
            self._waiting.discard(self)
        return self.refused

    # -- in ----------------------------------------------------------------------------------------

    def _has_more(self) -> bool:
        """Measure and key the next items, unless some are ready."""
        while not self._indices and self._keyed < len(self._items):
            start = self._keyed
            self._keyed = min(len(self._items), start + PIECE)
            self._prepare(range(start, self._keyed))
        return bool(self._indices)

    def _prepare(self, indices: Sequence[int]) -> None:
        if self._skipped:
            indices = [index for index in indices if index not in self._skipped]
        try:
            self._indices, self._ready = indices, self._group(indices)
        except Exception:  # one item's own error; it occurs again
            self._prepare_each(indices)

    def _prepare_each(self, indices: Sequence[int]) -> None:
        good: list[tuple[int, AddGroup[T]]] = []
        for index in indices:
            try:
                good.append((index, self._group((index,))))
            except Exception as error:
                self._refuse(index, error)
        self._indices = [index for index, _ in good]
        self._ready = _joined([group for _, group in good])

    def _group(self, indices: Sequence[int]) -> AddGroup[T]:
        if not indices:
            return AddGroup(())
        items, receipts = self._items, self._receipts
        if isinstance(indices, range):
            at = slice(indices.start, indices.stop)
            return self._intake.measured(items[at], receipts[at], together=False)
        return self._intake.measured(
            tuple([items[i] for i in indices]),
            tuple([receipts[i] for i in indices]),
            together=False,
        )

    def _refuse(self, index: int, error: Exception) -> None:
        self.refused.append((index, error))
        self._dispatcher.ledger.refuse(1)

    def _take(self, *, first: bool) -> int:
        """Accept as many items as fit; return their number."""
        count = self._intake.fitting(self._ready, first=first) if self._indices else 0
        if count:
            head = self._ready.part(0, count)
            self._indices, self._ready = self._indices[count:], self._ready.part(count, None)
            self._dispatcher.window.came(count)
            self._dispatcher.accept(head)
        return count

    async def _wait(self) -> None:
        """Wait for the room of the next item, and use all room available then."""
        head = self._ready.part(0, 1)
        try:
            await self._intake.wait_to_submit(head, self._joined, lambda: self._take(first=True))
        except WithdrawnError:
            return  # by `turn_away`

    # -- withdrawn ---------------------------------------------------------------------------------

    def turn_away(self, matches: Matches) -> None:
        """Refuse the items with matching receipts that are not accepted yet."""
        left = range(self._keyed, len(self._items))
        rest = [i for i in left if i not in self._skipped and matches(self._receipts[i])]
        gone = [i for i in self._indices if matches(self._receipts[i])]
        if gone:
            self._leave_out(set(gone))
        self._skipped.update(rest)
        for index in (*gone, *rest):
            self._refuse(index, WithdrawnError(f"not accepted: {WITHDRAWN}"))

    def _leave_out(self, gone: set[int]) -> None:
        if self._indices[0] in gone and self._joined:
            self._joined[-1][1].fail(WithdrawnError("the waiting item was withdrawn"))
        kept = [place for place, index in enumerate(self._indices) if index not in gone]
        self._ready = _joined([self._ready.part(place, place + 1) for place in kept])
        self._indices = [self._indices[place] for place in kept]


def _joined(groups: Sequence[AddGroup[T]]) -> AddGroup[T]:
    """Join several groups into one."""
    if not groups:
        return AddGroup(())
    first = groups[0]
    return AddGroup(
        tuple([item for group in groups for item in group.items]),
        None if first.sizes is None else tuple([s for group in groups for s in group.sizes or ()]),
        tuple([receipt for group in groups for receipt in group.receipts or ()]),
        None
        if first.keys is None
        else tuple([key for group in groups for key in group.keys or ()]),
    )
