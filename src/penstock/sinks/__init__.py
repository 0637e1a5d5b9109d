"""Destinations, and what goes around them."""

from .._core.function_sink import FunctionSink
from .._core.public import publish
from .http import HttpResponse, HttpSink, HttpStatusError, classify_http
from .memory import MemorySink
from .postgres import PostgresSink, classify_postgres
from .timeout import Timeout

__all__ = [
    "FunctionSink",
    "HttpResponse",
    "HttpSink",
    "HttpStatusError",
    "MemorySink",
    "PostgresSink",
    "Timeout",
    "classify_http",
    "classify_postgres",
]

publish(__name__, *(globals()[name] for name in __all__))
