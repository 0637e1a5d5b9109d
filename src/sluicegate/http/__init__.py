"""Items to an HTTP endpoint, many per request.

- `sink`, and `client`: the requests, the base of all sinks over HTTP; `write`: one batch.
- `config`: the settings of an endpoint; `secrets`: redaction; `errors`: the classes of responses.
- `elasticsearch`: the sink for its bulk endpoint.
"""

from typing import TYPE_CHECKING

from .._core.public import later, publish_all
from .config import HttpAccess
from .errors import classify_http
from .sink import HttpSink
from .write import HttpResponse

if TYPE_CHECKING:
    from .elasticsearch import ElasticsearchSink
else:
    __getattr__, __dir__ = later(__name__, {"elasticsearch": ["ElasticsearchSink"]})

__all__ = [
    "ElasticsearchSink",
    "HttpAccess",
    "HttpResponse",
    "HttpSink",
    "classify_http",
]

publish_all(__name__, "sluicegate.http")
