"""The page of time limits says what the code does, and each of its clients has a test."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from tests.flow.state import test_kafka_state
from tests.letters import test_objects
from tests.sinks import test_silent_connections as silent_sinks
from tests.sources.jetstream import test_silent_connection as silent_jetstream
from tests.sources.kafka import test_silent_connection as silent_kafka

from penstock import sinks
from penstock._clients.kafka.log_reader import PATIENCE
from penstock._clients.nats.connection import CLOSE_SECONDS
from penstock._clients.nats.options import PING_INTERVAL, PINGS
from penstock.flow import KafkaState
from penstock.letters import object_turn, objects
from penstock.sinks.http.config import TIMEOUT
from penstock.sinks.sql.sink import ANSWER_WITHIN
from penstock.sources.jetstream import JetStreamSource
from penstock.sources.jetstream.channel import REQUEST_WITHIN
from penstock.sources.kafka import KafkaSource
from penstock.sources.kafka_confluent import ConfluentKafkaSource

PAGE = Path(__file__).parents[2] / "docs/reference/time-limits.md"
ROW = re.compile(
    r"^\| `(?P<client>[^`]+)`[^|]* \| (?P<wait>[^|]+) \|(?: `(?P<limit>[^`]+)`(?P<times>[^|]*))? \|"
    r" (?P<default>[\d.]+) \|$",
    re.MULTILINE,
)
SOURCES: dict[str, Any] = {
    each.__name__: each for each in (JetStreamSource, KafkaSource, ConfluentKafkaSource, KafkaState)
}
TESTED: dict[str, Any] = {
    "RedisSink": silent_sinks.redis_stream,
    "HttpSink": silent_sinks.http,
    "ElasticsearchSink": silent_sinks.elasticsearch,
    "ClickHouseSink": silent_sinks.clickhouse,
    "ObjectSink": silent_sinks.objects,
    "NatsSink": silent_sinks.nats,
    "KafkaSink": silent_sinks.kafka,
    "SqlSink": silent_sinks.sql_psycopg_threads,
    "JetStreamSource": silent_jetstream.test_a_consumer_continues_on_a_new_connection,
    "KafkaSource": silent_kafka.aiokafka,
    "ConfluentKafkaSource": silent_kafka.librdkafka,
    "KafkaState": test_kafka_state.test_silent_connections,
    "penstock dlq": test_objects.test_an_unanswered_release_is_bounded,
}
"""The case, or the test, of each client with silent connections."""
FIXED = {
    "NatsSink: closing": CLOSE_SECONDS,
    "SqlSink: opening": ANSWER_WITHIN,
    "JetStreamSource: a request": REQUEST_WITHIN,
    "penstock dlq: a request": objects.TIMEOUT,
    "penstock dlq: a request about the lease; its release at the end": object_turn.ANSWER_WITHIN,
}
TIMES = {"": 1, " / 1000": 0.001, ", three times": PATIENCE}


def _default(client: str, limit: str) -> float:
    """The default of an argument, or of an option of a client."""
    if limit == "ping_interval":
        assert PINGS + 1 == PATIENCE
        return PING_INTERVAL
    made = SOURCES.get(client) or getattr(sinks, client)
    named = {"bootstrap": "localhost:9092", "group": "group"}
    if limit == "request_timeout_ms":
        return float(KafkaSource("t", **named)._options.arguments()[limit])
    if limit == "socket.timeout.ms":
        return float(ConfluentKafkaSource("t", **named)._options.of_reader()[limit])
    default = inspect.signature(made).parameters[limit].default
    return TIMEOUT if default is None else float(default)


def test_every_row_of_the_page_is_true_and_tested() -> None:
    text = PAGE.read_text()
    rows = [each.groupdict() for each in ROW.finditer(text)]
    assert len(rows) == sum(line.startswith("| `") for line in text.splitlines())
    for row in rows:
        client, limit = row["client"], row["limit"]
        if limit is None:
            found = FIXED.pop(f"{client}: {row['wait']}")
        else:
            found = _default(client, limit) * TIMES[row["times"]]
        assert round(found, 6) == float(row["default"]), row
    assert {row["client"] for row in rows} == {*TESTED}
    assert FIXED == {}


def test_every_sink_with_a_limit_is_on_the_page() -> None:
    """ParquetSink is an ObjectSink here, and UdpSink waits for no answer."""
    limited = {
        name
        for name in sinks.__all__
        if name.endswith("Sink") and not name.startswith("Postgres")
        for arguments in [inspect.signature(getattr(sinks, name)).parameters]
        if any(each.endswith("_timeout") for each in arguments)
    }
    assert limited - {"ParquetSink"} == {each for each in TESTED if each.endswith("Sink")}
    cases = {case for name, case in TESTED.items() if name.endswith("Sink")}
    assert cases <= {*silent_sinks.CASES}
