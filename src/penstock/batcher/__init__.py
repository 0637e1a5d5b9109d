"""The batcher: items one at a time in, batches out, every item accounted for."""

from .._core.public import publish
from .adaptive import Adaptive
from .batcher import Batcher
from .blocking import BlockingBatcher
from .feedback import NoFeedback
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
from .run import run
from .tenancy import Tenants

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
