"""Documents to Elasticsearch or OpenSearch, through the bulk API.

- `sink`; `answer`: the outcome of each item; `stored`: conflicts with documents that are stored.
- `server`: a real OpenSearch for tests.
"""

from ..._core.public import publish_all
from .sink import ElasticsearchSink

__all__ = ["ElasticsearchSink"]

publish_all(__name__, "sluicegate.http")
