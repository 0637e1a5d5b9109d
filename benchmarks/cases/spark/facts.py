"""The database, Spark and the rows shared by the cases on Spark: two tasks, five columns, and rows
that are cached before any timing. The table is created anew before each turn and counted after it.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...harness import CaseUnavailableError
from ...processes import FamilyStopwatch
from ...spark import sessions
from ...spark.psql import Psql
from ...spark.sessions import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ...stopwatch import Took

COLUMNS = ("id", "amount", "at", "rate", "note")
PLAIN_TABLE = (
    "CREATE TABLE facts (id bigint, amount integer, at timestamptz, rate double "
    "precision, note text)"
)
KEYED_TABLE = PLAIN_TABLE.replace("id bigint", "id bigint PRIMARY KEY")


class Facts:
    """A table, and the DataFrames that are written to it."""

    def __init__(self, spark: Any, dsn: str, folder: Path, count: int) -> None:
        self.spark = spark
        self.dsn = dsn
        self.folder = folder
        self.count = count
        self.psql = Psql(dsn)
        self._cached: dict[str, Any] = {}

    def rows(self) -> Any:
        """Return a row for each id."""
        return self._made_once("id")

    def history(self, keys: int) -> Any:
        """Return the rows with that many ids, the versions of each spread over the partitions in no
        order. `amount` identifies the newest.
        """
        return self._made_once(f"(id * 7919) % {keys}")

    def _made_once(self, key: str) -> Any:
        if key not in self._cached:
            self._cached[key] = self.made(self.count, TASKS, key).cache()
            self._cached[key].count()
        return self._cached[key]

    def made(self, count: int, partitions: int, key: str = "id") -> Any:
        """Return rows that Spark generates as it writes them."""
        return self.spark.range(0, count, 1, partitions).selectExpr(
            f"{key} id",
            "cast(id as int) amount",
            "timestamp_micros(1700000000000000 + id * 1000) at",
            "id / 7 rate",
            "concat('a note of thirty-three ', lpad(id, 10, '0')) note",
        )

    def sink(self, **options: Any) -> Any:
        """Make the sink of the table."""
        from sluicegate.postgres import PostgresSink

        return PostgresSink(self.dsn, table="facts", columns=COLUMNS, **options)

    def make(self, *statements: str) -> None:
        """Create the tables anew, without pending writes of the previous turn."""
        self.psql.run("DROP TABLE IF EXISTS facts, staging", *statements, "CHECKPOINT")

    def contents(self) -> str:
        """Return the number of rows in the table, and a checksum of each column."""
        return self.psql.run(
            "SELECT count(*), sum(id), sum(amount), sum(timestamp_hash(at::timestamp)), "
            "sum(hashfloat8(rate)), sum(hashtext(note)) FROM facts"
        )

    def timed(self, work: Callable[[], object], *, expect: int) -> Took:
        """Run it, and check the number of rows in the table."""
        watch = FamilyStopwatch()
        work()
        took = watch.read()
        found = int(self.psql.run("SELECT count(*) FROM facts"))
        if found != expect:
            raise AssertionError(f"{found} of {expect} rows arrived")
        return took


@contextlib.contextmanager
def facts(count: int, *more_jars: str) -> Generator[Facts]:
    """Start an embedded server and a Spark session."""
    try:
        from pyspark.sql import SparkSession

        from sluicegate.errors import MissingJars
        from sluicegate.spark import connector_jars
        from sluicegate.testing import EmbeddedUnavailable, embedded_postgres
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    if SparkSession.getActiveSession() is not None:
        raise CaseUnavailableError(
            "another Spark runs in this process; its settings are not this case's"
        )
    with contextlib.ExitStack() as opened:
        try:
            server = opened.enter_context(embedded_postgres())
            jars = connector_jars("postgresql")
        except (EmbeddedUnavailable, MissingJars) as missing:
            raise CaseUnavailableError(str(missing)) from missing
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        spark = sessions.start(jars, *more_jars)
        opened.callback(spark.stop)
        yield Facts(spark, server.dsn, folder, count)
