"""Destinations, decorators and combinators."""

from typing import TYPE_CHECKING

from .._core.function_sink import FunctionSink
from .._core.public import later, publish
from .memory import MemorySink

if TYPE_CHECKING:
    from .clickhouse import ClickHouseError, ClickHouseSink
    from .combinators import FanOut, Router
    from .decorators import (
        Combine,
        DeadLetter,
        DeadLetterRecord,
        Isolate,
        RateLimit,
        Split,
        Timeout,
    )
    from .elasticsearch import ElasticsearchSink
    from .file import FileSink, classify_file
    from .http import HttpResponse, HttpSink, HttpStatusError, classify_http
    from .kafka import KafkaSink, RecordMetadata
    from .nats import NatsSink, PublishAck
    from .objects import ObjectSink, ParquetSink, StoredObject
    from .postgres import PostgresEffects, PostgresSink, classify_postgres
    from .postgres_queue import Enqueued, PostgresQueueSink
    from .postgres_stream import PostgresStreamSink
    from .redis import RedisSink
    from .sql import SqlSink, classify_sql
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
                "RateLimit",
                "Split",
                "Timeout",
            ],
            "elasticsearch": ["ElasticsearchSink"],
            "file": ["FileSink", "classify_file"],
            "http": ["HttpResponse", "HttpSink", "HttpStatusError", "classify_http"],
            "kafka": ["KafkaSink", "RecordMetadata"],
            "nats": ["NatsSink", "PublishAck"],
            "objects": ["ObjectSink", "ParquetSink", "StoredObject"],
            "postgres": ["PostgresEffects", "PostgresSink", "classify_postgres"],
            "postgres_queue": ["Enqueued", "PostgresQueueSink"],
            "postgres_stream": ["PostgresStreamSink"],
            "redis": ["RedisSink"],
            "sql": ["SqlSink", "classify_sql"],
            "udp": ["UdpSink"],
        },
    )

__all__ = [
    "ClickHouseError",
    "ClickHouseSink",
    "Combine",
    "DeadLetter",
    "DeadLetterRecord",
    "ElasticsearchSink",
    "Enqueued",
    "FanOut",
    "FileSink",
    "FunctionSink",
    "HttpResponse",
    "HttpSink",
    "HttpStatusError",
    "Isolate",
    "KafkaSink",
    "MemorySink",
    "NatsSink",
    "ObjectSink",
    "ParquetSink",
    "PostgresEffects",
    "PostgresQueueSink",
    "PostgresSink",
    "PostgresStreamSink",
    "PublishAck",
    "RateLimit",
    "RecordMetadata",
    "RedisSink",
    "Router",
    "Split",
    "SqlSink",
    "StoredObject",
    "Timeout",
    "UdpSink",
    "classify_file",
    "classify_http",
    "classify_postgres",
    "classify_sql",
]

publish(__name__, FunctionSink, MemorySink)
