"""The example pipeline over Kafka: closed windows in the table and in the files, nothing else."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

from tests.spark.kafka.kafka_help import produce
from tests.spark.sql import query

from penstock.spark import Pipeline

if TYPE_CHECKING:
    from penstock.testing import EmbeddedKafka, EmbeddedPostgres

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipelines" / "kafka_windows.toml"
BEGIN = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
SHOPS = ("Aachen", "Bonn", "Celle")


def order(shop: str, second: int, amount: int) -> bytes:
    return json.dumps(
        {"shop": shop, "at": (BEGIN + timedelta(seconds=second)).isoformat(), "amount": amount}
    ).encode()


@pytest.mark.long
def test_closed_windows_are_in_the_table_and_in_the_files(
    spark: Any,
    spark_reads_kafka: None,
    embedded_kafka: EmbeddedKafka,
    embedded_postgres: EmbeddedPostgres,
    tmp_path: Path,
) -> None:
    """P-T24, the pipeline as a file. Run twice: the second goes on where the first ended."""
    query(embedded_postgres.dsn, "DROP TABLE IF EXISTS windows")
    query(
        embedded_postgres.dsn,
        "CREATE TABLE windows (shop text, starts timestamptz, orders bigint, amount bigint, "
        "PRIMARY KEY (shop, starts))",
    )
    topic = f"orders-{uuid4().hex}"
    embedded_kafka.create_topic(topic, partitions=2)
    pipeline = Pipeline.read(EXAMPLE)
    environment = {
        "KAFKA": embedded_kafka.bootstrap,
        "TOPIC": topic,
        "PG_DSN": embedded_postgres.dsn,
        "OUT": str(tmp_path),
    }

    expected: list[tuple[str, datetime, int, int]] = []
    for minutes in (range(3), range(3, 5)):
        seconds = range(minutes[0] * 60, minutes[-1] * 60 + 60)
        sent = [order(shop, second, 2) for second in seconds for shop in SHOPS]
        closes = order(
            "Dessau", seconds[-1] + 31, 1
        )  # a minute and 30 seconds after the last window's beginning
        produce(embedded_kafka.bootstrap, topic, [*sent, closes], partitions=2)
        report = pipeline.run(spark, environment=environment)
        new = [
            (shop, BEGIN + timedelta(minutes=minute), 60, 120)
            for minute in minutes
            for shop in SHOPS
        ]
        new += [("Dessau", BEGIN + timedelta(minutes=3), 1, 1)] if 3 in minutes else []
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
