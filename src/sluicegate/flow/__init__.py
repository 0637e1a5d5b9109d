"""Flows from a source to a sink."""

from .._core.public import publish_all
from .pipe import Pipe, pipe
from .report import PipeReport, PipeStats
from .settings import PipeOptions
from .state.codec import JsonState, StateCodec
from .transaction import TransactionalPipe, transaction
from .transaction_settings import TransactionOptions
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
