"""Sluicegate: collect records into batches, write them to a destination, and account for each
one.
"""

from typing import TYPE_CHECKING

from . import errors as errors
from ._core.arrow import ArrowBatch
from ._core.batch import Batch, RowBatch
from ._core.errors import (
    AddTimeout,
    ClosedError,
    ConfigError,
    DrainTimeout,
    ErrorClass,
    ItemFailed,
    PermanentError,
    RefusedError,
    SinkError,
    SluicegateError,
    ThrottledError,
    TransientError,
    UnavailableError,
    UnknownOutcomeError,
)
from ._core.observer import Observer
from ._core.outcome import Outcome
from ._core.public import later, publish_all
from ._core.runtime.run import run
from ._core.runtime.threads import in_thread
from ._core.send import send
from ._core.sink import Capabilities, Sink, WriteResult
from ._core.stacking import stack

if TYPE_CHECKING:  # these parts are loaded on their first use
    from . import batcher as batcher
    from . import consumer as consumer
    from . import retry as retry
    from . import sinks as sinks
    from . import telemetry as telemetry

if TYPE_CHECKING:
    from ._core.retry_policy import Backoff, RetryPolicy
    from ._core.transaction import transaction
    from .batcher.batcher import Batcher
    from .batcher.blocking import BlockingBatcher
    from .batcher.limits import Limits
    from .batcher.receipt import Receipt, gather
    from .consumer.consumer import Consumer
    from .consumer.handling.results import Ack, Nak, Terminate, ToDeadLetter
    from .consumer.lanes.message import Message
    from .retry.breaker import CircuitBreaker
    from .retry.retry import Retry
    from .sinks.dead_letter import DeadLetter
    from .sinks.fan_out import FanOut
    from .sinks.timeout import Timeout
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "_core.retry_policy": ["Backoff", "RetryPolicy"],
            "_core.transaction": ["transaction"],
            "batcher": [],
            "batcher.batcher": ["Batcher"],
            "batcher.blocking": ["BlockingBatcher"],
            "batcher.limits": ["Limits"],
            "batcher.receipt": ["Receipt", "gather"],
            "consumer": [],
            "consumer.consumer": ["Consumer"],
            "consumer.handling.results": ["Ack", "Nak", "Terminate", "ToDeadLetter"],
            "consumer.lanes.message": ["Message"],
            "retry": [],
            "retry.breaker": ["CircuitBreaker"],
            "retry.retry": ["Retry"],
            "sinks": [],
            "sinks.dead_letter": ["DeadLetter"],
            "sinks.fan_out": ["FanOut"],
            "sinks.timeout": ["Timeout"],
            "telemetry": [],
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "AddTimeout",
    "ArrowBatch",
    "Backoff",
    "Batch",
    "Batcher",
    "BlockingBatcher",
    "Capabilities",
    "CircuitBreaker",
    "ClosedError",
    "ConfigError",
    "Consumer",
    "DeadLetter",
    "DrainTimeout",
    "ErrorClass",
    "FanOut",
    "ItemFailed",
    "Limits",
    "Message",
    "Nak",
    "Observer",
    "Outcome",
    "PermanentError",
    "Receipt",
    "RefusedError",
    "Retry",
    "RetryPolicy",
    "RowBatch",
    "Sink",
    "SinkError",
    "SluicegateError",
    "Terminate",
    "ThrottledError",
    "Timeout",
    "ToDeadLetter",
    "TransientError",
    "UnavailableError",
    "UnknownOutcomeError",
    "WriteResult",
    "gather",
    "in_thread",
    "run",
    "send",
    "stack",
    "transaction",
]

publish_all(__name__)
publish_all("sluicegate.errors")
