"""Outcomes inside a transaction, which are final at its commit.

Until then the items count as settled, so that no write inside sends them twice, and nothing is
booked. A rollback makes them unsettled again: a batch may be sent once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from weakref import ref

from .host import PassesReports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..outcome import Outcome
    from .host import Books, Details
    from .states import ItemStates

    SinkReference = Callable[[], object]
    """A reference to a sink, weak since a sink may hold its batches; `None` if it is gone."""


class StrongReference:
    """Reference to a sink of a class without weak references."""

    __slots__ = ("_sink",)

    def __init__(self, sink: object) -> None:
        self._sink = sink

    def __call__(self) -> object:
        return self._sink


class HoldingSink:
    """Base of the sinks that hold the outcomes of their batches: transactions."""

    destination: object
    """The sink by which items are settled after the commit."""


class HeldOutcomes(PassesReports):
    """The books of a delivery inside a transaction: outcomes are held, reports passed on at once."""

    __slots__ = ("_outcomes", "books", "settled_by")

    def __init__(self, books: Books | None, settled_by: tuple[SinkReference, ...]) -> None:
        super().__init__(books)
        self.books = books
        """The delivery's own books."""
        self.settled_by = settled_by
        """The sinks that had settled items of the delivery before."""
        self._outcomes: list[tuple[Sequence[int], Outcome, Details]] = []

    def settled(self, indices: Sequence[int], outcome: Outcome, details: Details) -> None:
        self._outcomes.append((indices, outcome, details))

    @property
    def has_any(self) -> bool:
        return bool(self._outcomes)

    def book(self) -> None:
        """Book the held outcomes."""
        if self.books is not None:
            for indices, outcome, details in self._outcomes:
                self.books.settled(indices, outcome, details)

    def reopen(self, states: ItemStates, *, doubtful: bool) -> None:
        """Make the items unsettled."""
        for indices, _, _ in self._outcomes:
            states.reopen(indices, doubtful=doubtful)


class HoldsOutcomes:
    """Base of a delivery: books that can be held, and the sinks that have settled items."""

    __slots__ = ("__weakref__", "books", "holder", "settled_by")
    states: ItemStates

    def __init__(self, books: Books | None) -> None:
        self.books = books
        self.holder: HoldingSink | None = None
        """The open transaction that holds the outcomes."""
        self.settled_by: tuple[SinkReference, ...] = ()
        """The sinks whose writes have settled items; in a transaction, those of it."""

    def __getstate__(self) -> object:
        """Leave the sinks out of a copy: they may hold the batch, and stay where they are."""
        _, slots = cast("tuple[None, dict[str, object]]", super().__getstate__())
        return None, {**slots, "holder": None, "settled_by": ()}

    def note_settled_by(self, sink: object) -> None:
        """Add a sink whose write has settled items."""
        for known in self.settled_by:
            if known() is sink:
                return
        try:
            made: SinkReference = ref(sink)
        except TypeError:
            made = StrongReference(sink)
        self.settled_by += (made,)

    def hold_outcomes(self, holder: HoldingSink) -> None:
        """Hold outcomes from now on, until `end_hold`."""
        if self.holder is None:
            self.holder = holder
            self.books = HeldOutcomes(self.books, self.settled_by)
            self.settled_by = ()

    def end_hold(self, *, is_committed: bool, doubtful: bool = False) -> None:
        """Book held outcomes after a commit, or make their items unsettled.

        A `doubtful` commit may have been applied, and so may its items.
        """
        held = self.books
        if not isinstance(held, HeldOutcomes):
            return
        self.books, self.settled_by = held.books, held.settled_by
        holder, self.holder = self.holder, None
        if is_committed:
            if holder is not None and held.has_any:
                self.note_settled_by(holder.destination)
            held.book()
        else:
            held.reopen(self.states, doubtful=doubtful)
