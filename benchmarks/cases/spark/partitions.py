"""A DataFrame of many partitions with few rows each: `write_dataframe` compared with a `mapInArrow`
that reads the rows and does nothing with them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ...harness import Case, Contender, Unit
from .facts import PLAIN_TABLE, facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ...stopwatch import Took
    from .facts import Facts

OURS = "write_dataframe"
EMPTY = "an empty mapInArrow"
ROWS = 10
"""Rows of a partition."""


def _consume(batches: Iterable[Any]) -> Iterator[Any]:
    for _ in batches:
        pass
    yield from ()


def _ours(table: Facts) -> Took:
    from sluicegate.spark import write_dataframe

    table.make(PLAIN_TABLE)
    rows = table.made(table.count * ROWS, table.count)
    return table.timed(lambda: write_dataframe(rows, table.sink()), expect=table.count * ROWS)


def _empty(table: Facts) -> Took:
    table.make(PLAIN_TABLE)
    rows = table.made(table.count * ROWS, table.count)
    return table.timed(lambda: rows.mapInArrow(_consume, "id long").collect(), expect=0)


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with facts(count) as table:
        yield (
            Contender(OURS, lambda: _ours(table), ours=True),
            Contender(EMPTY, lambda: _empty(table)),
        )


CASE = Case(
    name="spark-partitions",
    title="Partitions of ten rows into PostgreSQL",
    prepare=prepare,
    items=300,
    quick_items=20,
    unit=Unit("us per partition", 1e6),
    peers=(EMPTY,),
)
