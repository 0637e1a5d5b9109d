"""A queue in PostgreSQL as a source of consumers."""

from ..._core.public import publish
from .source import PostgresQueueSource

__all__ = ["PostgresQueueSource"]

publish(__name__, PostgresQueueSource)
