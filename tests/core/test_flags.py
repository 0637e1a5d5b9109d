"""A switch accepts only `True` and `False`: the string "false" is truthy and would turn it on.

White box: the switches of administrators without a server.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from tests.surface import PUBLIC, signature

from sluicegate import Backoff, ConfigError, Retry
from sluicegate.clickhouse import ClickHouseSink
from sluicegate.console import Console
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.consumer.jobs import ItemBatcher, JobScheduler, MemoryState
from sluicegate.files import FileSink
from sluicegate.http import HttpSink
from sluicegate.kafka import Avro, Json, Protobuf, SchemaRegistry
from sluicegate.nats import JetStreamSource
from sluicegate.postgres import (
    PostgresQueueSource,
    PostgresStreamSource,
    QueueAdmin,
    StreamLog,
    StreamRetention,
    SubscriptionAdmin,
    install_streams,
    upgrade_streams,
)
from sluicegate.postgres.queues.contents import LaneAdmin
from sluicegate.postgres.queues.routing import RangeAdmin
from sluicegate.postgres.queues.settings import QueueSettings
from sluicegate.postgres.queues.stats import StoredQueue
from sluicegate.redis import RedisSink
from sluicegate.telemetry import (
    ConsumerTracing,
    Metrics,
    OpenTelemetryConsumerObserver,
    PrometheusConsumerObserver,
    PrometheusObserver,
    Tracing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DSN = "postgresql://h/d"
SCHEMA = '{"type": "record", "name": "r", "fields": []}'


async def write(batch: object) -> None: ...


async def process(key: object, value: object) -> None: ...


CONSTRUCTORS: dict[str, Callable[[Any], object]] = {
    "Avro.auto_register": lambda on: Avro(SchemaRegistry("http://h"), SCHEMA, auto_register=on),
    "ClickHouseSink.async_insert": lambda on: ClickHouseSink(
        "http://h", table="t", async_insert=on
    ),
    "ClickHouseSink.deduplicate": lambda on: ClickHouseSink("http://h", table="t", deduplicate=on),
    "Console.read_only": lambda on: Console(read_only=on),
    "ConsumerTracing.as_child": lambda on: ConsumerTracing(as_child=on),
    "FileSink.per_process": lambda on: FileSink("events.ndjson", per_process=on),
    "HttpSink.idempotent": lambda on: HttpSink("http://h", idempotent=on),
    "ItemBatcher.debug": lambda on: ItemBatcher(write, max_batch_size=5, debug=on),
    "JetStreamSource.create": lambda on: JetStreamSource("O", servers="n", durable="d", create=on),
    "JetStreamSource.double_ack": lambda on: JetStreamSource(
        "O", servers="n", durable="d", double_ack=on
    ),
    "Json.auto_register": lambda on: Json(SchemaRegistry("http://h"), {}, auto_register=on),
    "JobScheduler.debug": lambda on: JobScheduler(process, debug=on),
    "MemorySource.ends": lambda on: MemorySource(MemoryLog(), ends=on),
    "MemoryState.keep": lambda on: MemoryState(keep=on),
    "Metrics.exemplars": lambda on: Metrics("events", exemplars=on),
    "OpenTelemetryConsumerObserver.durations": lambda on: OpenTelemetryConsumerObserver(
        durations=on
    ),
    "PostgresQueueSource.ends": lambda on: PostgresQueueSource(DSN, queue="q", ends=on),
    "PostgresStreamSource.ends": lambda on: PostgresStreamSource(DSN, subscription="s", ends=on),
    "PrometheusConsumerObserver.durations": lambda on: PrometheusConsumerObserver(durations=on),
    "PrometheusConsumerObserver.exemplars": lambda on: PrometheusConsumerObserver(exemplars=on),
    "PrometheusObserver.exemplars": lambda on: PrometheusObserver(exemplars=on),
    "Protobuf.auto_register": lambda on: Protobuf(
        SchemaRegistry("http://h"), Timestamp, auto_register=on
    ),
    "RedisSink.approximate": lambda on: RedisSink("redis://h", stream="s", approximate=on),
    "RedisSink.create": lambda on: RedisSink("redis://h", stream="s", create=on),
    "Retry.resend_unknown": lambda on: Retry(resend_unknown=on),
    "StreamLog.propagate": lambda on: StreamLog(propagate=on),
    "Tracing.propagate": lambda on: Tracing(propagate=on),
    "Tracing.sampled_parent": lambda on: Tracing(sampled_parent=on),
}

QUEUE = StoredQueue("q", QueueSettings(sticky=True), is_paused=False, created_at=cast("Any", None))
UNUSED = cast("Any", None)
"""A connection: the argument is checked before it is used."""

METHODS: dict[str, Callable[[Any], Any]] = {
    "LaneAdmin.unblock skip": lambda on: LaneAdmin(UNUSED, QUEUE).unblock("ann", skip=on),
    "QueueAdmin.drop force": lambda on: QueueAdmin(DSN).drop("q", force=on),
    "RangeAdmin.assign complete": lambda on: RangeAdmin(UNUSED, QUEUE, "g").assign([], complete=on),
    "StreamRetention.delete force": lambda on: StreamRetention().delete(UNUSED, before=9, force=on),
    "StreamRetention.delete_stream force": lambda on: StreamRetention().delete_stream(
        UNUSED, "order-17", force=on
    ),
    "SubscriptionAdmin.delete force": lambda on: SubscriptionAdmin(DSN).delete("s", force=on),
    "SubscriptionAdmin.reset force": lambda on: SubscriptionAdmin(DSN).reset("s", 5, force=on),
    "install_streams dry_run": lambda on: install_streams(DSN, dry_run=on),
    "upgrade_streams dry_run": lambda on: upgrade_streams(DSN, dry_run=on),
}

MADE_BY_THE_LIBRARY = {
    *("EmbeddedNats.jetstream", "Fork.same_destination"),
    *("Probes.restart_when_stalled", "RefusedError.of_item", "UnavailableError.perhaps_of_item"),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in CONSTRUCTORS
        for value in ("false", 0, 1, None)
        if (name, value) != ("FileSource.ends", None)  # its default
    ],
)
def test_a_switch_is_true_or_false(name: str, value: object) -> None:
    argument = name.partition(".")[2]
    with pytest.raises(ConfigError, match=f"{argument}={value!r}: must be True or False"):
        CONSTRUCTORS[name](value)


@pytest.mark.parametrize("name", METHODS)
def test_a_switch_of_an_operator_is_true_or_false(name: str) -> None:
    argument = name.partition(" ")[2]
    with pytest.raises(ConfigError, match=f"{argument}='false': must be True or False"):
        asyncio.run(METHODS[name]("false"))


def switches() -> Iterator[str]:
    """The boolean arguments of public constructors, except those of plain records."""
    for path in PUBLIC:
        module = importlib.import_module(path)
        for name in getattr(module, "__all__", ()):
            kind = getattr(module, name)
            if not isinstance(kind, type) or is_dataclass(kind) or issubclass(kind, tuple):
                continue
            found = re.findall(r"(\w+): 'bool(?: \| None)?'", signature(kind))
            yield from (f"{name}.{argument}" for argument in found)


def test_every_switch_of_a_constructor_is_listed() -> None:
    found = {name for name in switches() if not name.endswith(".close_pool")}
    assert found - MADE_BY_THE_LIBRARY == {*CONSTRUCTORS}


def test_a_backoff_takes_a_source_of_randomness() -> None:
    with pytest.raises(ConfigError, match=r"rng=7: must be a random.Random"):
        Backoff(rng=cast("Any", 7))
