"""What joins a source and a sink."""

from .._core.public import publish
from .pipe import Pipe, pipe
from .report import PipeReport, PipeStats
from .state.codec import JsonState, StateCodec
from .state.postgres import PostgresState
from .transaction import TransactionalPipe, transaction

__all__ = [
    "JsonState",
    "Pipe",
    "PipeReport",
    "PipeStats",
    "PostgresState",
    "StateCodec",
    "TransactionalPipe",
    "pipe",
    "transaction",
]

publish(
    __name__,
    JsonState,
    Pipe,
    PipeReport,
    PipeStats,
    PostgresState,
    StateCodec,
    TransactionalPipe,
    pipe,
    transaction,
)
