"""From Spark into Kafka and back: equal, in order per key, and counted by a separate consumer.

White box: sinks around a sink, on the base of the package's own.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions
from tests.spark.kafka.kafka_help import consume, produce

from sluicegate import (
    Batch,
    ConfigError,
    DeadLetter,
    RefusedError,
    Retry,
    Timeout,
    UnavailableError,
    WriteResult,
    send,
    stack,
)
from sluicegate._core.decorator import WrappingSink
from sluicegate.kafka import KafkaAccess, KafkaSink
from sluicegate.spark import Pipeline, foreach_batch, keyed, write_dataframe

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import EmbeddedKafka

EXAMPLE = Path(__file__).parents[3] / "examples" / "pipelines" / "into_kafka.toml"
ROWS = 4_000
KEYS = 37
PARTITIONS = 3
SCHEMA = (
    "id BIGINT, key STRING, amount DECIMAL(20, 4), at TIMESTAMP, day DATE, share DOUBLE, "
    "tags ARRAY<STRING>, place STRUCT<x: INT, y: STRING>"
)


@pytest.fixture
def topic(embedded_kafka: EmbeddedKafka) -> str:
    name = f"into-{uuid4().hex}"
    embedded_kafka.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture
def bootstrap(embedded_kafka: EmbeddedKafka) -> str:
    return embedded_kafka.bootstrap


def orders(spark: Any, count: int = ROWS) -> Any:
    """Rows of many types, some with NULL, in no order."""
    return spark.range(0, count, numPartitions=4).selectExpr(
        "id * 7919 % " + str(count) + " AS id",
        f"concat('clé ', id * 7919 % {count} % {KEYS}) AS key",
        "CAST(id / 7 AS DECIMAL(20, 4)) AS amount",
        "timestamp_micros(1700000000123456 + id * 1000001) AS at",
        "date_add(DATE'1999-12-31', CAST(id AS INT)) AS day",
        "IF(id % 5 = 0, NULL, id / 3) AS share",
        "array('a', CAST(id AS STRING)) AS tags",
        "named_struct('x', CAST(id AS INT), 'y', 'é\"\\n') AS place",
    )


def read(spark: Any, bootstrap: str, topic: str) -> Any:
    """The topic as read by Spark's own connector."""
    return (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("includeHeaders", True)
        .load()
    )


def is_equal(left: Any, right: Any) -> bool:
    """Whether both have the same rows with the same multiplicities."""
    return bool(left.exceptAll(right).isEmpty() and right.exceptAll(left).isEmpty())


def ids_by_key(bootstrap: str, topic: str) -> dict[str, list[int]]:
    """The ids of each key in partition order; each key is in one partition."""
    found: dict[str, list[int]] = {}
    places: dict[str, int] = {}
    for record in consume(bootstrap, topic):
        row = json.loads(record.value)
        assert record.key.decode() == row["key"]
        assert places.setdefault(row["key"], record.partition) == record.partition
        found.setdefault(row["key"], []).append(row["id"])
    return found


def in_order(count: int = ROWS) -> dict[str, list[int]]:
    return {f"clé {key}": [*range(key, count, KEYS)] for key in range(min(KEYS, count))}


@pytest.mark.long
def test_rows_come_back_equal_and_in_order_per_key(
    spark: Any, spark_reads_kafka: None, bootstrap: str, topic: str
) -> None:
    """P-T9, P-T12: chunks that cut through the keys, several at a time, compressed."""
    df = orders(spark)
    sink = KafkaSink(topic, bootstrap=bootstrap, key="key", compression="lz4")
    report = write_dataframe(
        df, stack(sink, Timeout(60.0), Retry()), key="key", order_by="id", chunk_rows=100
    )
    assert (report.rows, report.delivered, report.failed) == (ROWS, ROWS, 0)
    values = functions.from_json(functions.col("value").cast("string"), SCHEMA).alias("row")
    assert is_equal(read(spark, bootstrap, topic).select(values).select("row.*"), df)
    assert ids_by_key(bootstrap, topic) == in_order()


@pytest.mark.long
def test_rows_that_are_arranged_keep_their_order_by_options_alone(
    spark: Any, bootstrap: str, topic: str
) -> None:
    arranged = keyed(orders(spark).select("id", "key"), "key", order_by="id", buckets=3)
    arranged.write.format("sluicegate").mode("append").options(
        sink="kafka",
        url=bootstrap,
        topic=topic,
        key="key",
        compression="gzip",
        batchSize=100,
    ).save()
    assert ids_by_key(bootstrap, topic) == in_order()


RECORDS = (
    "encode(concat('k', id % 10), 'UTF-8') AS key",
    "IF(id % 50 = 0, NULL, unhex(lpad(hex(id), 8, '0'))) AS value",
    "IF(id % 3 = 0, NULL, array(named_struct('key', 'a', 'value', unhex('00FF')), "
    "named_struct('key', 'b', 'value', CAST(NULL AS BINARY)), "
    "named_struct('key', 'a', 'value', encode('twice', 'UTF-8')))) AS headers",
    "CAST(id % 3 AS INT) AS partition",
    "timestamp_millis(1700000000123 + id) AS timestamp",
)
"""The columns of Spark's own connector: non-text bytes, tombstones, repeated headers."""
PARTS = ("key", "value", "headers", "partition", "timestamp")


@pytest.mark.long
@pytest.mark.parametrize("way", ["sink", "options"])
def test_columns_of_sparks_connector_are_records(
    spark: Any, spark_reads_kafka: None, bootstrap: str, topic: str, way: str
) -> None:
    df = spark.range(0, 500, numPartitions=2).selectExpr(*RECORDS, f"'{topic}' AS topic")
    if way == "sink":
        parts: dict[str, Any] = {each: each for each in PARTS}
        sink = KafkaSink(bootstrap=bootstrap, topic_field="topic", **parts)
        assert write_dataframe(df, stack(sink, Retry())).delivered == 500
    else:
        columns = {**{each: each for each in PARTS}, "topicField": "topic"}
        given = {"sink": "kafka", "url": bootstrap, **columns}
        df.write.format("sluicegate").mode("append").options(**given).save()
    records = read(spark, bootstrap, topic)
    assert records.count() == 500
    assert is_equal(records.select(*PARTS, "topic"), df)


class _KilledOnce(WrappingSink[Any]):
    """Sends half of one chunk; then its worker process is killed."""

    def __init__(self, inner: Any, note: str) -> None:
        super().__init__(inner)
        self._note = Path(note)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        if any(row["id"] == ROWS // 2 for row in batch) and self._note.exists():
            await send(self.inner, batch.pick(range(len(batch) // 2)))
            self._note.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        errors = await send(self.inner, batch)
        return WriteResult.failed(batch, errors) if errors else None


@pytest.mark.long
def test_a_worker_killed_half_way_loses_nothing(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """P-T22 at least once: only records of the repeated task occur twice, and those of a key are
    repeated in order.
    """
    note = tmp_path / "note"
    note.touch()
    path = str(note)
    sink = stack(
        KafkaSink(topic, bootstrap=bootstrap, key="key"), lambda inner: _KilledOnce(inner, path)
    )
    report = write_dataframe(
        orders(spark), sink, key="key", order_by="id", buckets=4, chunk_rows=100
    )
    assert not note.exists(), "the worker was killed"
    assert (report.rows, report.delivered) == (ROWS, ROWS)
    found, expected = ids_by_key(bootstrap, topic), in_order()
    again: set[str] = set()
    for key, ids in found.items():
        first = [*dict.fromkeys(ids)]
        assert first == expected[key]
        repeated = [number for number, times in Counter(ids).items() if times > 1]
        assert ids == [*repeated, *expected[key]] if repeated else ids == first
        again |= {key} if repeated else set()
    arranged = keyed(orders(spark), "key", buckets=4)
    placed = arranged.select("key", functions.spark_partition_id().alias("task")).distinct()
    tasks = {row.key: row.task for row in placed.collect()}
    assert len({tasks[key] for key in again}) == 1


class _Noted(WrappingSink[Any]):
    """Records the tokens of each item; the first write fails together with its attempt."""

    def __init__(self, inner: Any, folder: str) -> None:
        super().__init__(inner)
        self._folder = Path(folder)

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        number = len([*self._folder.iterdir()])
        (self._folder / f"{number}-{batch.id}").write_text("\n".join(batch.item_keys()))
        if not number:
            raise RefusedError("the first attempt fails")
        errors = await send(self.inner, batch)
        return WriteResult.failed(batch, errors) if errors else None


@pytest.mark.long
def test_rows_of_another_attempt_are_never_taken_for_sent(
    spark: Any, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Spark may distribute the rows of a task differently. Sinks and destinations recognize items
    by tokens, which must differ then.
    """
    folder = str(tmp_path)
    sink = stack(KafkaSink(topic, bootstrap=bootstrap), lambda inner: _Noted(inner, folder))
    write_dataframe(spark.range(0, 100, numPartitions=1), sink)
    tokens = [token for file in tmp_path.iterdir() for token in file.read_text().splitlines()]
    assert len(tokens) == len({*tokens}) == 200
    assert Counter(
        json.loads(record.value)["id"] for record in consume(bootstrap, topic)
    ) == dict.fromkeys(range(100), 1)


@pytest.mark.long
def test_bad_rows_are_reported_or_kept_in_another_topic(
    spark: Any, embedded_kafka: EmbeddedKafka, bootstrap: str, topic: str
) -> None:
    """P-T12: without a JSON form, and too large for the broker; the others are stored."""
    letters = f"letters-{uuid4().hex}"
    embedded_kafka.create_topic(letters)
    df = spark.range(0, 100, numPartitions=2).selectExpr(
        "id",
        "IF(id = 7, double('NaN'), 0.5D) AS share",
        "repeat('x', IF(id = 70, 2000000, 10)) AS text",
    )
    sink = KafkaSink(topic, bootstrap=bootstrap, key="id")
    report = write_dataframe(df, sink, dead_letters="return")
    assert (report.delivered, report.failed) == (98, 2)
    assert [(row.row["id"], row.error_type) for row in report.dead_rows] == [
        (7, "PermanentError"),
        (70, "TooLargeError"),
    ]
    assert sorted(int(record.key) for record in consume(bootstrap, topic)) == [
        number for number in range(100) if number not in {7, 70}
    ]
    small = df.withColumn("text", functions.lit("x"))
    kept = stack(sink, DeadLetter(KafkaSink(letters, bootstrap=bootstrap)))
    report = write_dataframe(small, kept)
    assert (report.delivered, report.dead_letters, report.failed) == (99, 1, 0)
    (letter,) = (json.loads(record.value) for record in consume(bootstrap, letters))
    assert (letter["item"]["id"], letter["error_type"]) == (7, "PermanentError")


def refusals() -> dict[str, tuple[Callable[[], Any], dict[str, Any], str]]:
    def sink(**given: Any) -> Callable[[], Any]:
        arguments: dict[str, Any] = {"topic": "orders", "bootstrap": "127.0.0.1:9", **given}
        return lambda: KafkaSink(**arguments)

    named = {"app_id": "a", "version": 1}
    return {
        "wrong port": (sink(value="key"), {}, "127.0.0.1:9"),
        "no such column": (sink(value="valeu"), {}, "column 'valeu' is named by value="),
        "no text": (sink(value="id"), {}, r"column 'id' \(bigint\) cannot be value=: it is int64"),
        "no JSON": (sink(), {}, r"column 'key' \(binary\) has bytes, which JSON cannot represent"),
        "order lost": (sink(value="key"), {"key": "id"}, "pass the key's field"),
        "bucket": (
            sink(key="key", value="key"),
            {"key": "id", "delivery": "bucket", **named},
            "cannot write in a transaction: .*[Ww]rite at least once",
        ),
        "atomic": (
            sink(key="key", value="key"),
            {"delivery": "atomic", **named},
            "cannot write into a stage: .*[Ww]rite at least once",
        ),
        "no such option": (
            sink(bootstrap=KafkaAccess("127.0.0.1:9", client={"linger_ms": 5})),
            {},
            "linger_ms.*set by Sluicegate",
        ),
        "size": (sink(max_batch_bytes="1"), {}, "max_batch_bytes='1': must be a whole number"),
    }


def test_refusals_come_before_a_row_is_read(spark: Any) -> None:
    """Those of the arguments and columns come without a broker."""
    df = spark.range(1).selectExpr("raise_error('read') AS id", "unhex('00') AS key")
    df = df.selectExpr("CAST(id AS BIGINT) AS id", "key")
    for make, options, told in refusals().values():
        with pytest.raises((ConfigError, UnavailableError), match=f"(?s){told}"):
            write_dataframe(df, make(), **options)
        if options.get("delivery"):
            with pytest.raises(ConfigError, match=f"(?s){told}"):
                foreach_batch(make(), **{k: v for k, v in options.items() if k != "version"})(df, 1)


@pytest.mark.long
def test_a_pipeline_from_a_topic_into_a_topic(
    spark: Any,
    spark_reads_kafka: None,
    embedded_kafka: EmbeddedKafka,
    bootstrap: str,
    topic: str,
    tmp_path: Path,
) -> None:
    """P-T24, the example: run twice, the second run continues where the first ended."""
    source = f"from-{uuid4().hex}"
    embedded_kafka.create_topic(source, partitions=2)
    environment = {
        "KAFKA": bootstrap,
        "FROM": source,
        "TOPIC": topic,
        "OUT": str(tmp_path),
    }
    sent: list[dict[str, Any]] = []
    for numbers in (range(300), range(300, 500)):
        new = [
            {
                "id": number,
                "shop": f"shop {number % 7}",
                "at": f"2026-01-01T00:{number // 60 % 60:02d}:{number % 60:02d}.25+00:00",
                "amount": f"{number}.50",
            }
            for number in numbers
        ]
        values = [json.dumps(order).encode() for order in new]
        produce(bootstrap, source, [*values, b"no order"], partitions=2)
        report = Pipeline.read(EXAMPLE).run(spark, environment=environment)
        assert (report.delivered, report.dead_letters) == (len(new), 1)
        sent += new
    records = consume(bootstrap, topic)
    found = [json.loads(record.value) for record in records]
    assert sorted(found, key=lambda order: order["id"]) == [
        {**order, "at": order["at"].replace(".25", ".250000")} for order in sent
    ]
    assert all(
        record.key.decode() == row["shop"] for record, row in zip(records, found, strict=True)
    )
    assert {record.timestamp % 1000 for record in records} == {250}
    by_shop = sorted(found, key=lambda order: order["shop"])  # stable: in topic order
    for _, orders_of_it in groupby(by_shop, key=lambda order: order["shop"]):
        ids = [order["id"] for order in orders_of_it]
        assert ids == sorted(ids)
