"""A source in memory: a `log` that outlives its consumers, a `source` of it that a test controls,
and `subscriptions` that members share.
"""

from ..._core.public import publish_all
from .log import MemoryLog
from .source import MemorySource
from .subscriptions import MemorySubscriptions

__all__ = ["MemoryLog", "MemorySource", "MemorySubscriptions"]

publish_all(__name__, "sluicegate.consumer")
