"""The last row of each key, found by Spark before rows are shuffled.

1. An aggregate keeps one row of each key in each partition of the source, so that only these are
   shuffled. It also counts the rows of a key, so the superseded rows are known without a second
   pass.
2. The last row is the greatest by a struct of the order columns. Structs compare like sorted rows:
   NULL first, NaN last. Between rows of equal order, the hash of their content decides, if the
   write has one: a repeated write then sends the same rows.
3. A row with NULL in its key replaces no row at the destination, and none replaces it. So all such
   rows are kept, in lists. They are also grouped by their hash, which keeps the lists short.
4. Keys with a collation are distinguished by their bytes: the destination may keep "a" and "A".
5. Meanwhile columns are named by their positions, so that none can collide with a helper column.
6. The number of rows that a row supersedes travels with it; the task removes and sums the column.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions

from .._core import checks
from .content import row_hash
from .destination import replaced_by
from .keys import BINARY, SUPERSEDED, column_of, has_collation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

_ROW, _COUNT = "last", "superseded"


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
    groups = [_by_bytes(place, field) for place, field in keys.items()]
    if not nullable:
        return _restore_names(rows.groupBy(*groups).agg(*_aggregates(row, order)), places)
    has_null = reduce(or_, (column_of(place).isNull() for place in nullable))
    groups.append(functions.when(has_null, row_hash(rows, rows.columns)))
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


def _by_bytes(place: str, field: StructField) -> Column:
    column = column_of(place)
    return functions.collate(column, BINARY) if has_collation(field.dataType) else column
