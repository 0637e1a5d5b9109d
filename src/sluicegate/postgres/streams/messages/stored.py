"""Stored messages of the log, and their decoding. Pure.

A message is decoded by itself. PostgreSQL accepts values that Python does not decode: numbers of
more than 4,300 digits, deeply nested JSON, and times before the year 1 or without end. The columns
can be read whatever a message contains, so that one message is not in the way of others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ...._core.checks import bad
from ...._core.classify import caused
from ...._core.errors import PermanentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STORED = "m.position, m.slot, m.stream, m.version, m.type, m.data, m.metadata, m.id, m.at"
"""The columns of a page of messages."""
COLUMNS = (
    "m.position, m.stream, m.version, m.type, CAST(m.data AS text), CAST(m.metadata AS text), "
    "CAST(m.id AS text), CASE WHEN isfinite(m.at) THEN "
    "CAST(extract(epoch FROM m.at) * 1000000 AS bigint) END"
)
"""The columns that `stored_message` reads, from a table named `m`, with `is_cut` behind them."""

PGLZ_MOST, LZ4_MOST = 88, 255
"""The highest ratios of the compressions of PostgreSQL."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The milliseconds since the epoch that a `datetime` can hold."""


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


class UndecodableMessage(PermanentError):
    """A stored message cannot be decoded. To read the messages after it, start at the next position,
    or the next version of the stream.
    """

    def __init__(self, position: int, stream: str, version: int, error: Exception) -> None:
        super().__init__(
            f"the message at position {position}, version {version} of the stream {stream!r}, cannot "
            f"be decoded ({type(error).__name__}); to read on, start at position {position + 1}, or "
            f"at version {version + 1} of the stream"
        )
        self.position = position
        self.stream = stream
        self.version = version


def within(columns: str, page: str, most_bytes: str, order: str) -> str:
    """Return a query for the first rows of a page whose data and metadata have at most `most_bytes`
    bytes in all; at least one row. The last column of the last row says whether the page has more.

    `page` is a query for `STORED` columns, and `order` its order: a column of `m`.

    The sizes are those of the stored values, which are read only for the rows returned. A compressed
    value counts as large as it can be.
    """
    sizes = " + ".join(
        f"CAST(pg_column_size({value}) AS float8) * CASE pg_column_compression({value}) "
        f"WHEN 'pglz' THEN {PGLZ_MOST} WHEN 'lz4' THEN {LZ4_MOST} ELSE 1 END"
        for value in ("m.data", "m.metadata")
    )
    return (
        f"SELECT {columns}, m.next IS NOT NULL FROM (SELECT m.*, "  # noqa: S608
        f"row_number() OVER w AS number, sum({sizes}) OVER w AS size, lead(m.position) OVER w AS next "
        f"FROM ({page}) AS m WINDOW w AS (ORDER BY {order} ROWS UNBOUNDED PRECEDING)) AS m "
        f"WHERE m.number = 1 OR m.size <= {most_bytes} ORDER BY {order}"
    )


def is_cut(rows: Sequence[Sequence[Any]]) -> bool:
    """Whether the rows of a query of `within` are not the whole page."""
    return bool(rows) and bool(rows[-1][-1])


def stored_message(row: Sequence[Any]) -> StoredMessage | UndecodableMessage:
    """Return the message of a row of `COLUMNS`, or the error to raise in its place."""
    position, stream, version, kind, data, metadata, ident, at, _ = row
    try:
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
    except Exception as error:
        return caused(UndecodableMessage(position, stream, version, error), error)


def entries_of(name: str, text: str) -> tuple[list[tuple[str, bytes]], Exception | None]:
    """Convert a JSON object to headers: strings unchanged, other values as JSON.

    If it cannot be decoded, return it as the header `name`, and the error.
    """
    if text == "{}":
        return [], None
    try:
        return [
            (name, (value if isinstance(value, str) else json.dumps(value)).encode())
            for name, value in json.loads(text).items()
        ], None
    except Exception as error:
        return [(name, text.encode())], error


def milliseconds(column: str) -> str:
    """Return a column with the milliseconds since the epoch of any time, for `timestamp_of`."""
    return f"floor(extract(epoch FROM {column}) * 1000)::float8"


def timestamp_of(milliseconds: float) -> int:
    """Return the timestamp of a record: the nearest time that a `datetime` can hold."""
    return int(min(max(milliseconds, _FIRST), _LAST))


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
