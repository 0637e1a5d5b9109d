"""Messages to subjects of NATS, stored by JetStream or not."""

from ..._clients.nats.classify import classify_nats
from ..._core.public import publish_all
from .ack import PublishAck
from .sink import NatsSink

__all__ = ["NatsSink", "PublishAck", "classify_nats"]

publish_all(__name__, "sluicegate.sinks")
