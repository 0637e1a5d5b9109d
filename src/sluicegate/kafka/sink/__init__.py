"""Records to topics of Kafka."""

from ..._core.public import publish_all
from ..errors import classify_kafka
from .records import RecordMetadata
from .sink import KafkaSink

__all__ = ["KafkaSink", "RecordMetadata", "classify_kafka"]

publish_all(__name__, "sluicegate.kafka")
