"""The state of partitions in Kafka."""

from ..._core.public import publish
from .record import KafkaRecord
from .state import KafkaState

__all__ = ["KafkaRecord", "KafkaState"]

publish("penstock.flow", *(globals()[name] for name in __all__))
