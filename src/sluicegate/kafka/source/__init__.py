"""Topics of Apache Kafka as a source of consumers, read with aiokafka.

- `source`, and `sessions`: the memberships of an open source, one after the other.
- `membership`: the claims of one membership, and its commits; `fetching`: the records that have
  arrived.
"""

from ..._core.public import publish_all
from .source import KafkaSource

__all__ = ["KafkaSource"]

publish_all(__name__, "sluicegate.kafka")
