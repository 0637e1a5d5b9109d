"""The rows of one batch that remain to be written, and the results of the others. No I/O.

In a batch with keys, the rows after a failed row of their key are left out too, however the failure
was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.errors import PermanentError, UnknownOutcomeError
from ..._core.order.left_out import stopped_behind
from ..._core.outcome import Outcome
from ..._core.sink import WriteResult
from ..client.errors import for_item
from .rows.values import LazyRows, changed, documents, shortest, unversioned

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from ..._core.values.rows import GivenRows
    from .plan import TablePlan
    from .rows.values import Row


def without(given: GivenRows, refused: Mapping[int, Exception]) -> GivenRows:
    """The rows of a batch without those of refused items."""
    indices, rows, errors = given
    kept = [place for place, index in enumerate(indices) if index not in refused]
    left = rows.keep(kept) if isinstance(rows, LazyRows) else [rows[place] for place in kept]
    return [indices[place] for place in kept], left, {**errors, **refused}


class Remaining:
    """The rows of one batch that are still to be written, and the outcomes of the others.

    `rows` are the remaining rows, and `indices` their indices in the batch. `errors` and `outcomes`
    are by index in the batch: the failed items, and the safe ones.
    """

    def __init__(
        self, given: GivenRows, *, maybe: frozenset[int], keys: Sequence[object] | None = None
    ) -> None:
        self.indices, self.rows, self.errors = given
        self.maybe = maybe
        """Indices of items that an earlier attempt with an unknown outcome may have stored."""
        self._keys = keys
        self._checked: Sequence[Row] | None = None
        """The rows whose values were compared with the columns' types last."""
        self._changed: dict[int, PermanentError] = {}
        self.outcomes: dict[int, Outcome] = {}

    def drop(self, refused: Mapping[int, Exception]) -> None:
        """Fail the rows at these places."""
        if not refused:
            return
        for place, error in refused.items():
            self.refuse(place, error)
        self.stop_keys()
        self.keep(refused)

    def stop_keys(self) -> bool:
        """Fail the items after a failed item of their key; return whether there were any new ones."""
        if self._keys is None or not self.errors:
            return False
        stopped = stopped_behind(self._keys, self.errors, self.outcomes)
        is_new = not stopped.keys() <= self.errors.keys()
        self.errors.update(stopped)
        return is_new

    def keep(self, without: Container[int] = ()) -> None:
        """Keep only rows of items that have not failed, excluding the places in `without`."""
        kept = [
            place
            for place, index in enumerate(self.indices)
            if place not in without and index not in self.errors
        ]
        self.indices = [self.indices[place] for place in kept]
        self.rows = (
            self.rows.keep(kept)
            if isinstance(self.rows, LazyRows)
            else [self.rows[place] for place in kept]
        )

    def refuse(self, place: int, error: Exception | None) -> None:
        """Record an error for the row at `place`; `None`: an earlier attempt has stored it."""
        index = self.indices[place]
        if error is None:
            self.outcomes[index] = Outcome.DUPLICATE
        elif isinstance(error, (UnknownOutcomeError, PermanentError)):
            self.errors[index] = error
        else:
            self.errors[index] = for_item(error)

    def refuse_in_order(
        self,
        refused: Mapping[int, Exception | None],
        is_uncertain: Callable[[Exception], bool],
    ) -> bool:
        """Record the errors of rows that were tried in order; return whether other rows were stored
        after a failed row of their key.

        In that case, an error that may depend on those rows is omitted if its row came later.
        """
        before = self.errors.copy(), self.outcomes.copy()
        self._refuse_all(refused)
        if not self.stop_keys():
            return False
        places = range(len(self.indices))
        stopped = (place for place in places if self.indices[place] in self.errors)
        first = next((place for place in stopped if place not in refused), len(places))
        self.errors, self.outcomes = before
        self._refuse_all(
            {
                place: error
                for place, error in refused.items()
                if place < first or error is None or not is_uncertain(error)
            }
        )
        return self.stop_keys()

    def _refuse_all(self, refused: Mapping[int, Exception | None]) -> None:
        for place, error in refused.items():
            self.refuse(place, error)

    def note_duplicates(self, places: Iterable[int]) -> None:
        """Record skipped rows that an earlier attempt may have stored as duplicates."""
        for place in places:
            index = self.indices[place]
            if index in self.maybe:
                self.outcomes[index] = Outcome.DUPLICATE

    def drop_unversioned(self, plan: TablePlan) -> None:
        """Fail the rows without a version, if there is a column for it."""
        if plan.version is not None:
            self.drop(unversioned(self.rows, plan.version, plan.columns))

    def drop_refused(self) -> None:
        """Fail the rows of columns whose values show that the server would refuse them."""
        if isinstance(self.rows, LazyRows):
            self.drop(self.rows.refused())

    def as_tuples(self, plan: TablePlan) -> None:
        """Convert the rows to tuples; fail each row with a value that has no Python object."""
        self.drop_refused()
        if isinstance(self.rows, LazyRows):
            self.drop(self.rows.unreadable())
            self.rows = list(self.rows)
        if plan.json_places:
            self.rows, refused = documents(self.rows, plan.json_places, plan.columns)
            self.drop(refused)
        if plan.numeric_places:
            self.rows = shortest(self.rows, plan.numeric_places)

    def drop_changed(self, plan: TablePlan) -> None:
        """Fail the rows with a value that asyncpg would change."""
        self.drop(self.changed(plan))

    def changed(self, plan: TablePlan) -> dict[int, PermanentError]:
        """The errors, by place, of rows with a value that asyncpg would change."""
        if self._checked is not self.rows:
            self._changed = changed(self.rows, plan.checked_places, plan.columns)
            self._checked = self.rows
        return self._changed

    def fit(self, plan: TablePlan) -> None:
        """Fit columns to the types of another plan."""
        self._checked = None
        if isinstance(self.rows, LazyRows):
            self.rows = self.rows.fit_to([plan.table.column(name) for name in plan.columns])

    def answer(self, items: int) -> WriteResult | None:
        """The result for a batch of `size` items; `None` if every item was delivered."""
        if not self.errors and not self.outcomes:
            return None
        return WriteResult(items, self.errors, self.outcomes)
