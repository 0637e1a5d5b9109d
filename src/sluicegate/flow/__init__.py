"""Flows from a source to a sink."""

from typing import TYPE_CHECKING

from .._core.public import later, publish_all
from .pipe import Pipe, pipe
from .report import PipeReport, PipeStats
from .settings import PipeOptions
from .state.codec import JsonState, StateCodec
from .state.postgres import PostgresState
from .transaction import TransactionalPipe, transaction
from .transaction_settings import TransactionOptions
from .transform import Transform

if TYPE_CHECKING:
    from .kafka_state import KafkaRecord, KafkaState
else:
    __getattr__, __dir__ = later(__name__, {"kafka_state": ["KafkaRecord", "KafkaState"]})

__all__ = [
    "JsonState",
    "KafkaRecord",
    "KafkaState",
    "Pipe",
    "PipeOptions",
    "PipeReport",
    "PipeStats",
    "PostgresState",
    "StateCodec",
    "TransactionOptions",
    "TransactionalPipe",
    "Transform",
    "pipe",
    "transaction",
]

publish_all(__name__)
