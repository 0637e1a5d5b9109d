"""The Python snippets of the pages on Spark run unchanged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from tests.docs.pages import snippets
from tests.examples.conftest import database
from tests.spark.sql import query

from sluicegate.postgres import PostgresSink
from sluicegate.spark import write_dataframe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluicegate.testing import EmbeddedKafka

__all__ = ["database"]

COLUMNS = "(account text, seq int, amount int)"


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Runner]:
    monkeypatch.chdir(tmp_path)
    with asyncio.Runner() as made:
        yield made


def frame(spark: Any) -> Any:
    """Four rows, two for each account."""
    amount = "CASE WHEN id = 3 THEN 7 ELSE id END"
    return spark.range(4).selectExpr(
        "concat('a', id % 2) AS account", "int(id) AS seq", f"int({amount}) AS amount"
    )


def stream(spark: Any, rows: Any, folder: Path) -> Any:
    """The same rows as a stream."""
    rows.write.mode("overwrite").parquet(str(folder))
    return spark.readStream.schema(rows.schema).parquet(str(folder))


def ended(spark: Any) -> None:
    """Wait until every query has read its stream, and stop it."""
    for each in spark.streams.active:
        each.processAllAvailable()
        each.stop()


@pytest.mark.long
def test_exactly_once(spark: Any, runner: asyncio.Runner, database: str, tmp_path: Path) -> None:
    by_stream, atomic, overwrites, replaces = snippets("how-to/deliver-exactly-once-from-spark.md")
    query(database, f"CREATE TABLE orders {COLUMNS}")
    rows = frame(spark)
    given = {
        "dsn": database,
        "folder": str(tmp_path / "c"),
        "rows": stream(spark, rows, tmp_path / "r"),
    }
    by_stream.run(runner, given)
    ended(spark)
    assert len(query(database, "SELECT * FROM orders")) == 4
    given["rows"] = rows
    atomic.run(runner, given)
    assert len(query(database, "SELECT * FROM orders")) == 8
    overwrites.run(runner, given)
    assert len(query(database, "SELECT * FROM orders")) == 4
    given["rows"] = rows.where("account = 'a1' AND seq = 1")
    replaces.run(runner, given)
    assert len(query(database, "SELECT * FROM orders")) == 3


def test_order(
    spark: Any,
    runner: asyncio.Runner,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, latest, parks, *_ = snippets("how-to/write-from-spark.md")
    query(database, f"CREATE TABLE movements {COLUMNS}")
    query(database, "CREATE TABLE accounts (account text PRIMARY KEY, seq int, amount int)")
    given = {"dsn": database, "df": frame(spark), "folder": str(tmp_path)}
    latest.run(runner, given)
    assert capsys.readouterr().out == "2 sent, 2 superseded\n"
    assert query(database, "SELECT amount FROM accounts ORDER BY 1") == [(2,), (7,)]
    parks.run(runner, given)
    assert capsys.readouterr().out == "0 of which behind another row: 0\n"
    assert len(query(database, "SELECT * FROM movements")) == 4
    assert [*tmp_path.glob("letters-*.jsonl")], "Spark's workers have another working directory"


@pytest.mark.long
def test_watch(
    spark: Any,
    runner: asyncio.Runner,
    database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    *_, streams, listens, _ = snippets("how-to/write-from-spark.md")
    query(database, f"CREATE TABLE movements {COLUMNS}")
    sink = PostgresSink(database, table="movements", columns=("account", "seq", "amount"))
    rows = frame(spark)
    given = {"df": stream(spark, rows, tmp_path / "rows"), "sink": sink}
    given |= {"path": str(tmp_path / "checkpoint"), "spark": spark, "ended": ended}
    streams.run(runner, given, **{"...\n": "query.processAllAvailable()\nquery.stop()\n"})
    assert len(query(database, "SELECT * FROM movements")) == 4
    assert "4 rows" in capsys.readouterr().out
    made: dict[str, Any] = {"spark": spark}
    listens.run(runner, made, **{"9464": "0"})
    spark.streams.removeListener(made["listener"])
    made["server"].shutdown()
    made["server"].server_close()


@pytest.mark.long
def test_pipeline(spark: Any, runner: asyncio.Runner, database: str, tmp_path: Path) -> None:
    (declared,) = snippets("how-to/run-a-pipeline.md")
    query(database, "CREATE TABLE aircraft (tailnum text, at int, dest text)")
    rows = spark.range(3).selectExpr("concat('N', id) AS tailnum", "int(id) AS at", "'JFK' AS dest")
    rows.write.parquet(str(tmp_path / "flights"))
    declared.run(
        runner,
        {"spark": spark},
        **{"postgresql://...": database, 'path="flights"': f"path={str(tmp_path / 'flights')!r}"},
    )
    assert len(query(database, "SELECT * FROM aircraft")) == 3


@pytest.mark.long
def test_a_table_is_created(
    spark: Any, runner: asyncio.Runner, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    creates, *_ = snippets("how-to/write-from-spark.md")
    orders = spark.range(3).selectExpr("id", "concat('s', id) AS shop")
    creates.run(runner, {"dsn": database, "orders": orders, "write_dataframe": write_dataframe})
    assert capsys.readouterr().out == (
        'CREATE TABLE "orders" ("id" bigint, "shop" text, PRIMARY KEY ("id"))\n'
    )
    assert len(query(database, "SELECT * FROM orders")) == 3


@pytest.mark.long
def test_into_kafka(spark: Any, runner: asyncio.Runner, broker: EmbeddedKafka) -> None:
    *_, into_kafka = snippets("how-to/write-from-spark.md")
    broker.create_topic("orders_of_rows")
    orders = spark.range(3).selectExpr("id", "concat('s', id) AS shop")
    records = spark.range(3).selectExpr(
        "'orders_of_rows' AS topic",
        "binary('k') AS key",
        "binary('v') AS value",
        "array(struct('h' AS key, binary('x') AS value)) AS headers",
        "current_timestamp() AS timestamp",
    )
    given = {"orders": orders, "records": records, "brokers": broker.bootstrap}
    into_kafka.run(runner, given, **{'KafkaSink("orders"': 'KafkaSink("orders_of_rows"'})
