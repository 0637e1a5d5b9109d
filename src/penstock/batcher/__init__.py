"""The batcher: items one at a time in, batches out, every item accounted for."""

from typing import TYPE_CHECKING

from .._core.public import later, publish
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

if TYPE_CHECKING:
    from .threads import BlockingBatcher
else:
    __getattr__, __dir__ = later(__name__, {"threads": ["BlockingBatcher"]})

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

publish("penstock", *(globals()[name] for name in __all__ if name in globals()))
