"""Messages to NATS subjects, stored by JetStream or not.

- `sink`, and `write`: one batch and its replies.
- `messages`: items and replies in the form of the protocol; `channel`: messages in flight.
"""

from ..._core.public import publish_all
from .sink import NatsSink

__all__ = ["NatsSink"]

publish_all(__name__, "sluicegate.nats")
