"""Batches whose items are the rows of an Arrow record batch.

This module does not import pyarrow; it uses only the methods of the record batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from .arrow_rows import UnreadableRows, rows_of
from .batch import Batch
from .delivery.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .errors import PermanentError
    from .lineage import Lineage

Row = dict[str, Any]
TIME_ZONE = b"sluicegate.time_zone"
"""Schema metadata key: the time zone of dates and timestamps without a zone; UTC if missing."""


class ArrowBatch(Batch[Row]):
    """A batch of columns: `record_batch` for sinks of columns, iteration for a dictionary per row.

    All rows are created together, at the first iteration or indexing. This raises `UnreadableRows`
    if a value of a row has no Python equivalent; `send` then refuses these rows and sends the
    others.
    """

    __slots__ = ("_record_batch", "_rows", "_unreadable")

    def __init__(
        self,
        record_batch: Any,
        *,
        lineage: Lineage | None = None,
        delivery: Delivery | None = None,
        origins: Sequence[int] | None = None,
        attempt: int = 1,
        keys: Sequence[object] | None = None,
    ) -> None:
        self._record_batch = record_batch
        self._rows: list[Row] | None = None
        self._unreadable: dict[int, PermanentError] = {}
        delivery = Delivery(len(self)) if delivery is None else delivery
        super().__init__(lineage, delivery, origins=origins, attempt=attempt, keys=keys)

    @property
    def record_batch(self) -> Any:
        """The `pyarrow.RecordBatch`."""
        return self._record_batch

    @property
    def size_bytes(self) -> int | None:
        """Size of the columns in Arrow's memory format, in bytes."""
        return int(self._record_batch.nbytes)

    @property
    def rows(self) -> list[Row]:
        """Return all rows as dictionaries: 100 times slower than columns.

        Raises `UnreadableRows`.
        """
        rows = self._made()
        if self._unreadable:
            first = next(iter(self._unreadable.values()))
            many = f"{len(self._unreadable)} of {len(rows)} rows"
            raise UnreadableRows(f"{many} cannot be made into Python's objects; the first: {first}")
        return rows

    def unreadable(self) -> Mapping[int, PermanentError]:
        """Return the rows with values that have no Python equivalent, and their errors."""
        self._made()
        return self._unreadable

    def shown(self, index: int) -> Row:
        """Return the row at `index`, with its unreadable values as text."""
        return self._made()[index]

    def _made(self) -> list[Row]:
        if self._rows is None:
            self._rows, self._unreadable = rows_of(self._record_batch)
        return self._rows

    def __len__(self) -> int:
        return int(self._record_batch.num_rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def _select(self, indices: Sequence[int], attempt: int) -> ArrowBatch:
        return ArrowBatch(
            _taken(self._record_batch, indices),
            lineage=self.lineage,
            delivery=self.delivery,
            origins=self.roots(indices),
            attempt=attempt,
            keys=None if self.keys is None else [self.keys[i] for i in indices],
        )

    def _on(self, delivery: Delivery, attempt: int | None = None) -> ArrowBatch:
        return ArrowBatch(
            self._record_batch,
            lineage=self.lineage,
            delivery=delivery,
            origins=self._origins,
            attempt=self.attempt if attempt is None else attempt,
            keys=self.keys,
        )


def _taken(record_batch: Any, indices: Sequence[int]) -> Any:
    """Return these rows; without a copy if they are consecutive."""
    if isinstance(indices, range) and indices.step == 1:
        return record_batch.slice(indices.start, len(indices))
    return record_batch.take(list(indices)) if len(indices) else record_batch.slice(0, 0)
