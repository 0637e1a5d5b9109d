"""Streams of NATS JetStream as a source of consumers."""

from ..._core.public import publish
from .source import JetStreamSource
from .subjects import KeyFunction, partitioned

__all__ = ["JetStreamSource", "KeyFunction", "partitioned"]

publish(__name__, JetStreamSource, partitioned)
