"""The batcher: items one at a time in, batches out, every item accounted for."""

from typing import TYPE_CHECKING

from .._core.public import later, publish, publish_all
from .._core.runtime.own_context import NoFeedback
from .._core.runtime.run import run
from .adaptive.adaptive import Adaptive
from .batcher import Batcher
from .feed import Feed
from .limits import Limits
from .receipt import BlockingReceipt, Receipt, gather
from .report import (
    DestinationStats,
    ErrorStats,
    FlushReport,
    ShutdownReport,
    Stats,
    TenantStats,
    TimeSpent,
)
from .resolvable import Resolvable
from .setup import BatcherOptions
from .submission import Submission
from .tenancy import Tenants

if TYPE_CHECKING:
    from .failure_handler import FailureHandler
    from .threads import BlockingBatcher
else:
    __getattr__, __dir__ = later(
        __name__, {"failure_handler": ["FailureHandler"], "threads": ["BlockingBatcher"]}
    )

__all__ = [
    "Adaptive",
    "Batcher",
    "BatcherOptions",
    "BlockingBatcher",
    "BlockingReceipt",
    "DestinationStats",
    "ErrorStats",
    "FailureHandler",
    "Feed",
    "FlushReport",
    "Limits",
    "NoFeedback",
    "Receipt",
    "Resolvable",
    "ShutdownReport",
    "Stats",
    "Submission",
    "TenantStats",
    "Tenants",
    "TimeSpent",
    "gather",
    "run",
]

publish(__name__, BatcherOptions, Feed, Resolvable, Submission)
publish_all(__name__, "sluicegate")
