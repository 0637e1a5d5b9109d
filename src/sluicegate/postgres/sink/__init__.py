"""Destinations in PostgreSQL: tables, and the effects of handlers."""

from ..._core.public import publish_all
from .effects import PostgresEffects
from .sink import PostgresSink

__all__ = [
    "PostgresEffects",
    "PostgresSink",
]

publish_all(__name__, "sluicegate.postgres")
