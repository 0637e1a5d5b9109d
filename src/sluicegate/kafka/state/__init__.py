"""The state of partitions in Kafka."""

from ..._core.public import publish_all
from .record import KafkaRecord
from .state import KafkaState

__all__ = ["KafkaRecord", "KafkaState"]

publish_all(__name__, "sluicegate.kafka")
