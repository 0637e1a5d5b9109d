"""Jobs enqueued in PostgreSQL, in batches."""

from ..._core.public import publish
from .sink import PostgresQueueSink

__all__ = ["PostgresQueueSink"]

publish("penstock.sinks", PostgresQueueSink)
