"""The batcher: items one at a time in, batches out, every item accounted for.

`batcher` is the front; `blocking` and `inbox` are for threads, `feed` for sources. `intake` admits
items by their `reservations` in the `ledger`, `gathering` makes batches of them, `dispatch`
launches them as flights (`flight`), and `books` and `receipt` tell their outcomes. `drain` and
`lifecycle` end it, `opener` opens it; `setup` and `limits` check arguments, `governor` and
`adaptive` set the number of workers, `monitor`, `report` and `log` show it.
"""

from .._core.batch import Reason
from .._core.clock import Clock, LoopClock
from .._core.outcome import Tally
from .._core.public import publish, publish_all
from .._core.runtime.run import run
from .adaptive import Adaptive
from .batcher import Batcher
from .limits import Limits, Tenants
from .log import NoFeedback
from .receipt import Receipt, gather
from .report import ShutdownReport

__all__ = [
    "Adaptive",
    "Clock",
    "LoopClock",
    "NoFeedback",
    "Reason",
    "ShutdownReport",
    "Tally",
    "Tenants",
]

publish("sluicegate", Batcher, Limits, Receipt, gather, run)
publish_all(__name__)
