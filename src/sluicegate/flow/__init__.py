"""Flows from a source to a sink."""

from .._core.public import publish_all
from .pipe import Pipe, PipeOptions, PipeReport, PipeStats, pipe
from .state.store import JsonState, StateCodec
from .transaction import TransactionalPipe, TransactionOptions, transaction
from .transform import Transform

__all__ = [
    "JsonState",
    "Pipe",
    "PipeOptions",
    "PipeReport",
    "PipeStats",
    "StateCodec",
    "TransactionOptions",
    "TransactionalPipe",
    "Transform",
    "pipe",
    "transaction",
]

publish_all(__name__)
