"""Events that are completed later: jobs in order per key, items in batches, and work without a
record in the order of a partition.

`events` runs the turns of events, each with its `context`; `event_run` is one run of them with its
background tasks. `scheduler` (with `job_run`) and `item_batcher` (with `items`) process jobs,
`interjections` is work without a record, and `state` the state of a partition.
"""

from ..._core.public import publish_all
from ..handling.register import EventRegister
from ..handling.results import Incomplete
from .context import EventContext
from .events import SkippedSchedulerError
from .interjections import Interjector, NotAssigned
from .item_batcher import ItemBatcher
from .items import BatchItem, BatchItems
from .scheduler import JobScheduler
from .state import MemoryState, StateStore

__all__ = [
    "BatchItem",
    "BatchItems",
    "EventContext",
    "EventRegister",
    "Incomplete",
    "Interjector",
    "ItemBatcher",
    "JobScheduler",
    "MemoryState",
    "NotAssigned",
    "SkippedSchedulerError",
    "StateStore",
]

publish_all(__name__)
