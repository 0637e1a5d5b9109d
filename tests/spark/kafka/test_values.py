"""Values of Kafka as rows: JSON, Avro and change events; what cannot be decoded is a dead row."""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")
from tests.examples.example import EXAMPLES
from tests.spark.kafka.kafka_help import produce, produce_by_key
from tests.spark.sql import query
from tests.spark.test_changes import event

from sluicegate.kafka import Avro, SchemaRegistry
from sluicegate.spark import Pipeline, PipelineError
from sluicegate.spark.pipeline import Destination, Source, Step, Write

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.spark import SparkWriteReport
    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres, EmbeddedRegistry

COLUMNS = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>"
GOOD: dict[str, Any] = {"id": 1, "at": "2026-01-02T03:04:05Z", "tags": ["a", "b"]}


def pipeline(
    kafka: EmbeddedKafka, topic: str, dsn: str, value: Literal["json", "avro"]
) -> Pipeline:
    """A pipeline from a topic into the table `decoded`."""
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    arguments = {"dsn": dsn, "table": "decoded", "on_new_column": "fail"}
    return Pipeline(
        name="decoded",
        sources={"records": Source(format="kafka", options=options, schema=COLUMNS, value=value)},
        steps={"rows": Step(sql="SELECT value.*, offset FROM records")},
        sinks={"table": Destination(kind="postgres", arguments=arguments)},
        write=Write(view="rows", sink="table", dead_letters="return"),
    )


@pytest.fixture
def dsn(embedded_postgres: EmbeddedPostgres) -> str:
    query(
        embedded_postgres.dsn,
        "DROP TABLE IF EXISTS decoded; "
        'CREATE TABLE decoded (id bigint, at timestamptz, tags text[], "offset" bigint)',
    )
    return embedded_postgres.dsn


def filled(kafka: EmbeddedKafka, values: list[Any]) -> str:
    topic = f"values-{uuid4().hex}"
    kafka.create_topic(topic)
    produce(kafka.bootstrap, topic, values, partitions=1)
    return topic


@pytest.mark.long
def test_json_that_is_none_is_a_dead_row_with_its_reason(
    spark: Any, spark_reads_kafka: None, embedded_kafka: EmbeddedKafka, dsn: str
) -> None:
    """Its neighbours are delivered, with exactly their columns."""
    bad = [b"nonsense", b'{"id": "x"}', b"", b"\xff\xfe", b"[1]"]
    good = json.dumps(GOOD).encode()
    topic = filled(embedded_kafka, [good, *bad, good])
    made = pipeline(embedded_kafka, topic, dsn, "json")
    reports: list[SparkWriteReport] = []
    made.run(spark, on_report=reports.append)
    (report,) = reports
    assert (report.delivered, report.failed) == (2, len(bad))
    found = query(dsn, 'SELECT id, tags, "offset" FROM decoded ORDER BY 3')
    assert found == [(1, ["a", "b"], 0), (1, ["a", "b"], len(bad) + 1)]
    dead = sorted(report.dead_rows, key=lambda each: each.row["offset"])
    assert [each.row["id"] for each in dead] == [None] * len(bad)
    told = json.loads(dead[0].row["undecodable"])
    assert told["value"] == "bm9uc2Vuc2U="
    assert dead[0].message == f"the value of {topic}/0@1 cannot be decoded: it is no JSON"
    assert (
        dead[1].message == f"the value of {topic}/0@2 cannot be decoded: it does not fit the schema"
    )


@pytest.mark.long
def test_avro_is_decoded_by_the_registry(
    spark: Any,
    spark_reads_kafka: None,
    embedded_kafka: EmbeddedKafka,
    embedded_registry: EmbeddedRegistry,
    dsn: str,
) -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ]
    schema = {"type": "record", "name": "Decoded", "fields": fields}
    registry = SchemaRegistry(embedded_registry.url)
    good = Avro(registry, schema, auto_register=True).encoder("decoded")(GOOD)
    topic = filled(embedded_kafka, [good, b"\0\0\0\0\1", b"{}", good])
    made = pipeline(embedded_kafka, topic, dsn, "avro")
    reports: list[SparkWriteReport] = []
    replace(made, registry=embedded_registry.url).run(spark, on_report=reports.append)
    (report,) = reports
    assert (report.delivered, report.failed) == (2, 2)
    assert query(dsn, 'SELECT id, tags, "offset" FROM decoded ORDER BY 3') == [
        (1, ["a", "b"], 0),
        (1, ["a", "b"], 3),
    ]
    assert all("cannot be decoded: " in each.message for each in report.dead_rows)


@pytest.mark.long
def test_a_step_that_forgets_what_cannot_be_decoded_is_refused(
    spark: Any, spark_reads_kafka: None, embedded_kafka: EmbeddedKafka, dsn: str
) -> None:
    topic = filled(embedded_kafka, [b"nonsense", json.dumps(GOOD).encode()])
    made = pipeline(embedded_kafka, topic, dsn, "json")
    forgets = replace(made, steps={"rows": Step(sql="SELECT value.id FROM records")})
    with pytest.raises(PipelineError, match=r"sources.records.value: .*written as NULL"):
        forgets.run(spark)
    sql = "SELECT value.id FROM records WHERE value.undecodable IS NULL"
    report = replace(made, steps={"rows": Step(sql=sql)}).run(spark)
    assert (report.rows, report.delivered) == (1, 1)


@pytest.mark.long
def test_the_example_follows_a_change_topic_and_is_restarted_midway(
    spark: Any,
    spark_reads_kafka: None,
    embedded_kafka: EmbeddedKafka,
    embedded_postgres: EmbeddedPostgres,
    tmp_path: Path,
) -> None:
    """Inserts, updates, deletions and tombstones; what is no event is a dead letter."""
    dsn, topic = embedded_postgres.dsn, f"customers-{uuid4().hex}"
    query(dsn, "DROP TABLE IF EXISTS customers, sluicegate_ledger")
    embedded_kafka.create_topic(topic, partitions=2)
    chance, there = random.Random(3), dict[int, dict[str, Any]]()
    events: list[tuple[int, str | None]] = [
        (0, "no event"),
        (1, '{"op": "c", "after": {"id": "x"}}'),
    ]
    for number in range(600):
        key = chance.randrange(30)
        before = there.pop(key, None)
        if before is not None and chance.random() < 0.3:
            events += [(key, event("d", {"id": key}, None)), (key, None)]
            continue
        city = chance.choice([None, {"city": f"C{number}"}])
        there[key] = {"id": key, "name": f"n{number}", "address": city, "tags": [None, "t"]}
        events.append((key, event("u" if before else "c", before, there[key], enveloped=True)))
    produce_by_key(embedded_kafka.bootstrap, topic, events)
    declared = Pipeline.read(EXAMPLES / "pipelines" / "changes.toml")
    options = {**declared.sources["changes"].options, "maxOffsetsPerTrigger": 200}
    declared = replace(
        declared, sources={"changes": replace(declared.sources["changes"], options=options)}
    )
    environment = {
        "KAFKA": embedded_kafka.bootstrap,
        "TOPIC": topic,
        "PG_DSN": dsn,
        "OUT": str(tmp_path),
    }
    stop = threading.Event()
    first = declared.run(spark, environment=environment, stop=stop, on_report=lambda _: stop.set())
    assert first.writes == 1
    second = declared.run(spark, environment=environment)
    assert second.writes >= 2
    assert first.dead_letters + second.dead_letters == 2
    found = query(dsn, "SELECT id, name, address, tags FROM customers ORDER BY id")
    read = [(*row[:2], None if row[2] is None else json.loads(row[2]), row[3]) for row in found]
    assert read == [tuple(row.values()) for _, row in sorted(there.items())]
    letters = [
        line for file in tmp_path.glob("refused-*.jsonl") for line in file.read_text().splitlines()
    ]
    assert len(letters) == 2
    assert sum("it is no JSON" in line for line in letters) == 1
