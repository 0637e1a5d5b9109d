"""A DataFrame appended to a table without keys: `write_dataframe` compared with Spark's own JDBC
writer, a writer with COPY on the JVM, and `psql` without Spark.
"""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

from ...harness import NS_PER_ITEM, Case, Contender, Target
from ...spark import jdbc, jvm_copy
from ...spark.sessions import TASKS
from .facts import PLAIN_TABLE, facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ...harness import Turn
    from ...stopwatch import Took
    from .facts import Facts

OURS = "write_dataframe"
BUCKET = 'write_dataframe, delivery="bucket", by key'
STACK = "write_dataframe, full stack"
JDBC = "JDBC"
JDBC_BEST = "JDBC, reWriteBatchedInserts, 10,000"
JVM_COPY = "COPY on the JVM, prototype"
PSQL = "psql, binary COPY, 2 connections"


class Appends:
    """The ways to append the rows."""

    def __init__(self, table: Facts) -> None:
        self._table = table
        self._versions = itertools.count(1)
        self._contents = ""

    def turn(self, work: Callable[[], object]) -> Turn:
        """Write into an empty table, and compare the stored rows."""

        def turn() -> Took:
            self._table.make(PLAIN_TABLE)
            took = self._table.timed(work, expect=self._table.count)
            if (found := self._table.contents()) != self._contents:
                raise AssertionError(f"other rows arrived: {found}, not {self._contents}")
            return took

        return turn

    def ours(self, *, full: bool) -> None:
        from sluicegate.spark import write_dataframe

        write_dataframe(self._table.rows(), self._stack() if full else self._table.sink())

    def ours_in_buckets(self) -> None:
        from sluicegate.spark import write_dataframe

        write_dataframe(
            self._table.rows(),
            self._table.sink(),
            key="id",
            buckets=TASKS,
            delivery="bucket",
            app_id=f"turn {next(self._versions)}",
            version=1,
        )

    def by_jdbc(self, *, size: int, rewrite: bool) -> None:
        jdbc.append(self._table.rows(), self._table.dsn, "facts", size=size, rewrite=rewrite)

    def on_the_jvm(self) -> None:
        jvm_copy.append(self._table.rows(), self._table.dsn, "facts")

    def dump(self) -> None:
        """Write the rows to a file for each connection of `psql`."""
        self._table.make(PLAIN_TABLE)
        self.by_jdbc(size=10_000, rewrite=True)
        self._contents = self._table.contents()
        for part, file in enumerate(self._files):
            self._table.psql.dump(f"SELECT * FROM facts WHERE id % {TASKS} = {part}", file)

    def by_psql(self) -> None:
        self._table.psql.load("facts", self._files)

    @property
    def _files(self) -> list[Path]:
        return [self._table.folder / f"part-{part}" for part in range(TASKS)]

    def _stack(self) -> Any:
        from sluicegate import CircuitBreaker, DeadLetter, Retry, Timeout, stack
        from sluicegate.files import FileSink
        from sluicegate.telemetry import Metrics

        letters = FileSink(self._table.folder / "dead-letters.jsonl", per_process=True)
        return stack(
            self._table.sink(),
            Timeout(60.0),
            CircuitBreaker(failure_rate=0.5, window=30.0),
            Retry(attempts=5),
            DeadLetter(letters),
            Metrics("facts"),
        )


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with jvm_copy.jar() as compiled, facts(count, *compiled) as table:
        ways = Appends(table)
        ways.dump()
        yield [
            Contender(OURS, ways.turn(partial(ways.ours, full=False)), ours=True),
            Contender(BUCKET, ways.turn(ways.ours_in_buckets), ours=True),
            Contender(STACK, ways.turn(partial(ways.ours, full=True)), ours=True),
            Contender(JDBC, ways.turn(partial(ways.by_jdbc, size=1000, rewrite=False))),
            Contender(JDBC_BEST, ways.turn(partial(ways.by_jdbc, size=10_000, rewrite=True))),
            *(
                [Contender(JVM_COPY, ways.turn(ways.on_the_jvm))]
                if jvm_copy.is_loaded(table.spark)
                else []
            ),
            Contender(PSQL, ways.turn(ways.by_psql)),
        ]


CASE = Case(
    name="spark",
    title="2 partitions of a cached DataFrame into PostgreSQL, five columns",
    prepare=prepare,
    items=2_000_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(JDBC_BEST, PSQL),
    targets=(Target(STACK, OURS, 0.9),),
)
