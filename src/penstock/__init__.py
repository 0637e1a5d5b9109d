"""Penstock: move records from code that makes them one at a time to places that want them in groups, and account for every one."""

from ._core.arrow import ArrowBatch
from ._core.batch import Batch, Lineage, Reason, RowBatch
from ._core.clock import Clock, LoopClock
from ._core.errors import (
    AddTimeout,
    BatcherBroken,
    CircuitOpenError,
    ClosedError,
    ConfigError,
    DeadLetterLimit,
    DrainTimeout,
    ErrorClass,
    ForkedError,
    ItemFailed,
    ItemTooLarge,
    LedgerFull,
    MissingExtra,
    MissingJars,
    NonDeterministicReplay,
    NotPicklableError,
    PenstockError,
    PermanentError,
    ResultMismatch,
    SinkError,
    StoppedError,
    ThrottledError,
    TimedOutError,
    TooLargeError,
    TransactionLost,
    TransientError,
    UnavailableError,
    UnitRefused,
    UnknownOutcomeError,
)
from ._core.observer import Observer
from ._core.opening import Openable
from ._core.outcome import Outcome
from ._core.public import publish
from ._core.result import WriteResult
from ._core.send import send
from ._core.sink import Capabilities, Decorator, Sink, SinkLike, TransactionalSink
from ._core.stacking import stack
from ._core.tally import Tally
from ._core.threads import in_thread
from ._core.transaction import Committed, Counts, Transaction, Unit, check_transactional, transaction
from .batcher import (
    Adaptive,
    Batcher,
    BlockingBatcher,
    BlockingReceipt,
    FlushReport,
    Limits,
    NoFeedback,
    Receipt,
    ShutdownReport,
    Stats,
    gather,
    run,
)
from .retry import Backoff, CircuitBreaker, CircuitState, Retry, RetryBudget
from .sinks import Combine, DeadLetter, DeadLetterRecord, FanOut, Isolate, RateLimit, Router, Split, Timeout
from .telemetry import Metrics, Observed, Tracing

__version__ = "0.1.0.dev0"

__all__ = [
    "Adaptive",
    "AddTimeout",
    "ArrowBatch",
    "Backoff",
    "Batch",
    "Batcher",
    "BatcherBroken",
    "BlockingBatcher",
    "BlockingReceipt",
    "Capabilities",
    "CircuitBreaker",
    "CircuitOpenError",
    "CircuitState",
    "Clock",
    "ClosedError",
    "Combine",
    "Committed",
    "ConfigError",
    "Counts",
    "DeadLetter",
    "DeadLetterLimit",
    "DeadLetterRecord",
    "Decorator",
    "DrainTimeout",
    "ErrorClass",
    "FanOut",
    "FlushReport",
    "ForkedError",
    "Isolate",
    "ItemFailed",
    "ItemTooLarge",
    "LedgerFull",
    "Limits",
    "Lineage",
    "LoopClock",
    "Metrics",
    "MissingExtra",
    "MissingJars",
    "NoFeedback",
    "NonDeterministicReplay",
    "NotPicklableError",
    "Observed",
    "Observer",
    "Openable",
    "Outcome",
    "PenstockError",
    "PermanentError",
    "RateLimit",
    "Reason",
    "Receipt",
    "ResultMismatch",
    "Retry",
    "RetryBudget",
    "Router",
    "RowBatch",
    "ShutdownReport",
    "Sink",
    "SinkError",
    "SinkLike",
    "Split",
    "Stats",
    "StoppedError",
    "Tally",
    "ThrottledError",
    "TimedOutError",
    "Timeout",
    "TooLargeError",
    "Tracing",
    "Transaction",
    "TransactionLost",
    "TransactionalSink",
    "TransientError",
    "UnavailableError",
    "Unit",
    "UnitRefused",
    "UnknownOutcomeError",
    "WriteResult",
    "check_transactional",
    "gather",
    "in_thread",
    "run",
    "send",
    "stack",
    "transaction",
]

publish(
    __name__,
    *(globals()[name] for name in __all__ if name not in {"Decorator", "SinkLike"}),
)
