"""Records to topics of Kafka."""

from ..._core.public import publish_all
from .sink import KafkaSink

__all__ = ["KafkaSink"]

publish_all(__name__, "sluicegate.kafka")
