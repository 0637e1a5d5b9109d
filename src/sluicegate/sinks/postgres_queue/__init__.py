"""Jobs enqueued in PostgreSQL, in batches."""

from ..._clients.postgres.queues.job import Enqueued
from ..._core.public import publish_all
from .sink import PostgresQueueSink

__all__ = ["Enqueued", "PostgresQueueSink"]

publish_all(__name__, "sluicegate.sinks")
