"""Conformance suites for your own parts: subclass one in a test module, and pytest runs it."""

from ..._core.extras import need
from ..._core.public import publish_all

need("pytest", "testing", __name__)  # only pytest runs them


from .sinks import SinkConformance
from .sources import SourceConformance

__all__ = [
    "SinkConformance",
    "SourceConformance",
]

publish_all(__name__)
