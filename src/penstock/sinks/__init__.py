"""Destinations, and what goes around them."""

from .._core.function_sink import FunctionSink
from .._core.public import publish
from .combine import Combine
from .dead_letter import DeadLetter, DeadLetterRecord
from .elasticsearch import ElasticsearchSink
from .fan_out import FanOut
from .file import FileSink, classify_file
from .http import HttpResponse, HttpSink, HttpStatusError, classify_http
from .isolate import Isolate
from .memory import MemorySink
from .postgres import PostgresSink, classify_postgres
from .rate_limit import RateLimit
from .router import Router
from .split import Split
from .timeout import Timeout

__all__ = [
    "Combine",
    "DeadLetter",
    "DeadLetterRecord",
    "ElasticsearchSink",
    "FanOut",
    "FileSink",
    "FunctionSink",
    "HttpResponse",
    "HttpSink",
    "HttpStatusError",
    "Isolate",
    "MemorySink",
    "PostgresSink",
    "RateLimit",
    "Router",
    "Split",
    "Timeout",
    "classify_file",
    "classify_http",
    "classify_postgres",
]

publish(__name__, *(globals()[name] for name in __all__))
