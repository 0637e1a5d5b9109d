"""Penstock: move records from code that makes them one at a time to places that want them in
groups, and account for every one.
"""

from typing import TYPE_CHECKING

from ._core.arrow import ArrowBatch
from ._core.batch import Batch, RowBatch
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
    KeyFailedError,
    KeyStopped,
    LedgerFull,
    MissingExtra,
    MissingJars,
    NonDeterministicReplay,
    NotPicklableError,
    ParkedBehind,
    PenstockError,
    PermanentError,
    RefusedError,
    ResultMismatch,
    SinkError,
    StagesLost,
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
from ._core.lineage import Lineage, Reason
from ._core.observer import Observer
from ._core.opening import Openable
from ._core.outcome import Outcome
from ._core.public import later, publish
from ._core.result import WriteResult
from ._core.runtime.run import run
from ._core.send import send
from ._core.sink import Capabilities, Decorator, Sink, SinkLike
from ._core.stacking import stack
from ._core.tally import Tally
from ._core.threads import in_thread
from .batcher import (
    Adaptive,
    Batcher,
    BlockingReceipt,
    DestinationStats,
    ErrorStats,
    FlushReport,
    Limits,
    NoFeedback,
    Receipt,
    ShutdownReport,
    Stats,
    Tenants,
    TenantStats,
    TimeSpent,
    gather,
)

if TYPE_CHECKING:
    from ._core.transaction import (
        Committed,
        Counts,
        Transaction,
        TransactionalSink,
        Unit,
        check_transactional,
        transaction,
    )
    from .batcher import BlockingBatcher
    from .retry import Backoff, CircuitBreaker, CircuitState, Retry, RetryBudget
    from .sinks import (
        Combine,
        DeadLetter,
        DeadLetterRecord,
        FanOut,
        Isolate,
        RateLimit,
        Router,
        Split,
        Timeout,
    )
    from .telemetry import Metrics, Observed, Tracing
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "_core.transaction": [
                "Committed",
                "Counts",
                "Transaction",
                "TransactionalSink",
                "Unit",
                "check_transactional",
                "transaction",
            ],
            "batcher": ["BlockingBatcher"],
            "retry": ["Backoff", "CircuitBreaker", "CircuitState", "Retry", "RetryBudget"],
            "sinks": [
                "Combine",
                "DeadLetter",
                "DeadLetterRecord",
                "FanOut",
                "Isolate",
                "RateLimit",
                "Router",
                "Split",
                "Timeout",
            ],
            "telemetry": ["Metrics", "Observed", "Tracing"],
        },
    )

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
    "DestinationStats",
    "DrainTimeout",
    "ErrorClass",
    "ErrorStats",
    "FanOut",
    "FlushReport",
    "ForkedError",
    "Isolate",
    "ItemFailed",
    "ItemTooLarge",
    "KeyFailedError",
    "KeyStopped",
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
    "ParkedBehind",
    "PenstockError",
    "PermanentError",
    "RateLimit",
    "Reason",
    "Receipt",
    "RefusedError",
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
    "StagesLost",
    "Stats",
    "StoppedError",
    "Tally",
    "TenantStats",
    "Tenants",
    "ThrottledError",
    "TimeSpent",
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
    *(globals()[name] for name in __all__ if name in globals().keys() - {"Decorator", "SinkLike"}),
)
