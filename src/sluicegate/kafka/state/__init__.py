"""The state of partitions in Kafka.

- `state`: the public class; `keeper`: states and positions of an open consumer.
- `topic`: the compacted topic, its settings and contents.
"""

from ..._core.public import publish_all
from .state import KafkaRecord, KafkaState

__all__ = ["KafkaRecord", "KafkaState"]

publish_all(__name__, "sluicegate.kafka")
