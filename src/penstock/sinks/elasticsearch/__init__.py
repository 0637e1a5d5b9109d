"""Documents to Elasticsearch or OpenSearch, through the bulk API."""

from ..._core.public import publish
from .sink import ElasticsearchSink

__all__ = ["ElasticsearchSink"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
