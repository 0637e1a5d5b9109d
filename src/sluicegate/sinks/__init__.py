"""Destinations, decorators and combinators."""

from typing import TYPE_CHECKING

from .._clients.kafka_errors import classify_kafka
from .._core.function_sink import FunctionSink
from .._core.public import later, publish_all
from .memory import MemorySink

if TYPE_CHECKING:
    from .clickhouse import ClickHouseError, ClickHouseSink
    from .combinators import FanOut, Router
    from .decorators import (
        Combine,
        DeadLetter,
        DeadLetterRecord,
        Isolate,
        Rate,
        RateLimit,
        Split,
        Timeout,
    )
    from .elasticsearch import ElasticsearchSink
    from .file import FileSink, classify_file
    from .http import (
        Authorization,
        ClientFactory,
        Encode,
        HttpOptions,
        HttpResponse,
        HttpSink,
        HttpStatusError,
        JoinBodies,
        ParseResponse,
        classify_http,
    )
    from .kafka import KafkaSink, RecordMetadata
    from .nats import NatsSink, PublishAck, classify_nats
    from .objects import (
        ObjectOptions,
        ObjectSink,
        ParquetSink,
        StoredObject,
    )
    from .postgres import (
        PoolFactory,
        PostgresEffects,
        PostgresSink,
        RowFunction,
        classify_postgres,
    )
    from .postgres_queue import Enqueued, PostgresQueueSink
    from .postgres_stream import PostgresStreamSink
    from .redis import RedisSink, classify_redis
    from .sql import SqlSink, classify_sql
    from .sqlite import SQLiteEffects
    from .udp import UdpSink
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "clickhouse": ["ClickHouseError", "ClickHouseSink"],
            "combinators": ["FanOut", "Router"],
            "decorators": [
                "Combine",
                "DeadLetter",
                "DeadLetterRecord",
                "Isolate",
                "Rate",
                "RateLimit",
                "Split",
                "Timeout",
            ],
            "elasticsearch": ["ElasticsearchSink"],
            "file": ["FileSink", "classify_file"],
            "http": [
                "Authorization",
                "ClientFactory",
                "Encode",
                "HttpOptions",
                "HttpResponse",
                "HttpSink",
                "HttpStatusError",
                "JoinBodies",
                "ParseResponse",
                "classify_http",
            ],
            "kafka": ["KafkaSink", "RecordMetadata"],
            "nats": ["NatsSink", "PublishAck", "classify_nats"],
            "objects": ["ObjectOptions", "ObjectSink", "ParquetSink", "StoredObject"],
            "postgres": [
                "PoolFactory",
                "PostgresEffects",
                "PostgresSink",
                "RowFunction",
                "classify_postgres",
            ],
            "postgres_queue": ["Enqueued", "PostgresQueueSink"],
            "postgres_stream": ["PostgresStreamSink"],
            "redis": ["RedisSink", "classify_redis"],
            "sql": ["SqlSink", "classify_sql"],
            "sqlite": ["SQLiteEffects"],
            "udp": ["UdpSink"],
        },
    )

__all__ = [
    "Authorization",
    "ClickHouseError",
    "ClickHouseSink",
    "ClientFactory",
    "Combine",
    "DeadLetter",
    "DeadLetterRecord",
    "ElasticsearchSink",
    "Encode",
    "Enqueued",
    "FanOut",
    "FileSink",
    "FunctionSink",
    "HttpOptions",
    "HttpResponse",
    "HttpSink",
    "HttpStatusError",
    "Isolate",
    "JoinBodies",
    "KafkaSink",
    "MemorySink",
    "NatsSink",
    "ObjectOptions",
    "ObjectSink",
    "ParquetSink",
    "ParseResponse",
    "PoolFactory",
    "PostgresEffects",
    "PostgresQueueSink",
    "PostgresSink",
    "PostgresStreamSink",
    "PublishAck",
    "Rate",
    "RateLimit",
    "RecordMetadata",
    "RedisSink",
    "Router",
    "RowFunction",
    "SQLiteEffects",
    "Split",
    "SqlSink",
    "StoredObject",
    "Timeout",
    "UdpSink",
    "classify_file",
    "classify_http",
    "classify_kafka",
    "classify_nats",
    "classify_postgres",
    "classify_redis",
    "classify_sql",
]

publish_all(__name__)
