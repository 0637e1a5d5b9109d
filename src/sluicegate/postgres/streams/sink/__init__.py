"""Messages appended to streams in PostgreSQL, in batches."""

from ...._core.public import publish_all
from .sink import PostgresStreamSink

__all__ = ["PostgresStreamSink"]

publish_all(__name__, "sluicegate.postgres")
