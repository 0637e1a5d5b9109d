"""Messages appended to streams in PostgreSQL, in batches."""

from ..._core.public import publish
from .sink import PostgresStreamSink

__all__ = ["PostgresStreamSink"]

publish("penstock.sinks", PostgresStreamSink)
