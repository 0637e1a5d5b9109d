"""Documents to Elasticsearch or OpenSearch by the bulk API."""

from .sink import ElasticsearchSink

__all__ = ["ElasticsearchSink"]
