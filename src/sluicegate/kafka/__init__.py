"""Apache Kafka: topics as destination and source, and the state of partitions in a topic.

`client` is built on aiokafka: the sink and `source` use it. `confluent` is a source on librdkafka.
The `membership` of either source commits; `groups` has what both sources share. `sink` writes
records, alone or with offsets in transactions, and `state` a compacted topic. `values` are Avro,
Protobuf and JSON with a schema registry.

`access` and `arguments` check arguments, `errors` classifies, `parallel_consumer_map` reads
the offsets of Confluent's parallel consumer, and `server` is a real Kafka for tests.
"""

from typing import TYPE_CHECKING

from .._core.public import later

if TYPE_CHECKING:
    from .access import KafkaAccess
    from .confluent import ConfluentKafkaSource
    from .sink import KafkaSink
    from .source import KafkaSource
    from .state import KafkaRecord, KafkaState
    from .values import Avro, Json, Protobuf, SchemaRegistry, message_to_row
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            "access": ["KafkaAccess"],
            "confluent": ["ConfluentKafkaSource"],
            "sink": ["KafkaSink"],
            "source": ["KafkaSource"],
            "state": ["KafkaRecord", "KafkaState"],
            "values": ["Avro", "Json", "Protobuf", "SchemaRegistry", "message_to_row"],
        },
    )

__all__ = [
    "Avro",
    "ConfluentKafkaSource",
    "Json",
    "KafkaAccess",
    "KafkaRecord",
    "KafkaSink",
    "KafkaSource",
    "KafkaState",
    "Protobuf",
    "SchemaRegistry",
    "message_to_row",
]
