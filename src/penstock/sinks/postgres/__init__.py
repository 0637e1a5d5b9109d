"""Destinations in PostgreSQL: tables, and the effects of handlers."""

from ..._clients.postgres.errors import classify_postgres
from ..._core.public import publish
from .effects import PostgresEffects
from .sink import PostgresSink

__all__ = ["PostgresEffects", "PostgresSink", "classify_postgres"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
