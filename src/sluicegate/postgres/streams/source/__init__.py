"""The log of streams in PostgreSQL as a source of consumers."""

from ...._core.public import publish_all
from .source import PostgresStreamSource

__all__ = ["PostgresStreamSource"]

publish_all(__name__, "sluicegate.postgres")
