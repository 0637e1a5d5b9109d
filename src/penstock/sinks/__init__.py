"""Destinations, and what goes around them."""

from .._core.function_sink import FunctionSink
from .._core.public import publish
from .memory import MemorySink
from .timeout import Timeout

__all__ = ["FunctionSink", "MemorySink", "Timeout"]

publish(__name__, FunctionSink, MemorySink, Timeout)
