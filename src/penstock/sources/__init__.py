"""Sources of consumers: a folder per kind, and the contract for your own."""

from .._core.public import publish_all
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
