"""Destinations in PostgreSQL: tables, and the effects of handlers."""

from ..._clients.postgres.access import PoolFactory
from ..._clients.postgres.errors import classify_postgres
from ..._clients.row_maker import RowFunction
from ..._core.effects import Effect
from ..._core.public import publish
from ..._core.staging import Begun, Epoch, OpenStage, Stage
from .effects import PostgresEffects
from .sink import PostgresSink

__all__ = [
    "Begun",
    "Effect",
    "Epoch",
    "OpenStage",
    "PoolFactory",
    "PostgresEffects",
    "PostgresSink",
    "RowFunction",
    "Stage",
    "classify_postgres",
]

publish("penstock.sinks", *(globals()[name] for name in __all__))
