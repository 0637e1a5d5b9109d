"""Destinations, decorators and combinators."""

from .._core.function_sink import FunctionSink
from .._core.public import publish
from ..letters.record import DeadLetterRecord
from .combinators.fan_out import FanOut
from .combinators.router import Router
from .decorators.combine import Combine
from .decorators.dead_letter import DeadLetter
from .decorators.isolate import Isolate
from .decorators.rate_limit import RateLimit
from .decorators.split import Split
from .decorators.timeout import Timeout
from .elasticsearch import ElasticsearchSink
from .file import FileSink, classify_file
from .http import HttpResponse, HttpSink, HttpStatusError, classify_http
from .memory import MemorySink
from .postgres import PostgresSink, classify_postgres

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
