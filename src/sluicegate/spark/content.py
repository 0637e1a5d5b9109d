"""The content of a unit's rows as one number: the sum of the hashes of its rows.

1. Spark computes the hash in the driver's plan. Its column travels with the rows and is removed
   before a sink sees them. The sum does not depend on the order of rows; it wraps at 64 bits.
2. `xxhash64` skips NULLs. So each column is preceded by a flag that marks NULL: (NULL, 1) and
   (1, NULL) differ.
3. Spark cannot hash maps; their JSON text is hashed instead.
4. A `double` is hashed as the nearest `float`. A sum or mean of doubles depends on the order in
   which Spark adds them, which varies between runs, and differs in the last digits.
5. Columns are hashed in the order of their names, so their order in the query does not matter.
6. The id of a batch has the number of its chunk. If no ledger compares the rows, the hash of the
   chunk's rows is part of the id as well, so that a destination never accepts other rows under it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions

from .._core import checks
from .._core.transaction import Counts
from .keys import check_there, column_of, describe_types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from .task.chunks import Chunk

CONTENT = "sluicegate_content"
"""Column with the hash of a row, from the driver to the task."""
_WITHOUT_HASH = frozenset({"map", "variant"})


@dataclass(frozen=True, slots=True)
class Content:
    """The columns of a DataFrame that a replay must repeat."""

    df: DataFrame
    columns: tuple[str, ...]
    """Without columns, rows are only counted."""

    @classmethod
    def of(cls, df: DataFrame, chosen: Sequence[str] | None, *, is_named: bool) -> Content:
        """Choose all columns or the given ones; none if the write has no name and so no replay.

        Raises `ConfigError`.
        """
        if not is_named:
            if chosen is not None:
                raise checks.bad(
                    "content",
                    chosen,
                    "has no meaning without app_id and version, which identify a repeated write",
                )
            return cls(df, ())
        if CONTENT in df.columns:
            raise checks.bad("df", CONTENT, "is reserved for the hash of a row; rename the column")
        columns = (
            tuple(df.columns)
            if chosen is None
            else check_there(df, "content", chosen)
            if chosen
            else ()
        )
        return cls(df, tuple(sorted(columns)))

    @property
    def text(self) -> str:
        """The columns and their types, as stored in the ledger."""
        return describe_types(self.df, self.columns)

    @property
    def hash_columns(self) -> tuple[str, ...]:
        """The column of the hashes, if there are any."""
        return (CONTENT,) if self.columns else ()

    def beside(self, rows: DataFrame) -> DataFrame:
        """Add the hash of each row as a column, unless it exists."""
        if not self.columns or CONTENT in rows.columns:
            return rows
        return rows.withColumn(CONTENT, row_hash(self.df, self.columns))

    def count(self) -> Counts:
        """Count and hash the rows in a job that writes nothing; blocks."""
        # a decimal, since a sum of longs overflows, which is an error in ANSI mode
        sums = (
            [functions.sum(row_hash(self.df, self.columns).cast("decimal(20,0)"))]
            if self.columns
            else []
        )
        rows, *found = self.df.agg(functions.count(functions.lit(1)), *sums).collect()[0]
        content = [as_int64(int(total or 0)) for total in found]
        return Counts(rows=rows, content=next(iter(content), None), content_of=self.text)


def row_hash(df: DataFrame, columns: Sequence[str]) -> Column:
    """Build the hash of these columns of a row of `df`."""
    types = {field.name: field.dataType for field in df.schema.fields}
    parts: list[Column] = []
    for name in columns:
        column = column_of(name)
        parts += [column.isNull(), _hash_input(column, types[name])]
    return functions.xxhash64(*parts)


def _hash_input(column: Column, kind: Any) -> Column:
    if _needs_text(kind):
        return functions.to_json(column)
    return column.cast("float") if kind.typeName() == "double" else column


def _needs_text(kind: Any) -> bool:
    """Return whether Spark has no hash for the type, or for a type inside it."""
    if kind.typeName() in _WITHOUT_HASH:
        return True
    inner = (
        [field.dataType for field in kind.fields]
        if kind.typeName() == "struct"
        else [getattr(kind, "elementType", None)]
    )
    return any(_needs_text(each) for each in inner if each is not None)


class SummedBatches:
    """Record batches from which a column of numbers of 64 bits is removed and summed."""

    def __init__(self, batches: Iterable[pa.RecordBatch], column: str) -> None:
        self._batches = iter(batches)
        self._column = column
        self.total: int | None = None
        """The sum so far, as a signed number of 64 bits; `None` before the first batch with it."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        if self._column not in batch.schema.names:
            return batch
        numbers = batch.column(self._column).to_numpy().view(np.uint64)
        self.total = as_int64((self.total or 0) + int(numbers.sum(dtype=np.uint64)))
        return batch.drop_columns(self._column)


def mark_chunks(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Remove the row hashes from chunks; mark each chunk with the sum, if it had hashes."""
    for chunk in chunks:
        summed = SummedBatches([chunk.rows], CONTENT)
        rows = next(summed)
        yield (
            chunk
            if summed.total is None
            else replace(chunk, rows=rows, mark=f"-{summed.total % 2**64:016x}")
        )


def as_int64(total: int) -> int:
    """Convert a sum of hashes to a signed number of 64 bits."""
    return (total + 2**63) % 2**64 - 2**63
