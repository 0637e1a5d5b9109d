"""Items to an HTTP endpoint, many per request."""

from .errors import HttpStatusError, classify_http
from .sink import HttpSink
from .write import HttpResponse

__all__ = ["HttpResponse", "HttpSink", "HttpStatusError", "classify_http"]
