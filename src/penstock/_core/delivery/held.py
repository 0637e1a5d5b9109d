"""Outcomes inside a transaction, which are final at its commit.

Until then the items count as settled, so that no write inside sends them twice, and nothing is
booked. A rollback makes them unsettled again: a batch may be sent once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..condition import Condition
    from ..errors import ErrorClass
    from ..outcome import Outcome
    from .host import Books, Details
    from .states import ItemStates


class HeldOutcomes:
    """The books of a delivery inside a transaction: hold outcomes, pass news on at once."""

    __slots__ = ("_outcomes", "books")

    def __init__(self, books: Books | None) -> None:
        self.books = books
        """The delivery's own books."""
        self._outcomes: list[tuple[Sequence[int], Outcome, Details]] = []

    def settled(self, indices: Sequence[int], outcome: Outcome, details: Details) -> None:
        self._outcomes.append((indices, outcome, details))

    def book(self) -> None:
        """Book the held outcomes."""
        if self.books is not None:
            for indices, outcome, details in self._outcomes:
                self.books.settled(indices, outcome, details)

    def reopen(self, states: ItemStates, *, doubtful: bool) -> None:
        """Make the items unsettled."""
        for indices, _, _ in self._outcomes:
            states.reopen(indices, doubtful=doubtful)

    def heard(self, errors: Iterable[BaseException]) -> None:
        if self.books is not None:
            self.books.heard(errors)

    def reported(self, source: object, condition: Condition | None) -> None:
        if self.books is not None:
            self.books.reported(source, condition)

    def retrying(self, kind: ErrorClass, items: int, delay: float) -> None:
        if self.books is not None:
            self.books.retrying(kind, items, delay)

    def throttled(self, until: float) -> None:
        if self.books is not None:
            self.books.throttled(until)


class HoldsOutcomes:
    """Base of a delivery: books that can be held."""

    __slots__ = ("__weakref__", "books")
    states: ItemStates

    def __init__(self, books: Books | None) -> None:
        self.books = books

    def hold_outcomes(self) -> None:
        """Hold outcomes from now on, until `end_hold`."""
        if not isinstance(self.books, HeldOutcomes):
            self.books = HeldOutcomes(self.books)

    def end_hold(self, *, is_committed: bool, doubtful: bool = False) -> None:
        """Book held outcomes after a commit, or make their items unsettled.

        A `doubtful` commit may have been applied, and so may its items.
        """
        held = self.books
        if not isinstance(held, HeldOutcomes):
            return
        self.books = held.books
        if is_committed:
            held.book()
        else:
            held.reopen(self.states, doubtful=doubtful)
