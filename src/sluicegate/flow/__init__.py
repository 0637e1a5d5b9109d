"""Flows from a source to a sink."""

from .._core.public import publish_all
from .pipe import Pipe, pipe
from .transaction import TransactionalPipe, transaction

__all__ = [
    "Pipe",
    "TransactionalPipe",
    "pipe",
    "transaction",
]

publish_all(__name__)
