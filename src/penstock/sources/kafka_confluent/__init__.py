"""Topics of Apache Kafka as a source of consumers, read with librdkafka."""

from ..._core.public import publish
from .source import ConfluentKafkaSource

__all__ = ["ConfluentKafkaSource"]

publish(__name__, ConfluentKafkaSource)
