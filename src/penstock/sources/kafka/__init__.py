"""Topics of Apache Kafka as a source of consumers."""

from ..._core.public import publish
from .source import KafkaSource

__all__ = ["KafkaSource"]

publish(__name__, KafkaSource)
