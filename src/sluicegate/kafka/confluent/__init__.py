"""Topics of Apache Kafka as a source of consumers, read with librdkafka."""

from ..._core.public import publish_all
from .source import ConfluentKafkaSource

__all__ = ["ConfluentKafkaSource"]

publish_all(__name__, "sluicegate.kafka")
