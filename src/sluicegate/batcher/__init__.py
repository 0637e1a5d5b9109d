"""The batcher: items one at a time in, batches out, every item accounted for."""

from typing import TYPE_CHECKING

from .._core.batch import Reason
from .._core.clock import Clock, LoopClock
from .._core.outcome import Tally
from .._core.public import later, publish, publish_all
from .._core.runtime.run import run
from .adaptive import Adaptive
from .batcher import Batcher
from .limits import Limits, Tenants
from .log import NoFeedback
from .receipt import Receipt, gather
from .report import ShutdownReport

if TYPE_CHECKING:
    from .blocking import BlockingBatcher
else:
    __getattr__, __dir__ = later(__name__, {"blocking": ["BlockingBatcher"]})

__all__ = [
    "Adaptive",
    "Batcher",
    "BlockingBatcher",
    "Clock",
    "Limits",
    "LoopClock",
    "NoFeedback",
    "Reason",
    "Receipt",
    "ShutdownReport",
    "Tally",
    "Tenants",
    "gather",
    "run",
]

publish("sluicegate", Batcher, Limits, Receipt, gather, run)
publish_all(__name__)
