"""Conformance suites for a user's own parts: subclass one in a test module, and pytest runs it."""

from ..._core.public import publish
from .batchers import BatcherConformance
from .park_stores import ParkStoreConformance
from .sinks import SinkConformance
from .sources import SourceConformance
from .transactions import TransactionConformance

__all__ = [
    "BatcherConformance",
    "ParkStoreConformance",
    "SinkConformance",
    "SourceConformance",
    "TransactionConformance",
]

publish(
    __name__,
    BatcherConformance,
    ParkStoreConformance,
    SinkConformance,
    SourceConformance,
    TransactionConformance,
)
