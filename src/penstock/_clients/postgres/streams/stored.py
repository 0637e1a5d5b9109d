"""Stored messages of the log. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ...._core.checks import bad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS = (
    "m.position, m.stream, m.version, m.type, CAST(m.data AS text), CAST(m.metadata AS text), "
    "CAST(m.id AS text), CAST(extract(epoch FROM m.at) * 1000000 AS bigint)"
)
"""The columns that `stored_message` reads, from a table named `m`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of the log."""

    position: int
    """Its position in the whole log. Positions have gaps."""
    stream: str
    version: int
    """Its version in its stream: 0, 1, 2 and so on."""
    type: str
    data: Any
    """Its contents, decoded from JSON."""
    metadata: Mapping[str, Any]
    id: UUID
    at: datetime
    """The time of the append by the server's clock, in UTC."""


def stored_message(row: Sequence[Any]) -> StoredMessage:
    """Return the message of a row of `COLUMNS`."""
    position, stream, version, kind, data, metadata, ident, at = row
    return StoredMessage(
        position=position,
        stream=stream,
        version=version,
        type=kind,
        data=json.loads(data),
        metadata=json.loads(metadata),
        id=UUID(ident),
        at=time_of(at),
    )


def time_of(microseconds: int) -> datetime:
    """Convert microseconds since the epoch to a time in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def microseconds_of(time: datetime) -> int:
    """Convert an aware time to microseconds since the epoch."""
    return (time - _EPOCH) // _MICROSECOND


def aware(name: str, time: object) -> datetime:
    """Check that the time has a time zone. Raises `ConfigError`."""
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise bad(name, time, "must be an aware time, such as datetime.now(UTC)")
    return time
