"""Streams of NATS JetStream as a source of consumers."""

from ..._core.public import publish_all
from .options import partitioned
from .source import JetStreamSource

__all__ = ["JetStreamSource", "partitioned"]

publish_all(__name__, "sluicegate.nats")
