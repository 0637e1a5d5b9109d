"""Destinations, and what goes around them."""

from .._core.function_sink import FunctionSink
from .._core.public import publish
from .memory import MemorySink
from .postgres import PostgresSink, classify_postgres
from .timeout import Timeout

__all__ = ["FunctionSink", "MemorySink", "PostgresSink", "Timeout", "classify_postgres"]

publish(__name__, FunctionSink, MemorySink, PostgresSink, Timeout, classify_postgres)
