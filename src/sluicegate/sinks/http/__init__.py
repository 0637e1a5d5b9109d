"""Items to an HTTP endpoint, many per request."""

from ..._clients.encoding import Encode
from ..._core.public import publish_all
from .body import JoinBodies
from .config import Authorization, ClientFactory, HttpOptions
from .errors import HttpStatusError, classify_http
from .sink import HttpSink
from .write import HttpResponse, ParseResponse

__all__ = [
    "Authorization",
    "ClientFactory",
    "Encode",
    "HttpOptions",
    "HttpResponse",
    "HttpSink",
    "HttpStatusError",
    "JoinBodies",
    "ParseResponse",
    "classify_http",
]

publish_all(__name__, "sluicegate.sinks")
