"""Messages to subjects of NATS, stored by JetStream or not."""

from ..._core.public import publish_all
from .sink import NatsSink

__all__ = ["NatsSink"]

publish_all(__name__, "sluicegate.nats")
