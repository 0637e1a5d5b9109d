"""Messages to subjects of NATS, stored by JetStream or not."""

from ..._core.public import publish_all
from .messages import PublishAck
from .sink import NatsSink, classify_nats

__all__ = ["NatsSink", "PublishAck", "classify_nats"]

publish_all(__name__, "sluicegate.nats")
