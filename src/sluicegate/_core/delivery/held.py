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
    """Returns a sink, or `None` if it is gone: a batch must not hold a sink that may hold it."""


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


class HoldsOutcomes(PassesReports["Books"]):
    """Base of a delivery: books that can be held, and the sinks that have settled items."""

    __slots__ = ("__weakref__", "held", "settled_by")
    states: ItemStates

    def __init__(self, books: Books | None) -> None:
        self.books = books
        self.held: HeldOutcomes | None = None
        """The books inside a transaction."""
        self.settled_by: tuple[SinkReference, ...] = ()
        """The sinks whose writes have settled items; in a transaction, those of it."""

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


def _strong_reference(sink: object) -> SinkReference:
    """For a sink whose class does not support weak references."""
    return lambda: sink
