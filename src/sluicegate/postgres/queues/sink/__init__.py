"""Jobs enqueued in PostgreSQL, in batches."""

from ...._core.public import publish_all
from ..jobs.job import Enqueued
from .sink import PostgresQueueSink

__all__ = ["Enqueued", "PostgresQueueSink"]

publish_all(__name__, "sluicegate.postgres")
