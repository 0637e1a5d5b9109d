"""NATS: subjects as a destination, JetStream as a source."""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .jetstream import JetStreamSource, KeyFunction, partitioned
    from .sink import NatsSink, PublishAck, classify_nats
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "jetstream": ["JetStreamSource", "KeyFunction", "partitioned"],
            "sink": ["NatsSink", "PublishAck", "classify_nats"],
        },
    )

__all__ = [
    "JetStreamSource",
    "KeyFunction",
    "NatsSink",
    "PublishAck",
    "classify_nats",
    "partitioned",
]
