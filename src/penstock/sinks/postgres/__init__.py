"""The sink for PostgreSQL tables."""

from ..._clients.postgres.errors import classify_postgres
from .sink import PostgresSink

__all__ = ["PostgresSink", "classify_postgres"]
