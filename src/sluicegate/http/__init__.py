"""Items to an HTTP endpoint, many per request.

- `sink`, and `client`: the requests, the base of all sinks over HTTP; `write`: one batch.
- `config`: the settings of an endpoint; `secrets`: redaction; `errors`: the classes of responses.
- `elasticsearch`: the sink for its bulk endpoint.
"""

from typing import TYPE_CHECKING

from .._core.public import later, publish_all
from .._core.values.encoding import Encode
from .config import Authorization, ClientFactory, HttpAccess
from .errors import HttpStatusError, classify_http
from .sink import HttpSink
from .write import HttpResponse, JoinBodies, ParseResponse

if TYPE_CHECKING:
    from .elasticsearch import ElasticsearchSink
else:
    __getattr__, __dir__ = later(__name__, {"elasticsearch": ["ElasticsearchSink"]})

__all__ = [
    "Authorization",
    "ClientFactory",
    "ElasticsearchSink",
    "Encode",
    "HttpAccess",
    "HttpResponse",
    "HttpSink",
    "HttpStatusError",
    "JoinBodies",
    "ParseResponse",
    "classify_http",
]

publish_all(__name__, "sluicegate.http")
