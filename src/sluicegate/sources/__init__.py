"""Sources of consumers: a folder per kind, and the contract for your own."""

from .._core.public import later, publish_all
from .._core.source import (
    ClaimHost,
    CountsLag,
    DeclaresCapabilities,
    Fetched,
    Position,
    PositionStore,
    Record,
    ReplacesClaims,
    ReturnedAs,
    Settled,
    Source,
    SourceCapabilities,
    SourceClaim,
    SourceRecord,
    SourceTraits,
    TakesBack,
    TopicPartition,
    TransactionalSource,
    UndecodableRecord,
    Unread,
)

__all__ = [
    "ClaimHost",
    "CountsLag",
    "DeclaresCapabilities",
    "Fetched",
    "Position",
    "PositionStore",
    "Record",
    "ReplacesClaims",
    "ReturnedAs",
    "Settled",
    "Source",
    "SourceCapabilities",
    "SourceClaim",
    "SourceRecord",
    "SourceTraits",
    "TakesBack",
    "TopicPartition",
    "TransactionalSource",
    "UndecodableRecord",
    "Unread",
]

publish_all(__name__)

__getattr__, __dir__ = later(
    __name__,
    {},
    elsewhere={
        "files": ["FileSource"],
        "jetstream": ["JetStreamSource"],
        "kafka": ["KafkaSource"],
        "kafka_confluent": ["ConfluentKafkaSource"],
        "memory": ["MemoryLog", "MemorySource"],
        "postgres_queue": ["PostgresQueueSource"],
        "postgres_stream": ["PostgresStreamSource"],
    },
)
