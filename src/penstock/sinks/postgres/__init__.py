"""The sink for PostgreSQL tables."""

from ..._clients.postgres.errors import classify_postgres
from ..._core.public import publish
from .sink import PostgresSink

__all__ = ["PostgresSink", "classify_postgres"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
