"""Records to topics of Kafka."""

from ..._core.public import publish_all
from .metadata import RecordMetadata
from .sink import KafkaSink

__all__ = ["KafkaSink", "RecordMetadata"]

publish_all(__name__, "sluicegate.sinks")
