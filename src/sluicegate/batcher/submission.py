"""Items that are submitted with the caller's receipts, as many at a time as fit.

1. Items are accepted in order, in pieces. A submission waits for the room of its next item alone,
   so that held keys cannot make it wait for more room than there can ever be.
2. A refused item does not affect others: it is listed with its error.
3. *Yield first, append last*: a submission suspends before it accepts a piece, never after.
4. Withdrawn items are refused, even if their room is already granted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .._core.errors import WithdrawnError
from .._core.order.left_out import WITHDRAWN
from .gathering.add_group import AddGroup

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from .._core.ledger import Waiter
    from .dispatch import Dispatcher
    from .gathering.pack import Matches
    from .intake import Intake
    from .reservations import Reservation
    from .resolvable import Resolvable

T = TypeVar("T")

PIECE = 1024
"""Number of items that are measured and keyed at a time."""


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
