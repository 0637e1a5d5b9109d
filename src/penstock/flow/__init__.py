"""What joins a source and a sink."""

from .._core.public import publish
from .pipe import Pipe, pipe
from .report import PipeReport, PipeStats
from .transaction import TransactionalPipe, transaction

__all__ = ["Pipe", "PipeReport", "PipeStats", "TransactionalPipe", "pipe", "transaction"]

publish(__name__, Pipe, PipeReport, PipeStats, TransactionalPipe, pipe, transaction)
