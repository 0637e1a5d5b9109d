"""NATS: subjects as a destination, JetStream as a source.

Provisional: its public names may change in a minor release.

`connection` holds a connection on `client`, nats-py's client. `options` checks the arguments,
`errors` gives the meaning of JetStream's responses, and `server` is a real NATS server for tests.
"""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .jetstream import JetStreamSource, partitioned
    from .sink import NatsSink
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "jetstream": ["JetStreamSource", "partitioned"],
            "sink": ["NatsSink"],
        },
    )

__all__ = [
    "JetStreamSource",
    "NatsSink",
    "partitioned",
]
