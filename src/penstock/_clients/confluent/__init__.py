"""The client of Apache Kafka on librdkafka: a group's member, and a reader of its partitions.

Importing it raises `MissingExtra`, an `ImportError`, without confluent-kafka.
"""

from ..._core.errors import MissingExtra

try:
    from confluent_kafka.aio import AIOConsumer as AIOConsumer
except ImportError as missing:
    raise MissingExtra('pip install "penstock[kafka-confluent]"') from missing
