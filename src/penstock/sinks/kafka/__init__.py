"""Records to topics of Kafka."""

from ..._core.public import publish
from .metadata import RecordMetadata
from .sink import KafkaSink

__all__ = ["KafkaSink", "RecordMetadata"]

publish("penstock.sinks", *(globals()[name] for name in __all__))
