"""The batcher: items one at a time in, batches out, every item accounted for."""

from .._core.public import publish
from .batcher import Batcher
from .blocking import BlockingBatcher
from .feedback import NoFeedback
from .limits import Limits
from .receipt import BlockingReceipt, Receipt, gather
from .report import FlushReport, ShutdownReport, Stats
from .run import run

__all__ = [
    "Batcher",
    "BlockingBatcher",
    "BlockingReceipt",
    "FlushReport",
    "Limits",
    "NoFeedback",
    "Receipt",
    "ShutdownReport",
    "Stats",
    "gather",
    "run",
]

publish(__name__, Batcher, BlockingBatcher, BlockingReceipt, FlushReport, Limits, NoFeedback, Receipt, ShutdownReport, Stats, gather, run)
