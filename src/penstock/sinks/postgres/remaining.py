"""The rows of one batch that are still to be written, and the answers for the others. Does no I/O.

Where the batch has keys, the rows behind a failed one of their key are left out with it, in
whatever way it was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._clients.postgres.errors import for_item
from ..._core.errors import PermanentError, UnknownOutcomeError
from ..._core.order.stopped import stopped_behind
from ..._core.outcome import Outcome
from .rows import LazyRows

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from asyncpg import Record

    from .rows import Row

_UNIQUE_VIOLATION = "23505"


class Remaining:
    """The rows of one batch; `indices` are the batch's, `rows` lie beside them."""

    def __init__(
        self,
        *,
        indices: Sequence[int],
        rows: Sequence[Row],
        errors: dict[int, Exception],
        maybe: frozenset[int],
        keys: Sequence[object] | None = None,
    ) -> None:
        self._indices = indices
        self._rows = rows
        self._maybe = maybe
        self._keys = keys
        self.errors = errors
        self.outcomes: dict[int, Outcome] = {}
        self.details: dict[int, dict[str, Any]] = {}

    def _drop(self, refused: Mapping[int, Exception]) -> None:
        if not refused:
            return
        for place, error in refused.items():
            self._refuse(self._indices[place], error)
        self._stop_keys()
        self._keep(refused)

    def _stop_keys(self) -> bool:
        """Fail what stands behind a failed item of its key; say whether there was any that had not
        failed itself.
        """
        stopped = stopped_behind(self._keys, self.errors, self.outcomes)
        is_new = not stopped.keys() <= self.errors.keys()
        self.errors.update(stopped)
        return is_new

    def _keep(self, without: Container[int] = ()) -> None:
        """Go on with the rows of the items that have not failed, and not with those at the places
        `without`.
        """
        kept = [
            place
            for place, index in enumerate(self._indices)
            if place not in without and index not in self.errors
        ]
        self._indices = [self._indices[place] for place in kept]
        self._rows = (
            self._rows.kept(kept)
            if isinstance(self._rows, LazyRows)
            else [self._rows[place] for place in kept]
        )

    def _refuse(self, index: int, error: Exception, *, again: bool = False) -> None:
        if isinstance(error, (UnknownOutcomeError, PermanentError)):
            self.errors[index] = error
        elif (
            index in self._maybe
            and getattr(error, "sqlstate", None) == _UNIQUE_VIOLATION
            and not again
        ):
            self.outcomes[index] = Outcome.DUPLICATE
        else:
            self.errors[index] = for_item(error)

    def _note_duplicates(self, places: Sequence[int]) -> None:
        for place in places:
            index = self._indices[place]
            if index in self._maybe:
                self.outcomes[index] = Outcome.DUPLICATE

    def _note_returned(
        self, names: Sequence[str], found: Sequence[Record], places: Iterable[int] | None = None
    ) -> None:
        for place, row in zip(
            (row["o"] for row in found) if places is None else places, found, strict=True
        ):
            self.details[self._indices[place]] = {
                name: row[f"v{number}"] for number, name in enumerate(names)
            }
