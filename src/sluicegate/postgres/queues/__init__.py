"""Queues in PostgreSQL: creation, operation of keys, jobs and routing, and monitoring."""

from ..._core.public import publish_all
from ..records.monitor import QueueObserver
from .admin import QueueAdmin
from .monitor import QueueMonitor
from .sink import PostgresQueueSink
from .source import PostgresQueueSource

__all__ = [
    "PostgresQueueSink",
    "PostgresQueueSource",
    "QueueAdmin",
    "QueueMonitor",
    "QueueObserver",
]

publish_all(__name__, "sluicegate.postgres")
