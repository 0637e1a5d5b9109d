"""The state of partitions in Kafka.

- `state`: what users pass; `keeper`: states and positions of an open consumer.
- `topic`: the compacted topic, its settings and contents.
"""

from ..._core.public import publish_all
from .state import KafkaRecord, KafkaState

__all__ = ["KafkaRecord", "KafkaState"]

publish_all(__name__, "sluicegate.kafka")
