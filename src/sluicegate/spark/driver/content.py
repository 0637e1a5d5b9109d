"""The content of a unit's rows as one number: the sum of the hashes of its rows.

1. Spark computes the hash in the driver's plan. Its column travels with the rows and is removed
   before a sink sees them. The sum does not depend on the order of rows; it wraps at 64 bits.
2. `xxhash64` skips NULLs. So each column is preceded by a flag that marks NULL: (NULL, 1) and
   (1, NULL) differ.
3. Spark cannot hash maps; their JSON text is hashed instead.
4. A `double` is hashed as the nearest `float`. A sum or mean of doubles depends on the order in
   which Spark adds them, which varies between runs, and differs in the last digits.
5. Columns are hashed in the order of their names, so their order in the query does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions

from ..._core import checks
from ..._core.transaction import Counts
from ..levels.units import CONTENT, wrapped
from .columns import check_there, column_of, typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame


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
        return typed(self.df, self.columns)

    @property
    def hashed(self) -> tuple[str, ...]:
        """The column of the hashes, if there are any."""
        return (CONTENT,) if self.columns else ()

    def beside(self, rows: DataFrame) -> DataFrame:
        """Add the hash of each row as a column, unless it exists."""
        if not self.columns or CONTENT in rows.columns:
            return rows
        return rows.withColumn(CONTENT, row_hash(self.df, self.columns))

    def counted(self) -> Counts:
        """Count and hash the rows in a job that writes nothing; blocks."""
        # a decimal, since a sum of longs overflows, which is an error in ANSI mode
        sums = (
            [functions.sum(row_hash(self.df, self.columns).cast("decimal(20,0)"))]
            if self.columns
            else []
        )
        rows, *found = self.df.agg(functions.count(functions.lit(1)), *sums).collect()[0]
        content = [wrapped(int(total or 0)) for total in found]
        return Counts(rows=rows, content=next(iter(content), None), content_of=self.text)


def row_hash(df: DataFrame, columns: Sequence[str]) -> Column:
    """Build the hash of these columns of a row of `df`."""
    types = {field.name: field.dataType for field in df.schema.fields}
    parts: list[Column] = []
    for name in columns:
        column = column_of(name)
        parts += [column.isNull(), _hashed(column, types[name])]
    return functions.xxhash64(*parts)


def _hashed(column: Column, kind: Any) -> Column:
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
