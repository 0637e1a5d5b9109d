"""Documents to Elasticsearch or OpenSearch, through the bulk API."""

from ..._core.public import publish_all
from .sink import ElasticsearchSink

__all__ = ["ElasticsearchSink"]

publish_all(__name__, "sluicegate.http")
