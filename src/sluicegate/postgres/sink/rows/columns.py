"""The rows of a record batch, kept as columns for binary COPY as long as possible.

1. Values that the server would refuse are first searched for in the columns, and fail their rows.
   Then the columns are cast to types that the table's columns accept (`casts`), for `COPY` and for
   tuples alike.
2. If a column has no encoder, the batch is sent as tuples. A row then fails alone if it contains a
   value without a Python object.
3. Rows that another row with the same key replaces are dropped before they are sent, if Arrow can
   tell (`latest`).
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from ...._core.arrow import TIME_ZONE, refusal
from ...copying.columns import NoEncoder, binary_copy
from .casts import fit
from .faults import faults, objects, takes
from .values import LazyRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...._core.errors import PermanentError
    from ..table import TableColumn


pc: Any = compute  # its functions are created at import, so type checkers do not see them
_COUNTED = frozenset(
    {
        "smallint",
        "integer",
        "bigint",
        "date",
        "timestamp without time zone",
        "timestamp with time zone",
    }
)
"""Types stored as whole numbers: the values have the same order in Arrow and in the table, and
those that differ in Arrow differ in the table.
"""


class ColumnRows(LazyRows):
    """The rows of a record batch; `places` are their places in the write if they are not in order."""

    def __init__(self, batch: Any, columns: Sequence[TableColumn], places: Any = None) -> None:
        self._batch = batch
        self._columns = columns
        self._places = places
        self._fitted: Any = None
        self._rows: list[tuple[Any, ...]] | None = None
        self._unreadable: dict[int, PermanentError] = {}

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __getitem__(self, place: Any) -> Any:
        return self._tuples()[place]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._tuples())

    def keep(self, places: Sequence[int]) -> ColumnRows:
        """Keep only the rows at these places."""
        return ColumnRows(self._batch.take(pa.array(places, pa.int64())), self._columns)

    def fit_to(self, columns: Sequence[TableColumn]) -> ColumnRows:
        """Fit the same rows to columns of other types."""
        return ColumnRows(self._batch, columns)

    def refused(self) -> dict[int, PermanentError]:
        """The rows that the server would refuse, as far as that is visible in their values."""
        return refused(self._batch, self._columns)

    def unreadable(self) -> dict[int, PermanentError]:
        """The rows with a value that has no Python object. Creates the tuples."""
        self._tuples()
        return self._unreadable

    def nulls(self, name: str) -> Sequence[int]:
        """The places of the rows with NULL in this column."""
        found: list[int] = np.flatnonzero(
            pc.is_null(self._batch.column(name)).to_numpy(zero_copy_only=False)
        ).tolist()
        return found

    def place(self, line: int) -> int:
        """The place in the write of the row at `line`."""
        return line if self._places is None else int(self._places[line])

    def tells_apart(self, key: Sequence[str], version: str | None) -> bool:
        """Whether `latest` also leaves one row per key from the server's view."""
        return self._are_whole(key if version is None else (*key, version))

    def _are_whole(self, names: Sequence[str]) -> bool:
        """Whether values of these columns are equal, or in order, in Arrow as on the server."""
        kinds = {column.name: column.plain_type for column in self._columns}
        return all(are_whole(kinds[name], self._values.column(name).type) for name in names)

    def latest(self, key: Sequence[str], version: str | None) -> ColumnRows:
        """Drop rows that another row with the same key replaces, unless only the server can compare
        their versions.
        """
        if version is not None and not self._are_whole([version]):
            return self
        values = self._values
        places = latest(
            [values.column(name) for name in key],
            None if version is None else values.column(version),
        )
        return (
            self
            if places is None
            else ColumnRows(self._batch.take(pa.array(places)), self._columns, places)
        )

    def encode(self, *, places: bool) -> Iterator[memoryview] | None:
        """The rows as pieces of binary COPY; `None` if a column has no encoder."""
        in_order = self._places is None
        try:
            return encode(
                self._values,
                self._columns,
                np.arange(len(self), dtype=np.int32) if places and in_order else self._places,
            )
        except NoEncoder:
            return None

    @property
    def _values(self) -> Any:
        """The columns cast for the table. They must be free of faults."""
        if self._fitted is None:
            zone = _zone_of(self._batch)
            made = [
                fit(self._batch.column(column.name), column.sent_as, zone)
                for column in self._columns
            ]
            self._fitted = pa.RecordBatch.from_arrays(
                made, names=[column.name for column in self._columns]
            )
        return self._fitted

    def _tuples(self) -> list[tuple[Any, ...]]:
        if self._rows is None:
            columns: list[list[Any]] = []
            for column in self._columns:
                values, unreadable = objects(self._values.column(column.name), column.sent_as)
                columns.append(values)
                for index, why in unreadable.items():
                    self._unreadable.setdefault(index, refusal(column.name, why))
            self._rows = list(zip(*columns, strict=True))
        return self._rows


def encode(batch: Any, columns: Sequence[TableColumn], places: Any = None) -> Iterator[memoryview]:
    """The rows as pieces of binary COPY, preceded by their places if given.

    Raises `NoEncoder`.
    """
    fields: list[tuple[Any, str]] = [] if places is None else [(pa.array(places), "integer")]
    for column in columns:
        values = batch.column(column.name)
        if not takes(column, values.type):  # the bytes of a number may also be a valid date
            raise NoEncoder(column.name)
        fields.append((values, column.sent_as))
    return binary_copy(fields)


def refused(batch: Any, columns: Sequence[TableColumn]) -> dict[int, PermanentError]:
    """The rows that the server would refuse, as far as that is visible in their values."""
    found: dict[int, PermanentError] = {}
    zone = _zone_of(batch)
    for column in columns:
        values = batch.column(column.name)
        if column.not_null and values.null_count:
            _note(
                found,
                column.name,
                "is NULL, but the column is NOT NULL",
                pc.is_null(values).to_numpy(zero_copy_only=False),
            )
        for why, mask in faults(values, column.sent_as, column.exact, zone):
            _note(found, column.name, why, mask)
    return found


def _zone_of(batch: Any) -> str:
    """The zone of local times, which a record batch may name."""
    found: bytes = (batch.schema.metadata or {}).get(TIME_ZONE, b"UTC")
    return found.decode()


def _note(found: dict[int, PermanentError], name: str, why: str, mask: Any) -> None:
    for index in np.flatnonzero(mask).tolist():
        found.setdefault(index, refusal(name, why))


def column_rows(batch: Any, columns: Sequence[TableColumn]) -> ColumnRows | None:
    """The rows of a record batch; `None` if a column is missing."""
    if not {column.name for column in columns} <= set(batch.schema.names):
        return None
    return ColumnRows(batch, columns)


def latest(key: Sequence[Any], version: Any = None) -> Any:
    """The places of the rows that remain when each row replaces the earlier ones with the same key,
    in order.

    `None` if all remain. With `version` the first row with the highest version remains; it must not
    contain NULL, and have the same order in Arrow as in the table (see `are_whole`). A key that
    contains NULL is unique. Values that are equal on the server but not in Arrow both remain.
    """
    count = len(key[0])
    codes, alone = np.zeros(count, np.int64), np.zeros(count, bool)
    for column in key:
        if pa.types.is_floating(column.type):  # 0.0 and -0.0, NaN
            return None
        found = pc.dictionary_encode(column)
        alone |= pc.is_null(column).to_numpy(zero_copy_only=False)
        absent = len(found.dictionary)
        numbers = pc.fill_null(found.indices.cast(pa.int64()), absent).to_numpy(
            zero_copy_only=False
        )
        codes = np.unique(codes * (absent + 1) + numbers, return_inverse=True)[1]
    order = (
        np.arange(count)
        if version is None
        else count - 1 - _sort_places(version.take(pa.array(np.arange(count)[::-1])))
    )
    last = np.empty(count, np.int64)
    last[codes[order]] = order  # of several assignments to one place the last one takes effect
    stays = alone
    stays[last[np.unique(codes)]] = True
    return None if stays.all() else np.flatnonzero(stays)


def _sort_places(values: Any) -> Any:
    """The places of the values in ascending order; of equal ones, in their order."""
    return pc.array_sort_indices(values).to_numpy()


def are_whole(exact: str, kind: Any) -> bool:
    """Whether values of the Arrow type are stored in the column's declared type as they are, as
    whole numbers.
    """
    return exact in _COUNTED and bool(
        pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or kind.equals(pa.timestamp("us", getattr(kind, "tz", None)))
    )
