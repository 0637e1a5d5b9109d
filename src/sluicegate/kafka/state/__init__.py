"""The state of partitions in Kafka."""

from ..._core.public import publish_all
from .state import KafkaRecord, KafkaState

__all__ = ["KafkaRecord", "KafkaState"]

publish_all(__name__, "sluicegate.kafka")
