"""`delivery="bucket"` on a real Spark and a real PostgreSQL; each result is checked in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from tests.spark.sql import query

from sluicegate import Retry, Timeout, stack
from sluicegate.postgres import PostgresAccess, PostgresSink
from sluicegate.spark import DeadLettersError, SparkWriteReport, foreach_batch, write_dataframe

from .conftest import INVERSIONS, WHOLE, rows

if TYPE_CHECKING:
    from pathlib import Path

BUCKET: dict[str, Any] = {
    "delivery": "bucket",
    "key": "key",
    "order_by": "id",
    "app_id": "job",
    "version": 1,
    "buckets": 4,
}


def changed(**options: Any) -> dict[str, Any]:
    return BUCKET | options


ENDED = "DO $$ BEGIN LOCK TABLE sluicegate_ledger IN SHARE MODE; END $$"
"""Waits for the transactions of tasks that still run although their job has failed."""
CUT_AT_A_ROW = """
    CREATE TABLE broken (key bigint); INSERT INTO broken VALUES ({key});
    CREATE OR REPLACE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.key IN (SELECT key FROM broken) AND NEW.id > 10000 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER cut BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION cut()
"""
CUT_ONCE = """
    CREATE SEQUENCE IF NOT EXISTS cuts; ALTER SEQUENCE cuts RESTART;
    CREATE OR REPLACE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF current_setting('application_name') = 'sluicegate_cut' AND nextval('cuts') = 2500 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
        RETURN NEW;
    END $$;
    DROP TRIGGER IF EXISTS cut ON events; TRUNCATE events;
    CREATE TRIGGER cut BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION cut()
"""


def sink(dsn: str, connect_options: Any = None, **options: Any) -> Any:
    access = PostgresAccess(dsn, connect_options=connect_options or {})
    return stack(
        PostgresSink(access, table="events", columns=("id", "key"), **options),
        Timeout(30.0),
        Retry(),
    )


@pytest.mark.long
def test_a_replay_from_other_partitions_writes_what_is_missing(spark: Any, dsn: str) -> None:
    """P-T4, P-T6, P-T9, P-T12: a job failed after some buckets were committed; none is lost or
    duplicated, they are in order, and the counts are exact.
    """
    key = rows(spark, 97).where("pmod(hash(key), 4) = 3").first().key
    query(dsn, CUT_AT_A_ROW.format(key=key))
    with pytest.raises(Exception, match="TransactionLost"):
        write_dataframe(
            rows(spark, 20_000), sink(dsn), chunk_rows=700, unit_buffer_bytes=0, **BUCKET
        )
    query(dsn, ENDED)
    committed = query(dsn, "SELECT count(*), sum(rows)::bigint FROM sluicegate_ledger")[0]
    assert 2 <= committed[0] <= 3
    assert query(dsn, WHOLE) == [(committed[1], committed[1])]
    query(dsn, "DELETE FROM broken")
    again = write_dataframe(
        rows(spark, 20_000, partitions=5), sink(dsn), chunk_rows=700, max_tasks=2, **BUCKET
    )
    assert (again.rows, len(again.units), again.skipped_units) == (20_000, 4, committed[0])
    assert (again.delivered, again.duplicate) == (20_000 - committed[1], committed[1])
    assert query(dsn, WHOLE) == [(20_000, 20_000)]
    assert query(dsn, INVERSIONS) == [(0,)]
    with pytest.raises(Exception, match=r"(?s)UnitRefused.*parts"):
        # one task: another one would still be writing when the next test begins
        write_dataframe(rows(spark, 20_000), sink(dsn), max_tasks=1, **changed(buckets=5))
    assert query(dsn, WHOLE) == [(20_000, 20_000)]


@pytest.mark.long
def test_a_connection_that_breaks_is_no_failure_of_the_task_where_the_unit_fits(
    spark: Any, dsn: str
) -> None:
    """P-T16, P-T12: with the buffer Spark does not notice it; without it, the second attempt
    counts. The same holds for an upsert.
    """
    df = rows(spark, 4_000)
    named = {
        "server_settings": {"application_name": "sluicegate_cut"}
    }  # tasks of a job that failed in another test may still be writing
    query(dsn, CUT_ONCE)
    kept = write_dataframe(df, sink(dsn, connect_options=named), chunk_rows=300, **BUCKET)
    assert (kept.delivered, kept.retries, {unit.attempt for unit in kept.units}) == (4_000, 1, {0})
    assert query(dsn, WHOLE) == [(4_000, 4_000)]
    query(dsn, CUT_ONCE)
    again = write_dataframe(
        df,
        sink(dsn, connect_options=named),
        chunk_rows=300,
        unit_buffer_bytes=0,
        **changed(version=2),
    )
    assert (again.rows, again.delivered, again.retries, again.skipped_units) == (4_000, 4_000, 0, 0)
    assert sorted(unit.attempt for unit in again.units) == [0, 0, 0, 1]
    assert query(dsn, WHOLE) == [(4_000, 4_000)]
    query(dsn, CUT_ONCE + "; CREATE UNIQUE INDEX ON events (id)")
    idempotent = write_dataframe(
        df,
        sink(dsn, connect_options=named, on_conflict="update", conflict_columns=("id",)),
        chunk_rows=300,
    )
    assert (idempotent.delivered, {unit.attempt for unit in idempotent.units}) == (4_000, {0})
    assert idempotent.retries >= 1
    assert query(dsn, WHOLE) == [(4_000, 4_000)]


def test_a_bucket_with_too_many_dead_rows_leaves_nothing(spark: Any, dsn: str) -> None:
    """P-T10: the others are committed, and are skipped when the write is repeated with a higher
    limit.
    """
    query(dsn, "ALTER TABLE events ADD CHECK (id NOT IN (100, 197))")
    with pytest.raises(
        DeadLettersError,
        match=r"in each of 1 buckets, which were rolled back \(3 others are committed\).*check",
    ):
        write_dataframe(rows(spark, 400), sink(dsn), max_dead_letters=1, **BUCKET)
    assert query(dsn, "SELECT count(*) FROM sluicegate_ledger") == [(3,)]
    assert query(dsn, f"SELECT count(*) FROM events WHERE key = {100 * 7919 % 97}") == [(0,)]
    report = write_dataframe(rows(spark, 400), sink(dsn), max_dead_letters=2, **BUCKET)
    stored = report.delivered + report.duplicate
    assert (report.rows, stored, report.failed, report.skipped_units) == (400, 398, 2, 3)
    assert sorted(row.row["id"] for row in report.dead_rows) == [100, 197]
    assert query(dsn, WHOLE) == [(398, 398)]
    again = write_dataframe(rows(spark, 400), sink(dsn), **BUCKET)
    assert (again.rows, again.duplicate, again.failed, again.skipped_units) == (400, 398, 2, 4)


def test_no_more_connections_than_tasks(spark: Any, dsn: str) -> None:
    """P-T15: pg_stat_activity, as seen by each writing statement."""
    query(
        dsn,
        """
        DROP TABLE IF EXISTS connections_seen; CREATE TABLE connections_seen (connections bigint);
        CREATE OR REPLACE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO connections_seen SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sluicegate_counted'; RETURN NULL;
        END $$;
        CREATE TRIGGER look AFTER INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION look()
        """,
    )
    counted = sink(
        dsn, connect_options={"server_settings": {"application_name": "sluicegate_counted"}}
    )
    report = write_dataframe(
        rows(spark, 2_000, partitions=8), counted, max_tasks=1, **changed(buckets=12)
    )
    assert (report.delivered, len(report.units)) == (
        2_000,
        len({unit.partition for unit in report.units}),
    )
    assert len(report.units) > 6
    assert query(dsn, "SELECT max(connections), count(*) FROM connections_seen") == [
        (1, len(report.units))
    ]


def test_a_micro_batch_whose_end_was_not_noted_is_skipped(
    spark: Any, dsn: str, tmp_path: Path
) -> None:
    """P-T5: the last file of `commits/` is missing, so Spark repeats that batch. The query's id is
    the application.
    """
    for number in range(3):
        lines = [f'{{"id": {number * 100 + row}, "key": {row % 7}}}\n' for row in range(50)]
        (tmp_path / f"{number}.json").write_text("".join(lines))
    reports: list[SparkWriteReport] = []
    write = foreach_batch(
        sink(dsn), on_report=reports.append, delivery="bucket", key="key", order_by="id", buckets=3
    )

    def run() -> None:
        read = (
            spark.readStream.schema("id long, key long")
            .option("maxFilesPerTrigger", 2)
            .json(str(tmp_path / "*.json"))
        )
        query = (
            read.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        assert query.start().awaitTermination(120)

    run()
    assert [(report.delivered, report.skipped_units) for report in reports] == [(100, 0), (50, 0)]
    for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
        file.unlink()
    run()
    assert [(report.rows, report.duplicate, report.skipped_units) for report in reports[2:]] == [
        (50, 50, len(reports[1].units))
    ]
    assert query(dsn, WHOLE) == [(150, 150)]
    assert query(dsn, INVERSIONS) == [(0,)]
    assert query(
        dsn, "SELECT count(DISTINCT application), max(version) FROM sluicegate_ledger"
    ) == [(1, 1)]
