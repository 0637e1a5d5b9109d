"""Streaming queries of a real Spark as metrics, read over HTTP as Prometheus reads them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.spark.kafka.kafka_help import produce

from sluicegate.spark import Pipeline, PipelineError, PrometheusQueryListener
from sluicegate.spark.pipeline import Source, Stream, Write
from sluicegate.testing.servers.program import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluicegate.testing import EmbeddedKafka


def scraped(port: int, name: str) -> dict[tuple[str, ...], float]:
    """The values of a query by the names of their metrics and their further labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:  # ours
        text = answer.read().decode()
    return {
        (
            each.name,
            *(value for label, value in sorted(each.labels.items()) if label != "name"),
        ): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
        if each.labels.get("name") == name
    }


class Watched:
    """A session whose queries have metrics, and the server that Prometheus would scrape."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        registry = CollectorRegistry()
        self._server, self._thread = start_http_server(0, "127.0.0.1", registry)
        self._ended = _Ended()
        self._listeners = (PrometheusQueryListener(registry), self._ended)
        for listener in self._listeners:
            spark.streams.addListener(listener)

    def wait_ended(self) -> None:
        """Wait for the end of the query: Spark tells its listeners one after the other."""
        assert self._ended.seen.wait(150)
        self._ended.seen.clear()

    def scrape(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of a query by the names of their metrics and their further labels."""
        return scraped(self._server.server_port, name)

    def close(self) -> None:
        for listener in self._listeners:
            self._spark.streams.removeListener(listener)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Ended(StreamingQueryListener):
    def __init__(self) -> None:
        self.seen = threading.Event()

    def onQueryStarted(self, event: Any) -> None: ...
    def onQueryProgress(self, event: Any) -> None: ...
    def onQueryTerminated(self, event: Any) -> None:
        self.seen.set()


@pytest.fixture
def watched(spark: Any) -> Iterator[Watched]:
    made = Watched(spark)
    yield made
    made.close()


def test_a_query_shows_its_rows_and_its_end(spark: Any, watched: Watched, tmp_path: Path) -> None:
    """Counts go on when a query of the name is started again; late rows are counted."""
    at, old = "timestamp '2026-01-01 00:10:00'", "timestamp '2026-01-01 00:00:00'"
    rows = tmp_path / "rows"
    expected = 0
    for number, time in enumerate((at, old)):
        spark.range(20).selectExpr(f"{time} AS at", "id").coalesce(1).write.mode("append").parquet(
            str(rows)
        )
        stream = spark.readStream.schema("at TIMESTAMP, id BIGINT").parquet(str(rows))
        (
            stream.withWatermark("at", "1 second")
            .groupBy("at")
            .count()
            .writeStream.queryName("counted")
            .format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        watched.wait_ended()
        expected += 20
        found = watched.scrape("counted")
        assert found["spark_query_input_rows_total",] == expected
        assert found["spark_query_late_rows_total",] == number
        assert found["spark_query_failures_total",] == 0
        assert found["spark_query_batch_duration_seconds_count",] >= number + 1
        assert found["spark_query_state", "ended"] == 1
        assert found["spark_query_state", "active"] == 0
        assert found["spark_query_last_trigger_seconds",] > 1.7e9
        assert ("spark_query_state_bytes",) in found


MULTIPROCESS = """
from types import SimpleNamespace as Event
from prometheus_client import CollectorRegistry, multiprocess
from sluicegate.spark import PrometheusQueryListener

def states():
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    (family,) = [each for each in registry.collect() if each.name == "spark_query_state"]
    return {each.labels["state"]: each.value for each in family.samples}

listener = PrometheusQueryListener()
listener.onQueryStarted(Event(id=1, name="q"))
assert states()["active"] == 1
listener.forget()
assert set(states().values()) == {0}
"""


def test_queries_are_forgotten_without_a_loop_where_processes_share_metrics(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    command = [sys.executable, "-c", MULTIPROCESS]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_pipeline_serves_the_metrics_of_its_stream(spark: Any, tmp_path: Path) -> None:
    """While it runs, and no longer; an address that is in use is a mistake."""
    rows, port = str(tmp_path / "rows"), free_port()
    spark.range(20).write.parquet(rows)
    stream = Stream(
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="available_now",
        metrics=f"127.0.0.1:{port}",
    )
    made = Pipeline(
        name="served",
        sources={"rows": Source(format="parquet", path=rows, schema="id BIGINT")},
        sinks={"none": lambda _: None},
        write=Write(view="rows", sink="none"),
        stream=stream,
    )
    states: list[float] = []
    made.run(
        spark,
        on_report=lambda _: states.append(scraped(port, "served")["spark_query_state", "active"]),
    )
    assert states == [1.0]
    with pytest.raises(OSError, match="refused"):
        scraped(port, "served")
    spark.range(5).write.mode("append").parquet(rows)
    states.clear()
    made.run(
        spark,
        on_report=lambda _: states.extend(
            scraped(port, "served")["spark_query_state", state] for state in ("active", "ended")
        ),
    )
    assert states == [1.0, 0.0]
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PipelineError, match="in use"):
        made.run(spark)


@pytest.mark.long
def test_a_query_of_kafka_shows_its_lag_and_its_failure(
    spark: Any,
    spark_reads_kafka: None,
    watched: Watched,
    embedded_kafka: EmbeddedKafka,
    tmp_path: Path,
) -> None:
    topic = f"lagging-{uuid4().hex}"
    embedded_kafka.create_topic(topic, partitions=2)
    produce(embedded_kafka.bootstrap, topic, [b"x"] * 20, partitions=2)

    def fail_later(rows: Any, number: int) -> None:
        if number == 2:
            raise RuntimeError("the third micro-batch")
        rows.collect()

    options = {
        "kafka.bootstrap.servers": embedded_kafka.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 8,
    }
    (
        spark.readStream.format("kafka")
        .options(**options)
        .load()
        .writeStream.queryName("lagging")
        .foreachBatch(fail_later)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    watched.wait_ended()
    found = watched.scrape("lagging")
    assert found["spark_query_input_rows_total",] == 16
    assert [found["spark_query_lag", part, topic] for part in ("0", "1")] == [2, 2]
    assert found["spark_query_batch_duration_seconds_count",] == 2
    assert found["spark_query_processed_rows_per_second",] > 0
    assert found["spark_query_failures_total",] == 1
    assert found["spark_query_state", "failed"] == 1
