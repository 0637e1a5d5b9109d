"""The last row of each key, found by Spark before rows are shuffled.

1. An aggregate keeps one row of each key in each partition of the source, so that only these are
   shuffled. It also counts the rows of a key, so the superseded rows are known without a second
   pass.
2. The last row is the greatest by a struct of the order columns. Structs compare like sorted rows:
   NULL first, NaN last. Between rows of equal order, the hash of their content decides, if the
   write has one: a repeated write then sends the same rows.
3. A row with NULL in its key replaces no row at the destination, and none replaces it. So all such
   rows are kept, in lists. A hash of the row in place of NULL keeps the lists short. If it equals a
   real key, the rows of that key are in the same group, but not in its list.
4. Keys with a collation are distinguished by their bytes: the destination may keep "a" and "A".
5. Meanwhile columns are named by their positions, so that none can collide with a helper column.
6. The number of rows that a row supersedes travels with it; the task removes and sums the column.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions

from .._core import checks
from .content import row_hash
from .destination import replaced_by
from .keys import BINARY, SUPERSEDED, column_of, has_collation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

_ROW, _COUNT = "last", "superseded"
_SPREAD: Mapping[str, Callable[[Column], Column]] = {
    "string": lambda apart: apart.cast("string"),
    "long": lambda apart: apart,
    "integer": lambda apart: functions.pmod(apart, functions.lit(2**31)).cast("int"),
}
"""Expressions, by type, that represent a row's hash as a value of the type."""


def check_replaced(sink: object, key: Sequence[str]) -> None:
    """Raise `ConfigError` if `sink`, open or not, keeps several rows for one value of `key`."""
    for columns in replaced_by(sink):
        further = [column for column in columns if column not in key]
        if further:
            rule = (
                f"needs the destination's whole key ({', '.join(columns)}) in key: rows that "
                f"differ in {', '.join(further)} do not replace one another, and would be lost"
            )
            raise checks.bad("key", tuple(key), f"does not allow latest_only, which {rule}")


def latest_rows(
    df: DataFrame, key: Sequence[str], order_by: Sequence[str], *, tie: Sequence[str] = ()
) -> DataFrame:
    """Select the last row of each key by `order_by`, then by `tie`, and all rows with NULL in the
    key.

    Lazy. Adds the number of rows that a row supersedes as a column.
    """
    places = {name: f"c{place}" for place, name in enumerate(df.columns)}
    rows = df.toDF(*places.values())
    keys = {place: rows.schema[place] for place in (places[name] for name in key)}
    nullable = [place for place, field in keys.items() if field.nullable]
    row = functions.struct(*places.values())
    order = functions.struct(*(places[name] for name in (*order_by, *tie)))
    if not nullable:
        groups = [_by_bytes(place, field) for place, field in keys.items()]
        return _restore_names(rows.groupBy(*groups).agg(*_aggregates(row, order)), places)
    has_null = reduce(or_, (column_of(place).isNull() for place in nullable))
    apart = row_hash(rows, rows.columns)
    groups = [_spread(_by_bytes(place, field), field, apart) for place, field in keys.items()]
    if not {keys[place].dataType.typeName() for place in nullable} <= _SPREAD.keys():
        groups.append(functions.when(has_null, apart))
    nothing = functions.lit(0).cast("long").alias(_COUNT)
    kept = functions.collect_list(
        functions.when(has_null, functions.struct(row.alias(_ROW), nothing))
    )
    found = rows.groupBy(*groups).agg(
        *_aggregates(row, functions.when(~has_null, order)), kept.alias("kept")
    )
    last = functions.array(functions.struct(_ROW, _COUNT))
    each = functions.when(column_of(_COUNT) < 0, column_of("kept")).otherwise(
        functions.concat("kept", last)
    )
    return _restore_names(found.select(functions.inline(each)), places)


def _aggregates(row: Column, order: Column) -> tuple[Column, Column]:
    """Select the last row of those with an order, and the number of others; -1 if there is none."""
    return functions.max_by(row, order).alias(_ROW), (functions.count(order) - 1).alias(_COUNT)


def _restore_names(found: DataFrame, places: Iterable[str]) -> DataFrame:
    return found.select(f"{_ROW}.*", _COUNT).toDF(*places, SUPERSEDED)


def _spread(column: Column, field: StructField, apart: Column) -> Column:
    """Return the key column, with the row's hash in place of NULL if its type can hold one."""
    spread = _SPREAD.get(field.dataType.typeName())
    return column if spread is None else functions.coalesce(column, spread(apart))


def _by_bytes(place: str, field: StructField) -> Column:
    column = column_of(place)
    return functions.collate(column, BINARY) if has_collation(field.dataType) else column


class SupersededRows:
    """Record batches from which the numbers of superseded rows are removed and summed."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.total = 0
        """The sum so far."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        if SUPERSEDED not in batch.schema.names:
            return batch
        self.total += int(batch.column(SUPERSEDED).to_numpy().sum(dtype=np.int64))
        return batch.drop_columns(SUPERSEDED)
