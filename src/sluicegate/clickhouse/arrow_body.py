"""Batches as Arrow record batches with a table's columns, and request bodies made from them.

A body is a stream of one record batch, so the server forms one block from it and refuses a
truncated stream.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from .._core.errors import ConfigError, PermanentError
from .._core.values.encoding import Records, item_error
from .arrow_columns import TargetColumn, UnfitType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .types import ColumnType

MakeArray = Callable[[TargetColumn, Any], Any]


class ArrowRecords(Sequence[Any]):
    """Rows of a record batch, as the records of request bodies. A slice is a sequence of the same
    kind; a single row stands only for its length, the average of all rows.
    """

    def __init__(self, record_batch: Any) -> None:
        self.record_batch = record_batch
        self._length = range(-(-record_batch.nbytes // max(1, record_batch.num_rows)))

    def __len__(self) -> int:
        return int(self.record_batch.num_rows)

    @overload
    def __getitem__(self, index: int) -> range: ...
    @overload
    def __getitem__(self, index: slice) -> ArrowRecords: ...
    def __getitem__(self, index: int | slice) -> range | ArrowRecords:
        if isinstance(index, int):
            return self._length
        start, stop, _ = index.indices(len(self))
        return ArrowRecords(self.record_batch.slice(start, stop - start))


def ipc_stream(records: Any) -> bytes:
    """The request body for these `ArrowRecords`."""
    record_batch = records.record_batch
    output = pa.BufferOutputStream()
    with pa.ipc.new_stream(output, record_batch.schema) as writer:
        writer.write_batch(record_batch)
    return bytes(output.getvalue())


class ArrowRows:
    """Builds record batches of these columns of a table. Raises `ConfigError` for types that Arrow
    does not have.
    """

    def __init__(self, columns: Mapping[str, ColumnType], table: str) -> None:
        self._table = table
        self._targets = {name: _target(name, kind) for name, kind in columns.items()}

    join = staticmethod(ipc_stream)

    def of_rows(
        self,
        indices: Sequence[int],
        rows: Sequence[Sequence[Any]],
        errors: dict[int, BaseException],
    ) -> Records:
        """Records of rows of Python values; a row with an unfit value gets an error."""
        columns = [*self._targets.values()]
        values = list(zip(*rows, strict=True)) if rows else [() for _ in columns]
        return _records(columns, indices, values, errors, make=TargetColumn.of_values, pick=_picked)

    def of_columns(self, record_batch: Any, names: Sequence[str]) -> Records:
        """Records of these columns of a record batch; a row with an unfit value gets an error.
        Raises `PermanentError` for a column that is missing from the batch or the table, or whose
        type never fits.
        """
        has = record_batch.schema.names
        for name in names:
            if name not in has:
                raise PermanentError(f"the batch has no column {name!r}; it has {has}")
            if name not in self._targets:
                raise PermanentError(
                    f"{self._table} has no column {name!r} that accepts values; drop it, or give "
                    "columns="
                )
        columns = [self._targets[name] for name in names]
        found = [record_batch.column(name) for name in names]
        for column, each in zip(columns, found, strict=True):
            try:
                column.check_type(each.type)
            except UnfitType as error:
                raise PermanentError(f"column {column.name!r}: {error}") from error
        indices = range(record_batch.num_rows)
        return _records(columns, indices, found, {}, make=TargetColumn.of_column, pick=_taken)

    def refused(self, schema: Any) -> dict[str, str]:
        """The columns of a schema whose types never fit, with the remedy for each."""
        found: dict[str, str] = {}
        for name, target in self._targets.items():
            if name in schema.names:
                try:
                    target.check_type(schema.field(name).type)
                except UnfitType as error:
                    found[name] = f"{error}; cast it"
        return found


def _target(name: str, kind: ColumnType) -> TargetColumn:
    try:
        return TargetColumn(name, kind)
    except UnfitType as error:
        rule = 'give format="json", or columns= without it'
        raise ConfigError(f"columns={name!r}: {error}; {rule}") from error


def _records(
    columns: Sequence[TargetColumn],
    indices: Sequence[int],
    values: Sequence[Any],
    errors: dict[int, BaseException],
    *,
    make: MakeArray,
    pick: Callable[[Any, Sequence[int]], Any],
) -> Records:
    arrays: list[Any] = []
    bad: dict[int, BaseException] = {}
    for column, each in zip(columns, values, strict=True):
        try:
            arrays.append(make(column, each))
        except Exception:  # an unfit value: the slow path finds it
            bad = _bad_places(column, each, make) | bad
    if bad:
        errors.update({indices[place]: error for place, error in bad.items()})
        places = [place for place in range(len(indices)) if place not in bad]
        arrays = [
            make(column, pick(each, places)) for column, each in zip(columns, values, strict=True)
        ]
        indices = [indices[place] for place in places]
    made = pa.RecordBatch.from_arrays(arrays, [column.name for column in columns])
    return Records(indices, ArrowRecords(made), errors)


def _bad_places(column: TargetColumn, values: Any, make: MakeArray) -> dict[int, BaseException]:
    bad: dict[int, BaseException] = {}
    for place in range(len(values)):
        try:
            make(column, values[place : place + 1])
        except Exception as error:
            bad[place] = item_error(f"does not fit the column {column.name!r}", error)
    return bad


def _picked(values: Any, places: Sequence[int]) -> list[Any]:
    return [values[place] for place in places]


def _taken(column: Any, places: Sequence[int]) -> Any:
    return column.take(pa.array(places, pa.int64()))
