"""The batcher: items one at a time in, batches out, every item accounted for."""

from typing import TYPE_CHECKING

from .._core.batch import Reason
from .._core.clock import Clock, LoopClock, TimerHandle
from .._core.outcome import Tally
from .._core.public import later, publish, publish_all
from .._core.runtime.run import run
from .adaptive import Adaptive
from .batcher import Batcher
from .feed import Feed, Submission
from .limits import Limits, Tenants
from .log import NoFeedback
from .receipt import BlockingReceipt, Receipt, Resolvable, gather
from .report import (
    DestinationStats,
    ErrorStats,
    FlushReport,
    ShutdownReport,
    Stats,
    TenantStats,
    TimeSpent,
)
from .setup import BatcherOptions, FailureHandler

if TYPE_CHECKING:
    from .blocking import BlockingBatcher
else:
    __getattr__, __dir__ = later(__name__, {"blocking": ["BlockingBatcher"]})

__all__ = [
    "Adaptive",
    "Batcher",
    "BatcherOptions",
    "BlockingBatcher",
    "BlockingReceipt",
    "Clock",
    "DestinationStats",
    "ErrorStats",
    "FailureHandler",
    "Feed",
    "FlushReport",
    "Limits",
    "LoopClock",
    "NoFeedback",
    "Reason",
    "Receipt",
    "Resolvable",
    "ShutdownReport",
    "Stats",
    "Submission",
    "Tally",
    "TenantStats",
    "Tenants",
    "TimeSpent",
    "TimerHandle",
    "gather",
    "run",
]

publish("sluicegate", Batcher, Limits, Receipt, gather, run)
publish_all(__name__)
