"""Flows from a source to a sink.

`pipe`, at least once: `pump` submits records to a batcher, and `rows` follows their rows until the
record is settled. `transaction`, where rows and positions are stored together: `commits` writes
them, and `positions` has the owned partitions. Both convert records by `transform`. `state` is for
the handlers of events: the state of a partition, stored with its position.
"""

from .._core.public import publish_all
from .pipe import Pipe, pipe
from .spooling.spool import Spool, spool
from .transaction import TransactionalPipe, transaction

__all__ = [
    "Pipe",
    "Spool",
    "TransactionalPipe",
    "pipe",
    "spool",
    "transaction",
]

publish_all(__name__)
