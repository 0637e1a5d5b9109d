"""The log of streams in PostgreSQL as a source of consumers."""

from ..._core.public import publish
from .source import PostgresStreamSource

__all__ = ["PostgresStreamSource"]

publish(__name__, PostgresStreamSource)
