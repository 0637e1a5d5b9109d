"""Conformance suites for your own parts: subclass one in a test module, and pytest runs it."""

from ..._core.extras import need
from ..._core.public import publish_all

need("pytest", "testing", __name__)  # only pytest runs them

from .batchers import BatcherConformance
from .park_stores import ParkStoreConformance
from .sinks import SinkConformance
from .sources import SourceConformance
from .subscription_locks import SubscriptionLocksConformance
from .subscription_state import SubscriptionStateConformance
from .transactions import TransactionConformance

__all__ = [
    "BatcherConformance",
    "ParkStoreConformance",
    "SinkConformance",
    "SourceConformance",
    "SubscriptionLocksConformance",
    "SubscriptionStateConformance",
    "TransactionConformance",
]

publish_all(__name__)
