"""The page of time limits says what the code does, and each of its clients has a test. White box:
the limits' constants in their modules.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from sluicegate import sinks
from sluicegate.http import HttpAccess
from sluicegate.http.config import TIMEOUT
from sluicegate.kafka import ConfluentKafkaSource, KafkaAccess, KafkaSource, KafkaState
from sluicegate.kafka.state.topic import PATIENCE
from sluicegate.nats import JetStreamSource
from sluicegate.nats.connection import CLOSE_SECONDS
from sluicegate.nats.jetstream.channel import REQUEST_WITHIN
from sluicegate.nats.options import PING_INTERVAL, PINGS
from sluicegate.postgres import (
    PostgresAccess,
    PostgresAdvisoryLocks,
    PostgresEffects,
    PostgresParkStore,
    PostgresQueueSource,
    PostgresState,
    PostgresStreamSource,
    PostgresSubscriptions,
    QueueAdmin,
    QueueMonitor,
    StreamMonitor,
    SubscriptionAdmin,
)
from sluicegate.sql.sink import ANSWER_WITHIN

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/time-limits.md"
SINKS = "tests/sinks/test_silent_connections.py"
READERS = "tests/kafka/source/test_silent_connection.py"
CLIENTS = "tests/postgres/streams/test_silent_clients.py"
CONNECTIONS = "tests/postgres/streams/test_silent_connections.py"
ROW = re.compile(
    r"^\| (?P<clients>`[^|]+) \| (?P<wait>[^|]+) \|(?: `(?P<limit>[^`]+)`(?P<times>[^|]*))? \|"
    r" (?P<default>[\d.]+) \|$",
    re.MULTILINE,
)
ACCESSES = (HttpAccess, KafkaAccess, PostgresAccess)
OTHERS = (
    ConfluentKafkaSource,
    JetStreamSource,
    KafkaSource,
    KafkaState,
    PostgresAccess,
    PostgresAdvisoryLocks,
    PostgresEffects,
    PostgresParkStore,
    PostgresQueueSource,
    PostgresState,
    PostgresStreamSource,
    PostgresSubscriptions,
    QueueAdmin,
    QueueMonitor,
    StreamMonitor,
    SubscriptionAdmin,
)
KINDS: dict[str, Any] = {each.__name__: each for each in OTHERS}
TESTED = {
    "RedisSink": (SINKS, "redis_stream"),
    "HttpSink": (SINKS, "http"),
    "ElasticsearchSink": (SINKS, "elasticsearch"),
    "ClickHouseSink": (SINKS, "clickhouse"),
    "ObjectSink": (SINKS, "objects"),
    "NatsSink": (SINKS, "nats"),
    "KafkaSink": (SINKS, "kafka"),
    "SqlSink": (SINKS, "sql_pymysql"),
    "JetStreamSource": ("tests/nats/jetstream/test_silent_connection.py", "JetStreamSource"),
    "KafkaSource": (READERS, "aiokafka"),
    "ConfluentKafkaSource": (READERS, "librdkafka"),
    "KafkaState": ("tests/kafka/state/test_state.py", "test_silent_connections"),
    "PostgresAccess": (CLIENTS, "PostgresAccess"),
    "PostgresAdvisoryLocks": (CLIENTS, "PostgresAdvisoryLocks"),
    "PostgresEffects": (CLIENTS, "PostgresEffects"),
    "PostgresParkStore": (CLIENTS, "PostgresParkStore"),
    "PostgresQueueSink": (CLIENTS, "PostgresQueueSink"),
    "PostgresQueueSource": (CONNECTIONS, "PostgresQueueSource"),
    "PostgresSink": (CLIENTS, "PostgresSink"),
    "PostgresState": (CONNECTIONS, "PostgresState"),
    "PostgresStreamSink": (CLIENTS, "PostgresStreamSink"),
    "PostgresStreamSource": (CONNECTIONS, "PostgresStreamSource"),
    "PostgresSubscriptions": (CLIENTS, "PostgresSubscriptions"),
    "QueueAdmin": (CLIENTS, "QueueAdmin"),
    "QueueMonitor": (CLIENTS, "QueueMonitor"),
    "StreamMonitor": (CLIENTS, "StreamMonitor"),
    "SubscriptionAdmin": (CLIENTS, "SubscriptionAdmin"),
}
"""The file of the test of each client with silent connections, and the test or its case."""
FIXED = {
    "NatsSink: closing": CLOSE_SECONDS,
    "SqlSink: opening": ANSWER_WITHIN,
    "JetStreamSource: a request": REQUEST_WITHIN,
}
TIMES = {"": 1, ", three times": PATIENCE}


def _parameters(made: Any) -> dict[str, inspect.Parameter]:
    """The arguments of a class, and those of the access that it takes."""
    own = inspect.signature(made).parameters
    taken = [each for each in ACCESSES if f"| {each.__name__}" in str(own.values())]
    return {
        **{k: v for each in taken for k, v in inspect.signature(each).parameters.items()},
        **own,
    }


def _default(client: str, limit: str) -> float:
    """The default of an argument, or of an option of a client."""
    if limit == "ping_interval":
        assert PINGS + 1 == PATIENCE
        return PING_INTERVAL
    made = KINDS.get(client) or getattr(sinks, client)
    default = _parameters(made)[limit].default
    return TIMEOUT if default is None else float(default)


def test_every_row_of_the_page_is_true_and_tested() -> None:
    text = PAGE.read_text()
    rows = [each.groupdict() for each in ROW.finditer(text)]
    assert len(rows) == sum(line.startswith("| `") for line in text.splitlines())
    listed: set[str] = set()
    for row in rows:
        limit, clients = row["limit"], re.findall(r"`([^`]+)`", row["clients"])
        listed |= {*clients}
        for client in clients:
            if limit is None:
                found = FIXED.pop(f"{client}: {row['wait']}")
            else:
                found = _default(client, limit) * TIMES[row["times"]]
            assert round(found, 6) == float(row["default"]), row
    assert listed == {*TESTED}
    assert FIXED == {}
    for file, case in TESTED.values():
        assert re.search(rf"\b{case}\b", (ROOT / file).read_text()), (file, case)


def test_everything_with_a_limit_is_on_the_page() -> None:
    """ParquetSink is an ObjectSink here, and UdpSink waits for no answer."""
    shelf = {
        name: getattr(sinks, name)
        for name in sinks.__all__
        if name.endswith("Sink") and name not in {"ParquetSink", "UdpSink"}
    }
    limited = {
        name
        for name, made in (shelf | KINDS).items()
        if any(each == "timeout" or each.endswith("_timeout") for each in _parameters(made))
    }
    assert limited == {*TESTED}
