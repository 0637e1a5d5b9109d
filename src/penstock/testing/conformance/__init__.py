"""Suites of tests that a user's own part can run: subclass one in a test module, say how to make
the part, and pytest does the rest.
"""

from ..._core.public import publish
from .batchers import BatcherConformance
from .sinks import SinkConformance
from .transactions import TransactionConformance

__all__ = ["BatcherConformance", "SinkConformance", "TransactionConformance"]

publish(__name__, BatcherConformance, SinkConformance, TransactionConformance)
