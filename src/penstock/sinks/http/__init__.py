"""Items to an HTTP endpoint, many per request."""

from ..._core.public import publish
from .errors import HttpStatusError, classify_http
from .sink import HttpSink
from .write import HttpResponse

__all__ = ["HttpResponse", "HttpSink", "HttpStatusError", "classify_http"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
