"""Destinations in PostgreSQL: tables, and the effects of handlers."""

from ..._clients.postgres.access import PoolFactory
from ..._clients.postgres.errors import classify_postgres
from ..._clients.row_maker import RowFunction
from ..._core.public import publish_all
from .effects import PostgresEffects
from .sink import PostgresSink

__all__ = [
    "PoolFactory",
    "PostgresEffects",
    "PostgresSink",
    "RowFunction",
    "classify_postgres",
]

publish_all(__name__, "sluicegate.sinks")
