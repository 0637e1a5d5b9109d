"""Destinations in PostgreSQL: tables, and the effects of handlers."""

from ..._core.public import publish_all
from ..._core.values.rows import RowFunction
from ..client.access import PoolFactory
from ..client.errors import classify_postgres
from .effects import PostgresEffects
from .sink import PostgresSink

__all__ = [
    "PoolFactory",
    "PostgresEffects",
    "PostgresSink",
    "RowFunction",
    "classify_postgres",
]

publish_all(__name__, "sluicegate.postgres")
