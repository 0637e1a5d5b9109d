"""Streams of NATS JetStream as a source of consumers."""

from ..._core.public import publish_all
from .source import JetStreamSource
from .subjects import KeyFunction, partitioned

__all__ = ["JetStreamSource", "KeyFunction", "partitioned"]

publish_all(__name__, "sluicegate.nats")
