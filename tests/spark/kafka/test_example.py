"""The example pipeline on Kafka: only closed windows are in the table and in the files."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

from tests.examples.example import EXAMPLES, load, printed_on
from tests.spark.sql import query
from tests.spark.test_page_programs import timeless

from sluicegate.spark import Pipeline, SparkWriteReport

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres


@pytest.mark.long
def test_closed_windows_are_in_the_table_and_in_the_files(
    spark: Any,
    spark_reads_kafka: None,
    embedded_kafka: EmbeddedKafka,
    embedded_postgres: EmbeddedPostgres,
    tmp_path: Path,
) -> None:
    """P-T24, the pipeline as a file. It runs twice: the second run continues where the first ended.
    The first prints the output on the page.
    """
    query(embedded_postgres.dsn, "DROP TABLE IF EXISTS windows")
    query(
        embedded_postgres.dsn,
        "CREATE TABLE windows (shop text, starts timestamptz, orders bigint, amount bigint, "
        "PRIMARY KEY (shop, starts))",
    )
    topic = f"orders-{uuid4().hex}"
    embedded_kafka.create_topic(topic, partitions=2)
    pipeline = Pipeline.read(EXAMPLES / "pipelines" / "kafka_windows.toml")
    environment = {
        "KAFKA": embedded_kafka.bootstrap,
        "TOPIC": topic,
        "PG_DSN": embedded_postgres.dsn,
        "OUT": str(tmp_path),
    }

    expected: list[tuple[str, datetime, int, int]] = []
    program = load("pipelines/orders_of_shops")
    for minutes in (range(3), range(3, 5)):
        asyncio.run(program.main(embedded_kafka.bootstrap, topic, minutes[0], minutes[-1] + 1))
        reports: list[SparkWriteReport] = []
        report = pipeline.run(spark, environment=environment, on_report=reports.append)
        if 0 in minutes:
            writes = [
                f"write {place}: {each}" for place, each in enumerate(reports, 1) if each.rows
            ]
            said = "\n".join(["kafka windows: starting Spark", *writes, str(report)])
            assert timeless(said) == timeless(printed_on("how-to/run-a-pipeline.md")[2])
        new = [
            (shop, program.BEGIN + timedelta(minutes=minute), 60, 120)
            for minute in minutes
            for shop in program.SHOPS
        ]
        new += [("Dessau", program.BEGIN + timedelta(minutes=3), 1, 1)] if 3 in minutes else []
        assert report.rows == report.delivered == len(new)
        expected += new
    assert query(embedded_postgres.dsn, "SELECT * FROM windows ORDER BY 1, 2") == sorted(expected)
    lines = [
        json.loads(line)
        for file in tmp_path.glob("windows*.jsonl")
        for line in file.read_text().splitlines()
    ]
    written = sorted(
        (line["shop"], datetime.fromisoformat(line["starts"]), line["orders"], line["amount"])
        for line in lines
    )
    assert written == sorted(expected)
