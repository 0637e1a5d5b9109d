"""Apache Kafka: topics as destination and source, and the state of partitions in a topic.

`client` is built on aiokafka, `confluent` on librdkafka; `groups` has what both sources share.
"""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .access import KafkaAccess
    from .confluent import ConfluentKafkaSource
    from .sink import KafkaSink
    from .source import KafkaSource
    from .state import KafkaRecord, KafkaState
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "access": ["KafkaAccess"],
            "confluent": ["ConfluentKafkaSource"],
            "sink": ["KafkaSink"],
            "source": ["KafkaSource"],
            "state": ["KafkaRecord", "KafkaState"],
        },
    )

__all__ = [
    "ConfluentKafkaSource",
    "KafkaAccess",
    "KafkaRecord",
    "KafkaSink",
    "KafkaSource",
    "KafkaState",
]
