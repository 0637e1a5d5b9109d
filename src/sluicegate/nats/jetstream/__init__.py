"""JetStream streams as a source for consumers.

- `source`, `options`; `sessions`: the connections of an open source, and `serving`: one of them.
- `partition`: a partition's claim and messages; `puller` requests them, `intake` orders and settles
  them.
- `group`: the members, and the partitions of each; `moves`: claims that begin and end.
- `channel`: messages and requests on the connection.
"""

from ..._core.public import publish_all
from .options import partitioned
from .source import JetStreamSource

__all__ = ["JetStreamSource", "partitioned"]

publish_all(__name__, "sluicegate.nats")
