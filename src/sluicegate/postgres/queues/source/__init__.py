"""A queue in PostgreSQL as a source of consumers."""

from ...._core.public import publish_all
from .source import PostgresQueueSource

__all__ = ["PostgresQueueSource"]

publish_all(__name__, "sluicegate.postgres")
