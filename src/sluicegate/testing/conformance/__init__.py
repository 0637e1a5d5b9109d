"""Conformance suites for your own parts: subclass one in a test module, and pytest runs it."""

from ..._core.extras import need
from ..._core.public import publish_all

need("pytest", "testing", __name__)  # only pytest runs them


from .park_stores import ParkStoreConformance
from .sinks import SinkConformance
from .sources import SourceConformance
from .transactions import TransactionConformance

__all__ = [
    "ParkStoreConformance",
    "SinkConformance",
    "SourceConformance",
    "TransactionConformance",
]

publish_all(__name__)
