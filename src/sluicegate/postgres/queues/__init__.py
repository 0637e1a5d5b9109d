"""Queues in PostgreSQL: creation, operation of keys, jobs and routing, and monitoring.

The SQL functions are in `schema/migrations/0002_queues.sql`: they lease, settle and end the lanes of
keys. `sink` and `enqueue` insert jobs; `source` fetches them: `leasing` and `leases` claim lanes,
`serving` is the open source, `routing` and `ring` give ranges of keys to processes. `admin`,
`contents`, `settings`, `queries`, `report`, `stats` and `monitor` are for operators.
"""

from ..._core.public import publish_all
from ..records.monitor import QueueObserver
from .admin import QueueAdmin
from .contents import JobAdmin, LaneAdmin, OnBatch, Retained, StoppedJob
from .enqueue import Enqueued
from .monitor import QueueMonitor
from .report import QueueReport
from .ring import SlotRange
from .routing import RangeAdmin
from .settings import QueueChanges, QueueSettings
from .sink import PostgresQueueSink
from .source import PostgresQueueSource
from .stats import (
    LaneStats,
    MemberStats,
    OpenTransaction,
    QueueFigures,
    QueueMonitorStats,
    QueueStats,
    RangeStats,
    StoredQueue,
)

__all__ = [
    "Enqueued",
    "JobAdmin",
    "LaneAdmin",
    "LaneStats",
    "MemberStats",
    "OnBatch",
    "OpenTransaction",
    "PostgresQueueSink",
    "PostgresQueueSource",
    "QueueAdmin",
    "QueueChanges",
    "QueueFigures",
    "QueueMonitor",
    "QueueMonitorStats",
    "QueueObserver",
    "QueueReport",
    "QueueSettings",
    "QueueStats",
    "RangeAdmin",
    "RangeStats",
    "Retained",
    "SlotRange",
    "StoppedJob",
    "StoredQueue",
]

publish_all(__name__, "sluicegate.postgres")
