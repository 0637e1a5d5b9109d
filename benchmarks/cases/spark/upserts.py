"""A DataFrame upserted into a table with a key: `write_dataframe` in the order of the versions, or
with only the latest ones, compared with JDBC into a staging table and a merge.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from ...harness import NS_PER_ITEM, Case, placed
from ...spark import jdbc
from ...spark.sessions import TASKS
from .facts import COLUMNS, KEYED_TABLE, PLAIN_TABLE, facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...harness import Contender
    from ...stopwatch import Took
    from .facts import Facts

UPSERTS = "write_dataframe, key and order_by"
LATEST = "write_dataframe, latest_only"
MERGE = "JDBC into a staging table, then a merge"
VERSIONS = (1, 60)
"""Rows of each key: a table of facts, and a history of changes."""


class Upserts:
    """The ways to replace the rows of a table that already has every second key."""

    def __init__(self, table: Facts, versions: int) -> None:
        self._table = table
        self._keys = table.count // versions

    def ours(self, **options: Any) -> Took:
        from sluicegate.spark import write_dataframe

        rows, sink = self._rows(), self._table.sink(on_conflict="update")
        return self._timed(
            lambda: write_dataframe(
                rows, sink, key="id", order_by="amount", buckets=TASKS, **options
            )
        )

    def merge(self) -> Took:
        rows = self._rows()
        others = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
        newest = "SELECT DISTINCT ON (id) * FROM staging ORDER BY id, amount DESC"
        merge = f"INSERT INTO facts {newest} ON CONFLICT (id) DO UPDATE SET {others}"

        def work() -> None:
            self._table.psql.run(PLAIN_TABLE.replace("facts", "staging"))
            jdbc.append(rows, self._table.dsn, "staging", size=10_000, rewrite=True)
            self._table.psql.run(merge, "DROP TABLE staging")

        return self._timed(work)

    def _rows(self) -> Any:
        self._table.make(
            KEYED_TABLE,
            "INSERT INTO facts SELECT id, 0, now(), 0, '' "
            f"FROM generate_series(0, {self._keys - 1}, 2) id",
        )
        return self._table.history(self._keys)

    def _timed(self, work: Any) -> Took:
        """Time it, and check that the table has the last version of each key."""
        took = self._table.timed(work, expect=self._keys)
        least = int(self._table.psql.run("SELECT min(amount) FROM facts"))
        if least < self._table.count - self._keys:
            raise AssertionError(
                f"version {least} stayed; the oldest of the last ones is "
                f"{self._table.count - self._keys}"
            )
        return took


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with facts(count) as table:
        yield [
            contender
            for versions in VERSIONS
            for ways in [Upserts(table, versions)]
            for contender in (
                placed(UPSERTS, versions, ways.ours, ours=True),
                placed(LATEST, versions, partial(ways.ours, latest_only=True), ours=True),
                placed(MERGE, versions, ways.merge),
            )
        ]


CASE = Case(
    name="spark-upserts",
    title="A DataFrame upserted into a table with a key, half of its keys exist",
    prepare=prepare,
    items=2_000_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(MERGE,),
    along="rows per key",
)
