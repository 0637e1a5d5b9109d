"""Jobs enqueued in PostgreSQL, in batches."""

from ..._clients.postgres.queues.job import Enqueued
from ..._core.public import publish
from .sink import PostgresQueueSink

__all__ = ["Enqueued", "PostgresQueueSink"]

publish("penstock.sinks", Enqueued, PostgresQueueSink)
