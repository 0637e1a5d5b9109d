"""Topics of Apache Kafka as a source of consumers, read with librdkafka.

- `source`, and `sessions`: the memberships of an open source, one after the other.
- `member`: the group member; `membership`: its claims and commits.
- `reader`: the client that reads owned partitions; `fetching`: the records that have arrived.
- `options`: connection options; `errors`: librdkafka's reports.
"""

from ..._core.public import publish_all
from .source import ConfluentKafkaSource

__all__ = ["ConfluentKafkaSource"]

publish_all(__name__, "sluicegate.kafka")
