"""A repeated unit of a committed name must equal the committed one: same table, same keys, same
rows. White box: the content's hash, and a partition's task in this process.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from tests.spark.sql import query

from sluicegate import Batch, ConfigError, Retry, Timeout, stack
from sluicegate.errors import NonDeterministicReplay, UnitRefused
from sluicegate.postgres import PostgresSink
from sluicegate.sinks import Counts
from sluicegate.spark import SparkWriteReport, foreach_batch, write_dataframe
from sluicegate.spark.content import CONTENT, Content
from sluicegate.spark.description import description
from sluicegate.spark.keys import describe_types, keyed, with_bucket
from sluicegate.spark.levels import Units
from sluicegate.spark.task.partition import Partition
from sluicegate.spark.task.task import Cuts

from .conftest import WHOLE, rows

if TYPE_CHECKING:
    from pathlib import Path

BUCKET: dict[str, Any] = {
    "delivery": "bucket",
    "key": "key",
    "order_by": "id",
    "app_id": "job",
    "buckets": 3,
    "max_tasks": 1,
}
ATOMIC: dict[str, Any] = {"delivery": "atomic", "app_id": "job"}


def sink(dsn: str, table: str = "events") -> Any:
    return stack(PostgresSink(dsn, table=table, columns=("id", "key")), Timeout(30.0), Retry())


def test_two_writers_of_one_micro_batch_both_write(spark: Any, dsn: str) -> None:
    """They share application, version and buckets, but the tables differ."""
    query(dsn, "DROP TABLE IF EXISTS copies; CREATE TABLE copies (id bigint, key bigint)")
    reports: list[SparkWriteReport] = []

    def micro_batch(df: Any, number: int) -> None:
        for table, options in (("events", BUCKET), ("copies", BUCKET), ("copies", ATOMIC)):
            each = foreach_batch(sink(dsn, table), on_report=reports.append, **options)
            each(df, number if options is BUCKET else number + 1)

    micro_batch(rows(spark, 300), 0)
    micro_batch(rows(spark, 300, partitions=2), 0)
    written = [(report.delivered, report.skipped_units) for report in reports]
    assert written == [(300, 0), (300, 0), (300, 0), (0, 3), (0, 3), (0, 1)]
    assert (query(dsn, WHOLE), query(dsn, "SELECT count(*) FROM copies")) == (
        [(300, 300)],
        [(600,)],
    )


def test_a_key_of_another_type_is_refused_in_the_middle_of_a_version(spark: Any, dsn: str) -> None:
    """Its hashes differ, so the committed buckets would have skipped other rows, and duplicated
    some.
    """
    first = rows(spark, 400).selectExpr("id", "cast(key AS int) AS key")
    bad = first.where("pmod(hash(key), 3) = 1").first().id
    query(dsn, f"ALTER TABLE events ADD CONSTRAINT no CHECK (id <> {bad})")
    with pytest.raises(Exception, match="rolled back"):
        write_dataframe(first, sink(dsn), version=0, **BUCKET)
    committed = query(dsn, "SELECT sum(rows)::bigint FROM sluicegate_ledger")[0][0]
    assert 0 < committed < 400
    query(dsn, "ALTER TABLE events DROP CONSTRAINT no")
    other = rows(spark, 400)
    units = Units(
        application="job",
        version=0,
        buckets=3,
        key=("key",),
        in_transactions=True,
        types=describe_types(other, ["key"]),
    )
    cuts = Cuts(chunk_rows=1_000, chunk_bytes=1 << 20, window=1, key=("key",))
    here = Partition(description(sink(dsn)), cuts, "job", keep=0, stop_at=0, units=units)
    with pytest.raises(
        UnitRefused, match=r"key int\b.*key bigint"
    ):  # in this process: Spark would try it four times
        here.run(with_bucket(keyed(other, "key", order_by="id", buckets=3)).toArrow().to_batches())
    assert query(dsn, WHOLE) == [(committed, committed)]
    report = write_dataframe(first, sink(dsn), version=0, **BUCKET)
    assert (report.delivered, report.duplicate) == (400 - committed, committed)
    assert query(dsn, WHOLE) == [(400, 400)]


@pytest.mark.long
@pytest.mark.parametrize("options", [BUCKET, ATOMIC], ids=["bucket", "atomic"])
def test_a_deleted_checkpoint_under_an_old_name_is_an_error(
    spark: Any, dsn: str, options: dict[str, Any]
) -> None:
    """Micro-batch 0 comes again with the same number of rows, but other contents."""
    reports: list[SparkWriteReport] = []
    write = foreach_batch(sink(dsn), on_report=reports.append, **options)
    write(rows(spark, 97), 0)
    with pytest.raises(
        Exception, match=r"(?s)NonDeterministicReplay.*app_id|of another content.*app_id"
    ) as refused:
        write(rows(spark, 194).where("id >= 97"), 0)
    assert options is BUCKET or isinstance(refused.value, NonDeterministicReplay)
    write(rows(spark, 97, partitions=1).select("key", "id"), 0)
    assert query(dsn, "SELECT count(*), max(id) FROM events") == [(97, 96)]
    assert reports[-1].skipped_units == (3 if options is BUCKET else 1)


def test_batches_of_other_rows_have_other_ids_where_no_ledger_compares_them(
    spark: Any, tmp_path: Path
) -> None:
    """`at_least_once` with its own name: a destination that deduplicates must not mistake them for
    stored ones.
    """
    sent = tmp_path / "sent"

    def note(batch: Batch[Any]) -> None:
        sent.write_text(batch.id)

    write = foreach_batch(note, key="key", order_by="id", buckets=1, app_id="job")
    ids: list[str] = []
    for df in (rows(spark, 97), rows(spark, 97, partitions=2), rows(spark, 194).where("id >= 97")):
        write(df, 0)
        ids.append(sent.read_text())
    assert ids[0] == ids[1] != ids[2]
    assert {each.rpartition("-")[0] for each in ids} == {"job:0:0-0"}


def test_a_column_that_is_made_anew_is_left_out(spark: Any, dsn: str) -> None:
    """Otherwise the replay of a bucket has another content. Columns of every kind are hashed, and
    NULLs count.
    """
    query(dsn, "ALTER TABLE events ADD COLUMN at timestamptz")
    timed = PostgresSink(dsn, table="events", columns=("id", "key", "at"))
    read = rows(spark, 200).selectExpr(
        "id",
        "key",
        "current_timestamp() AS at",
        "map(id, key) AS m",
        "array(map(1, id)) AS a",
        "id % 2 = 0 AS b",
    )
    began = datetime.now(UTC)
    chosen: dict[str, Any] = BUCKET | {"version": 0, "content": ("id", "key", "m", "a", "b")}
    assert write_dataframe(read, timed, **chosen).delivered == 200
    assert write_dataframe(read, timed, **chosen).skipped_units == 3
    assert query(dsn, "SELECT min(at), count(DISTINCT at) FROM events") >= [(began, 1)]
    counts_only: dict[str, Any] = chosen | {"content": ()}
    assert write_dataframe(read, timed, **counts_only).skipped_units == 3
    assert query(dsn, WHOLE) == [(200, 200)]


def test_columns_of_the_content_are_checked(spark: Any, dsn: str) -> None:
    df = rows(spark, 1)
    options: dict[str, Any]
    for options in (BUCKET | {"version": 0, "content": ("gone",)}, {"content": ()}):
        with pytest.raises(ConfigError, match="content"):
            write_dataframe(df, sink(dsn), **options)
    hidden: dict[str, Any] = BUCKET | {"version": 0, "order_by": None}
    with pytest.raises(ConfigError, match="sluicegate_content"):
        write_dataframe(df.withColumnRenamed("id", "sluicegate_content"), sink(dsn), **hidden)


def test_rows_that_differ_by_their_nulls_alone_are_others(spark: Any) -> None:
    """Spark's hash skips NULLs; the same rows in another order, with their columns in another
    order, are the same.
    """
    pairs = "a int, `b.c` int, m map<string, int>, s struct<x: map<string, int>>"
    some, swapped = (
        [(None, 1, None, None), (0, 3, {"k": 1}, ({"k": 1},))],
        [(1, None, None, None), (0, 3, {"k": 1}, ({"k": 1},))],
    )

    def counted(given: list[Any], *columns: str) -> Counts:
        df = spark.createDataFrame(given, pairs)
        return Content.of(df.select(*columns) if columns else df, None, is_named=True).count()

    first = counted(some)
    assert (first.rows, first.content_of) == (
        2,
        "a int, b.c int, m map<string,int>, s struct<x:map<string,int>>",
    )
    assert counted(some[::-1], "s", "m", "`b.c`", "a") == first
    assert counted(swapped).content != first.content
    assert counted([]) == Counts(content=0, content_of=first.content_of)


def test_a_sum_of_doubles_added_up_in_another_order_is_the_same(spark: Any) -> None:
    """It differs in its last digits, as `sum` and `avg` over a shuffle do between runs."""
    df = spark.createDataFrame([(0.1 + 0.2,), (0.3,), (0.31,)], "total double")
    hashes = [row[CONTENT] for row in Content.of(df, None, is_named=True).beside(df).collect()]
    assert hashes[0] == hashes[1] != hashes[2]
