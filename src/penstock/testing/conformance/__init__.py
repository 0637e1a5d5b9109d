"""Suites of tests that a user's own part can run: subclass one in a test module, say how to make the part, and pytest does the rest."""

from ..._core.public import publish
from .sinks import SinkConformance

__all__ = ["SinkConformance"]

publish(__name__, SinkConformance)
