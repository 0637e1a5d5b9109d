"""Sinks as Spark formats, on a real Spark and a real PostgreSQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("pyspark")

from pyspark import TaskContext
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.examples.example import load
from tests.spark.sql import query

from sluicegate import Batch
from sluicegate.postgres import PostgresSink
from sluicegate.spark import register

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "h1dden"


@pytest.fixture
def dsn(embedded_postgres: Any) -> str:
    """An empty table `shop.orders`, and a user that may write to it."""
    made = f"""
        DROP SCHEMA IF EXISTS shop CASCADE;
        DROP ROLE IF EXISTS shopper;
        CREATE ROLE shopper LOGIN PASSWORD '{SECRET}';
        CREATE SCHEMA shop AUTHORIZATION shopper;
        CREATE TABLE shop.orders (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), version int);
        ALTER TABLE shop.orders OWNER TO shopper
    """
    query(embedded_postgres.dsn, made)
    return str(embedded_postgres.dsn)


@pytest.fixture
def jdbc(dsn: str) -> dict[str, str]:
    """The same place in the form that Spark's own writer accepts, with a password that must not be
    shown anywhere.
    """
    parts = urlsplit(dsn)
    return {
        "url": f"jdbc:postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}",
        "user": "shopper",
        "password": SECRET,
    }


def orders(spark: Any, *rows: tuple[int, str, int]) -> Any:
    return spark.createDataFrame([*rows], "id long, name string, version int")


def counted(spark: Any) -> Any:
    return spark.range(0, 1_000, numPartitions=3).selectExpr(
        "id", "concat('n', id) AS name", "1 AS version"
    )


@pytest.mark.long
def test_a_format_by_options_alone(spark: Any, dsn: str, jdbc: dict[str, str]) -> None:
    """`format("sluicegate")` exists without registration; append, then upsert by version, then
    ignore.
    """

    def write(df: Any, **options: object) -> None:
        df.write.format("sluicegate").options(**jdbc, dbtable="shop.orders", **options).mode(
            "append"
        ).save()

    write(counted(spark), batchSize=100)
    assert query(dsn, "SELECT count(*), sum(id)::bigint FROM shop.orders") == [(1_000, 499_500)]
    write(
        orders(spark, (1, "new", 2), (2, "old", 0)),
        writeMode="upsert",
        mergeKeys="id",
        versionColumn="version",
    )
    write(orders(spark, (3, "late", 9), (1_000, "more", 1)), WRITEMODE="ignore")
    found = query(dsn, "SELECT id, name FROM shop.orders WHERE id IN (1, 2, 3, 1000) ORDER BY id")
    assert found == [(1, "new"), (2, "n2"), (3, "n3"), (1_000, "more")]


@pytest.mark.long
def test_a_registered_sink_reports_what_the_table_has(spark: Any, dsn: str) -> None:
    """P-T12: the accumulator's counts are the table's, task by task, also for a retried task."""
    sink = PostgresSink(
        dsn, schema="shop", table="orders", columns=("id", "name", "version"), on_conflict="ignore"
    )
    orders_format = register(spark, "orders", sink, chunk_rows=100)
    assert not orders_format.reports
    counted(spark).write.format("orders").mode("append").save()
    report = orders_format.report
    assert report is not None
    assert [(report.rows, report.delivered, report.retries)] == [
        (1_000, query(dsn, "SELECT count(*) FROM shop.orders")[0][0], 0)
    ]
    assert sorted(unit.chunks for unit in report.units) == [4, 4, 4]
    counted(spark).coalesce(1).write.format("ORDERS").option("batchSize", 500).mode("append").save()
    assert [len(each.units) for each in orders_format.reports.values()] == [3, 1]
    assert orders_format.report is not None
    assert [unit.chunks for unit in orders_format.report.units] == [2]


class DownAtFirst:
    """Fails to open in the first attempt of a task."""

    async def __aenter__(self) -> None:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise ConnectionError

    async def __aexit__(self, *error: object) -> None:
        """Do nothing."""

    async def write(self, batch: Batch[Any]) -> None:
        """Do nothing."""


@pytest.mark.long
def test_attempts_that_failed_are_not_counted(spark: Any) -> None:
    """P-T12: each task's rows once, although it ran twice."""
    down = register(spark, "down", DownAtFirst())
    spark.range(0, 10, numPartitions=2).write.format("down").mode("append").save()
    assert down.report is not None
    assert (down.report.rows, len(down.report.units)) == (10, 2)


class Listener(StreamingQueryListener):
    """Counts the rows that Spark reports as sent to the sink."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        self.rows[event.progress.batchId] = event.progress.sink.numOutputRows

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing."""


@pytest.fixture
def listener(spark: Any) -> Any:
    made = Listener()
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)


def stream(spark: Any, folder: Path) -> Any:
    """Three micro-batches of 20 rows."""
    folder.mkdir()
    for number in range(3):
        rows = [{"id": number * 100 + row, "name": "n", "version": 1} for row in range(20)]
        (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
    return (
        spark.readStream.schema("id long, name string, version int")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder))
    )


@pytest.mark.long
def test_a_stream_by_name_agrees_with_sparks_listener(
    spark: Any, dsn: str, tmp_path: Path, listener: Listener
) -> None:
    """P-T12: the table, the accumulator and the listener agree; a report is named after the query
    and the micro-batch.
    """
    sink = PostgresSink(dsn, schema="shop", table="orders", columns=("id", "name", "version"))
    orders_format = register(spark, "orders", sink)
    writing = (
        stream(spark, tmp_path / "in")
        .writeStream.format("orders")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    running = writing.queryName("orders").trigger(availableNow=True).start()
    assert running.awaitTermination(120)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    reports = {
        int(write.removeprefix(f"{running.id}-")): report.delivered
        for write, report in orders_format.reports.items()
    }
    assert reports == listener.rows == {0: 20, 1: 20, 2: 20}
    assert query(dsn, "SELECT count(*) FROM shop.orders") == [(60,)]


@pytest.mark.long
def test_dead_letters_of_a_format(
    spark: Any, dsn: str, jdbc: dict[str, str], tmp_path: Path
) -> None:
    """P-T12: they fail the write, are allowed, or are stored in a file of each worker process."""

    def write(**options: object) -> None:
        rows = orders(spark, (1, "good", 1), (2, "bad", 1)).coalesce(1)
        rows.write.format("sluicegate").options(
            **jdbc, dbtable="shop.orders", writeMode="upsert", **options
        ).mode("append").save()

    with pytest.raises(
        Exception, match=r"DeadLettersError: 1 of 2 rows failed for good; the first: PermanentError"
    ):
        write()
    write(maxDeadLetters=1)
    write(deadLetters=f"{tmp_path}/letters.jsonl")
    [letter] = [
        line for path in tmp_path.glob("letters-*.jsonl") for line in path.read_text().splitlines()
    ]
    assert json.loads(letter)["item"] == {"id": 2, "name": "bad", "version": 1}
    assert query(dsn, "SELECT id FROM shop.orders") == [(1,)]


@pytest.mark.long
def test_modes(spark: Any, dsn: str, jdbc: dict[str, str]) -> None:
    """P-T14: without a mode Spark raises its own error; overwrite is refused before anything is
    written, and never treated as append.
    """
    writing = counted(spark).write.format("sluicegate").options(**jdbc, dbtable="shop.orders")
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writing.save()
    with pytest.raises(
        Exception,
        match=r"mode='overwrite': format\('sluicegate'\) only adds rows; write with "
        r".mode\('append'\)",
    ):
        writing.mode("overwrite").save()
    assert query(dsn, "SELECT count(*) FROM shop.orders") == [(0,)]


@pytest.mark.long
def test_a_wrong_option_stops_before_a_row_is_read(
    spark: Any, dsn: str, jdbc: dict[str, str]
) -> None:
    """The complete error reaches the caller through Spark's planner, without the password."""
    with pytest.raises(Exception, match="did you mean 'batchSize'") as refused:
        counted(spark).write.format("sluicegate").options(
            **jdbc, dbtable="shop.orders", batchSizes=10
        ).mode("append").save()
    assert SECRET not in str(refused.value)
    assert query(dsn, "SELECT count(*) FROM shop.orders") == [(0,)]


def plans(spark: Any) -> str:
    """All text that Spark's own pages show about the queries of this session."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    shown = [executions.apply(number) for number in range(executions.size())]
    return "\n".join(
        f"{each.description()} {each.details()} {each.physicalPlanDescription()} "
        f"{each.modifiedConfigs()}"
        for each in shown
    )


@pytest.mark.long
def test_a_password_is_shown_nowhere(
    spark: Any, dsn: str, jdbc: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """P-T18: neither in plans, explanations, errors nor logs; with `password` and `url`, and with
    `dsn`.
    """
    kept = {"dbtable": "shop.orders", "writeMode": "ignore"}
    place = jdbc["url"].removeprefix("jdbc:postgresql://")
    inside = (
        {"url": f"postgresql://shopper:{SECRET}@{place}"},
        {"dsn": f"postgresql://shopper:{SECRET}@{place}"},
    )
    for access in (jdbc, *inside):
        orders(spark, (1, "n", 1)).coalesce(1).write.format("sluicegate").options(
            **access, **kept
        ).mode("append").save()
    for check in ("true", "false"):  # on the driver, and in a task
        writing = (
            orders(spark, (1, "n", 1))
            .coalesce(1)
            .write.format("sluicegate")
            .options(**jdbc, dbtable="shop.nowhere", check=check)
        )
        with pytest.raises(Exception, match="nowhere") as refused:
            writing.mode("append").save()
        assert SECRET not in str(refused.value)
    rows = (
        stream(spark, tmp_path / "in").writeStream.format("sluicegate").options(**inside[1], **kept)
    )
    running = (
        rows.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert running.awaitTermination(120)
    said = (
        plans(spark)
        + running._jsq.explainInternal(True)
        + str(running.recentProgress)
        + "".join(capfd.readouterr())
    )
    assert "AppendData sluicegate" in said
    assert SECRET not in said


@pytest.mark.long
def test_the_example(spark: Any, dsn: str, jdbc: dict[str, str]) -> None:
    """The example on the page "Write from Spark"."""
    program = load("orders_from_spark")
    program.main(dsn)
    assert query(dsn, "SELECT count(*), max(version) FROM shop.orders") == [(1_000, 1)]
    program.by_options(orders(spark, (7, "seven", 2)), **jdbc)
    assert query(dsn, "SELECT name FROM shop.orders WHERE version = 2") == [("seven",)]
