"""The last row of each key, found by Spark before rows are shuffled.

1. An aggregate keeps one row of each key in each partition of the source, so that only these travel
   to the tasks. It also counts the rows of a key, so the superseded rows are known without a second
   pass.
2. The last row is the greatest by a struct of the order columns. Structs compare like sorted rows:
   NULL first, NaN last. Of rows that are equal by their order, the hash of their content decides,
   if the write has one: a repeated write then sends the same rows.
3. A row with NULL in its key replaces no row at the destination, and none replaces it. So such rows
   are all kept: as a list for each hash, because equal rows also count, each of them.
4. Keys with a collation are told apart by their bytes: the destination may keep "a" and "A".
5. Columns have positions for names meanwhile, so that none can collide with a helper.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions

from ..._core import checks
from ..._core.replacing import replaced_by
from ..task.superseded import SUPERSEDED
from .columns import BINARY, column_of, is_collated
from .content import row_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame


def check_replaced(sink: object, key: Sequence[str]) -> None:
    """Raise `ConfigError` if `sink`, open or not, keeps several rows for one value of `key`."""
    for columns in replaced_by(sink):
        further = [column for column in columns if column not in key]
        if further:
            rule = (
                f"needs the destination's whole key ({', '.join(columns)}) in key: rows that "
                f"differ in {', '.join(further)} do not replace one another, and would be left out"
            )
            raise checks.bad("key", tuple(key), f"does not allow latest_only, which {rule}")


def latest_rows(
    df: DataFrame, key: Sequence[str], order_by: Sequence[str], *, tie: Sequence[str] = ()
) -> DataFrame:
    """The last row of each key by `order_by`, then by `tie`, and all rows whose key has a NULL.

    Lazy. Adds the number of rows that a row supersedes as a column.
    """
    places = {name: f"c{place}" for place, name in enumerate(df.columns)}
    rows = df.toDF(*places.values())
    row = functions.struct(*places.values())
    order = functions.struct(*(places[name] for name in (*order_by, *tie)))
    last = functions.max_by(row, order).alias("last")
    count = (functions.count(functions.lit(1)) - 1).alias("superseded")
    groups = [
        _by_bytes(column_of(places[name]), is_collated(df, name)).alias(f"k{place}")
        for place, name in enumerate(key)
    ]
    nullable = [places[name] for name in key if df.schema[name].nullable]
    if not nullable:
        found = rows.groupBy(*groups).agg(last, count)
    else:
        found = _with_null_keys(rows, nullable, groups, row, (last, count))
    return found.select("last.*", "superseded").toDF(*places, SUPERSEDED)


def _with_null_keys(
    rows: DataFrame,
    nullable: Sequence[str],
    groups: Sequence[Column],
    row: Column,
    found: tuple[Column, Column],
) -> DataFrame:
    """`last` and `superseded` of each key, and each row whose key has a NULL."""
    has_null = reduce(or_, (column_of(name).isNull() for name in nullable))
    apart = functions.when(has_null, row_hash(rows, rows.columns)).alias("apart")
    kept = functions.collect_list(functions.when(has_null, row)).alias("kept")
    each = rows.groupBy(*groups, apart).agg(*found, kept)
    is_list = functions.size("kept") > 0
    return each.select(
        functions.explode(
            functions.when(is_list, functions.col("kept")).otherwise(functions.array("last"))
        ).alias("last"),
        functions.when(is_list, functions.lit(0))
        .otherwise(functions.col("superseded"))
        .alias("superseded"),
    )


def _by_bytes(column: Column, collated: bool) -> Column:
    return functions.collate(column, BINARY) if collated else column
