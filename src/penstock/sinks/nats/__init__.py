"""Messages to subjects of NATS, stored by JetStream or not."""

from ..._core.public import publish
from .ack import PublishAck
from .sink import NatsSink

__all__ = ["NatsSink", "PublishAck"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
