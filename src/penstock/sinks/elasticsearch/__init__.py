"""Documents into Elasticsearch or OpenSearch, by its bulk API."""

from .sink import ElasticsearchSink

__all__ = ["ElasticsearchSink"]
