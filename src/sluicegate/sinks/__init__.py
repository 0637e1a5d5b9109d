"""Decorators and combinators, and every destination's sink, loaded on first use.

Decorators: `combine` merges the items of a key, `split` divides batches and isolates bad items,
`timeout` limits an attempt, `dead_letter` writes items that failed for good elsewhere, and
`rate_limit` delays writes with the token buckets of `meter`. Combinators: `fan_out` and `router`;
`concurrency` runs their writes. `memory` is a destination for tests. The sinks of a technology are
the same objects as in its own package.
"""

from typing import TYPE_CHECKING

from .._core.opening import Openable
from .._core.public import later, publish_all
from .._core.sink import Decorator
from .memory import MemorySink

if TYPE_CHECKING:
    from .._core.transaction import (
        Counts,
        Transaction,
        TransactionalSink,
        Unit,
        check_transactional,
    )
    from ..clickhouse import ClickHouseSink
    from ..files import FileSink
    from ..http import ElasticsearchSink, HttpSink
    from ..kafka import KafkaSink
    from ..letters.letter import DeadLetterRecord
    from ..nats import NatsSink
    from ..objects import ObjectSink, ParquetSink
    from ..postgres import PostgresQueueSink, PostgresSink, PostgresStreamSink
    from ..redis import RedisSink
    from ..sql import SqlSink
    from ..udp import UdpSink
    from .combine import Combine
    from .rate_limit import RateLimit
    from .router import Router
    from .split import Isolate, Split
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "._core.transaction": [
                "Counts",
                "Transaction",
                "TransactionalSink",
                "Unit",
                "check_transactional",
            ],
            ".clickhouse": ["ClickHouseSink"],
            ".files": ["FileSink"],
            ".http": ["ElasticsearchSink", "HttpSink"],
            ".kafka": ["KafkaSink"],
            ".letters.letter": ["DeadLetterRecord"],
            ".nats": ["NatsSink"],
            ".objects": ["ObjectSink", "ParquetSink"],
            ".postgres": ["PostgresQueueSink", "PostgresSink", "PostgresStreamSink"],
            ".redis": ["RedisSink"],
            ".sql": ["SqlSink"],
            ".udp": ["UdpSink"],
            "combine": ["Combine"],
            "rate_limit": ["RateLimit"],
            "router": ["Router"],
            "split": ["Isolate", "Split"],
        },
    )

__all__ = [
    "ClickHouseSink",
    "Combine",
    "Counts",
    "DeadLetterRecord",
    "Decorator",
    "ElasticsearchSink",
    "FileSink",
    "HttpSink",
    "Isolate",
    "KafkaSink",
    "MemorySink",
    "NatsSink",
    "ObjectSink",
    "Openable",
    "ParquetSink",
    "PostgresQueueSink",
    "PostgresSink",
    "PostgresStreamSink",
    "RateLimit",
    "RedisSink",
    "Router",
    "Split",
    "SqlSink",
    "Transaction",
    "TransactionalSink",
    "UdpSink",
    "Unit",
    "check_transactional",
]

publish_all(__name__)
