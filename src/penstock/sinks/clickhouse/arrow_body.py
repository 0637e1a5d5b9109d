"""Batches as record batches of a table's columns, and these as request bodies.

One body is a stream of one record batch, so that the server makes one block of it, and refuses a
stream that was cut off.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import pyarrow as pa

from ..._clients.encoding import Records, item_error
from ..._core.errors import PermanentError
from .arrow_columns import TargetColumn, UnfitType

MakeArray = Callable[[TargetColumn, Any], Any]


class ArrowRecords(Sequence[Any]):
    """Rows of a record batch as the records of request bodies: a slice is such a sequence, too, and
    a single one is only good for its length, which is that of an average row.
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
    """The body for these `ArrowRecords`."""
    record_batch = records.record_batch
    output = pa.BufferOutputStream()
    with pa.ipc.new_stream(output, record_batch.schema) as writer:
        writer.write_batch(record_batch)
    return bytes(output.getvalue())


def records_of_rows(
    columns: Sequence[TargetColumn],
    indices: Sequence[int],
    rows: Sequence[Sequence[Any]],
    errors: dict[int, BaseException],
) -> Records:
    """Rows of Python's values; a row with one that does not fit gets an error."""
    values = list(zip(*rows, strict=True)) if rows else [() for _ in columns]
    return _records(columns, indices, values, errors, make=TargetColumn.of_values, pick=_picked)


def records_of_columns(
    columns: Sequence[TargetColumn], record_batch: Any, errors: dict[int, BaseException]
) -> Records:
    """The columns of a record batch, in the table's types; a row with a value that does not fit gets
    an error. Raises `PermanentError` if no value of a column could fit.
    """
    found = [record_batch.column(column.name) for column in columns]
    for column, each in zip(columns, found, strict=True):
        try:
            column.check_type(each.type)
        except UnfitType as error:
            raise PermanentError(f"column {column.name!r}: {error}") from error
    indices = range(record_batch.num_rows)
    return _records(columns, indices, found, errors, make=TargetColumn.of_column, pick=_taken)


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
        except Exception:  # a value is at fault: the slow path finds which
            bad = _bad_places(column, each, make) | bad
    if bad:
        errors.update({indices[place]: error for place, error in bad.items()})
        places = [place for place in range(len(indices)) if place not in bad]
        arrays = [
            make(column, pick(each, places)) for column, each in zip(columns, values, strict=True)
        ]
        indices = [indices[place] for place in places]
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    made = pa.RecordBatch.from_arrays(arrays, schema=schema)
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
