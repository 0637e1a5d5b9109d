"""The batcher: items one at a time in, batches out, every item accounted for."""

from .._core.public import publish
from .._core.runtime.own_context import NoFeedback
from .._core.runtime.run import run
from .adaptive.adaptive import Adaptive
from .batcher import Batcher
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
from .tenancy import Tenants
from .threads.blocking import BlockingBatcher

__all__ = [
    "Adaptive",
    "Batcher",
    "BlockingBatcher",
    "BlockingReceipt",
    "DestinationStats",
    "ErrorStats",
    "FlushReport",
    "Limits",
    "NoFeedback",
    "Receipt",
    "ShutdownReport",
    "Stats",
    "TenantStats",
    "Tenants",
    "TimeSpent",
    "gather",
    "run",
]

publish(
    __name__,
    Adaptive,
    Batcher,
    BlockingBatcher,
    BlockingReceipt,
    DestinationStats,
    ErrorStats,
    FlushReport,
    Limits,
    NoFeedback,
    Receipt,
    ShutdownReport,
    Stats,
    TenantStats,
    Tenants,
    TimeSpent,
    gather,
    run,
)
