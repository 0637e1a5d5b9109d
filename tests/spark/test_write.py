"""DataFrames written through sinks, on a real Spark."""

from __future__ import annotations

from typing import Any

import pytest
import tenacity

pytest.importorskip("pyspark")

from tests.spark.sql import query

from sluicegate import (
    Batch,
    ConfigError,
    PermanentError,
    Retry,
    Timeout,
    UnavailableError,
    WriteResult,
    stack,
)
from sluicegate.errors import NotPicklableError
from sluicegate.postgres import PostgresSink
from sluicegate.spark import DeadLettersError, write_dataframe


@pytest.fixture
def table(embedded_postgres: Any) -> str:
    query(embedded_postgres.dsn, "DROP TABLE IF EXISTS numbers")
    query(
        embedded_postgres.dsn,
        "CREATE TABLE numbers (id bigint PRIMARY KEY, name text, serial bigserial)",
    )
    return str(embedded_postgres.dsn)


def test_every_row_arrives_and_is_counted(spark: Any, table: str) -> None:
    """P-T12: through a stack, from several tasks."""
    df = spark.range(0, 10_000, numPartitions=3).selectExpr("id", "concat('n', id) AS name")
    sink = stack(
        PostgresSink(
            table,
            table="numbers",
            columns=("id", "name"),
            on_conflict="update",
            conflict_columns=("id",),
        ),
        Timeout(20.0),
        Retry(),
    )
    report = write_dataframe(df, sink, chunk_rows=1_000)
    assert (report.rows, report.delivered, report.dead_letters, len(report.units)) == (
        10_000,
        10_000,
        0,
        3,
    )
    assert sum(unit.chunks for unit in report.units) == 12
    assert query(table, "SELECT count(*), sum(id)::bigint, max(name) FROM numbers") == [
        (10_000, 49_995_000, "n9999")
    ]
    assert "10,000 rows: 10,000 delivered" in str(report)


@pytest.mark.long
def test_tasks_share_the_connection_of_their_worker(spark: Any, table: str) -> None:
    """There are two workers, and possibly a third if one was not free in time."""
    query(table, "ALTER TABLE numbers ADD backend integer DEFAULT pg_backend_pid()")
    df = spark.range(0, 60, numPartitions=30).selectExpr("id", "'n' AS name")
    sink = PostgresSink(table, table="numbers", columns=("id", "name"))
    assert len(write_dataframe(df, sink).units) == 30
    ((rows, connections),) = query(table, "SELECT count(*), count(DISTINCT backend) FROM numbers")
    assert rows == 60
    assert 1 <= connections <= 4


def odd_ones_fail(batch: Batch[Any]) -> WriteResult:
    return WriteResult.failed(
        batch,
        {
            i: PermanentError(f"{row['id']} is odd")
            for i, row in enumerate(batch)
            if row["id"] % 100 == 1
        },
    )


def test_dead_rows_come_back_or_fail_the_write(spark: Any) -> None:
    """P-T10, P-T12: counts stay exact, and the error shows the first."""
    df = spark.range(0, 1_000, numPartitions=2)
    report = write_dataframe(df, odd_ones_fail, dead_letters="return")
    assert (report.rows, report.delivered, report.dead_letters) == (1_000, 990, 10)
    assert sorted(dead.row["id"] for dead in report.dead_rows) == [*range(1, 1000, 100)]
    assert report.dead_rows[0].error_type == "PermanentError"
    with pytest.raises(
        DeadLettersError, match="10 of 1000 rows failed for good; the first: PermanentError: "
    ):
        write_dataframe(df, odd_ones_fail)
    assert write_dataframe(df, odd_ones_fail, max_dead_letters=10).dead_letters == 10


def test_rows_of_a_key_arrive_in_order(spark: Any, table: str) -> None:
    """P-T9: no inversion within a key, with several chunks in flight."""
    query(table, "ALTER TABLE numbers DROP CONSTRAINT numbers_pkey")
    df = spark.range(0, 20_000, numPartitions=5).selectExpr(
        "(id * 7919) % 20000 AS id", "cast((id * 7919) % 20000 % 97 AS string) AS name"
    )
    sink = PostgresSink(table, table="numbers", columns=("id", "name"))
    report = write_dataframe(
        df, sink, key="name", order_by="id", buckets=3, chunk_rows=150, max_in_flight=4
    )
    assert report.delivered == 20_000
    inversions = (
        "SELECT count(*) FROM (SELECT id < lag(id) OVER (PARTITION BY name ORDER BY "
        "serial) AS bad FROM numbers) AS t WHERE bad"
    )
    assert query(table, inversions) == [(0,)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"key": "nope"}, r"key='nope': must name columns of the DataFrame, which has id"),
        ({"order_by": "id"}, "order_by='id': has no meaning without key"),
        ({"chunk_rows": 0}, "chunk_rows=0"),
        ({"dead_letters": "ignore"}, "dead_letters='ignore'"),
        ({"max_tasks": 0}, "max_tasks=0"),
        ({"patience": -1}, "patience=-1"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    spark: Any, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        write_dataframe(spark.range(1), odd_ones_fail, **options)


def test_a_sink_that_cannot_travel_is_told(spark: Any) -> None:
    """P-T13."""
    import threading

    lock = threading.Lock()

    def write(batch: Batch[Any]) -> None:
        with lock:
            pass

    with pytest.raises(NotPicklableError, match="must be sent to the executors"):
        write_dataframe(spark.range(1), write)


def nobody_there(batch: Batch[Any]) -> None:
    raise UnavailableError("refused")


def test_patience_ends_an_outage_and_no_row_is_forgotten(spark: Any) -> None:
    """A task must end before Spark's timeout; waiting rows are returned, and the attempts are
    counted.
    """
    down = stack(nobody_there, Retry(backoff=tenacity.wait_fixed(0.005)))
    report = write_dataframe(
        spark.range(0, 10, numPartitions=2), down, patience=0.3, dead_letters="return"
    )
    assert (report.rows, report.delivered, report.failed) == (10, 0, 10)
    assert report.retries >= 2
    assert {dead.error_type for dead in report.dead_rows} == {"StoppedError"}


def test_max_tasks_bounds_who_writes_at_the_same_time(spark: Any) -> None:
    """The means for P-T15: fewer tasks, all rows."""
    report = write_dataframe(
        spark.range(0, 100, numPartitions=8), odd_ones_fail, max_tasks=2, max_dead_letters=10
    )
    assert (report.rows, len(report.units)) == (100, 2)
