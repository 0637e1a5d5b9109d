"""Queues in PostgreSQL: creation, operation of keys, jobs and routing, and monitoring."""

from ...._core.public import publish_all
from ...monitoring.queue_observer import QueueObserver
from ..jobs.job import Enqueued
from ..sink.sink import PostgresQueueSink
from ..source.source import PostgresQueueSource
from .admin import QueueAdmin
from .job_admin import JobAdmin, OnBatch, Retained, StoppedJob
from .lane_admin import LaneAdmin
from .monitor import QueueMonitor
from .monitor_stats import QueueFigures, QueueMonitorStats
from .queue_report import QueueReport
from .queue_stats import (
    LaneStats,
    MemberStats,
    OpenTransaction,
    QueueStats,
    RangeStats,
    StoredQueue,
)
from .range_admin import RangeAdmin
from .ring import SlotRange
from .settings import QueueChanges, QueueSettings

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
