"""Where a consumer reads from: a folder per kind of source, and the contract for your own."""

from .._core.public import publish
from .._core.source import (
    ClaimHost,
    Fetched,
    Position,
    Record,
    Source,
    SourceClaim,
    SourceRecord,
    SourceTraits,
    TopicPartition,
)

__all__ = [
    "ClaimHost",
    "Fetched",
    "Position",
    "Record",
    "Source",
    "SourceClaim",
    "SourceRecord",
    "SourceTraits",
    "TopicPartition",
]

publish(__name__, *(globals()[name] for name in __all__))
