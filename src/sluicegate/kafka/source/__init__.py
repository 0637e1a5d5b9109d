"""Topics of Apache Kafka as a source of consumers."""

from ..._core.public import publish_all
from .source import KafkaSource

__all__ = ["KafkaSource"]

publish_all(__name__, "sluicegate.kafka")
