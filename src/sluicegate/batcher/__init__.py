"""The batcher: items one at a time in, batches out, every item accounted for.

`batcher` is the front; `blocking` and `inbox` are for threads, `feed` for sources. `intake` admits
items by their `reservations` in the `ledger`, `gathering` makes batches of them, `dispatch`
launches them as flights (`flight`), and `books` and `receipt` tell their outcomes. `drain` and
`lifecycle` end it, `opener` opens it; `setup` and `limits` check arguments, `governor` and
`adaptive` set the number of workers, `monitor`, `report` and `log` show it.
"""

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
