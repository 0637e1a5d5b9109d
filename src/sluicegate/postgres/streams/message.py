"""Messages: those to append, checked before sending, and those stored in the log. Pure.

1. Data and metadata are JSON. They are encoded when the message is created: a value without a JSON
   form raises there, and a later change of a mutable object has no effect.
2. A stored message is decoded by itself. The columns can be read whatever a message contains, so
   that one message is not in the way of others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from uuid import UUID

from ..._core.checks import bad, count
from ..._core.classify import caused
from ..._core.errors import ConfigError, PermanentError
from ..._core.values.encoding import to_json
from ..records.values import json_text, message_id, name_text, time_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


NO_STREAM = -1
"""The expected version of a stream that does not exist."""
LONGEST_NAME = 2000
"""Maximum size of a stream's name in bytes, since it is part of an index."""
STORED = "m.position, m.slot, m.stream, m.version, m.type, m.data, m.metadata, m.id, m.at"
"""The columns of a page of messages."""
COLUMNS = (
    "m.position, m.stream, m.version, m.type, CAST(m.data AS text), CAST(m.metadata AS text), "
    "CAST(m.id AS text), CASE WHEN isfinite(m.at) THEN "
    "CAST(extract(epoch FROM m.at) * 1000000 AS bigint) END"
)
"""The columns that `stored_message` reads, from a table named `m`, with `is_cut` behind them."""
PGLZ_MOST, LZ4_MOST = 88, 255
"""The highest ratios of PostgreSQL's compression methods."""


class Appended(NamedTuple):
    """An appended message, as stored in the log."""

    position: int
    """Its position in the whole log. Positions have gaps."""
    version: int
    """Its version in its stream: 0, 1, 2 and so on."""
    id: UUID
    at: datetime
    """The time of the append by the server's clock, in UTC."""
    is_new: bool
    """False if a message with this id and the same contents already existed."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to append to a stream.

    Args:
        type: the kind of message, such as `"OrderPlaced"`; not empty.
        data: its contents: any value with a JSON form. Dates become text in ISO form, UUIDs and
            decimals become text, dataclasses, pydantic models, attrs classes and msgspec structs
            become objects.
        metadata: a mapping of names to values with a JSON form, for information about the message
            other than its contents, such as a trace; default: none.
        id: its id, a UUID or its text; default: the server creates one. A message with an id is
            appended once, regardless of the number of attempts.

    Raises `ConfigError` for a bad argument: bytes, NaN, infinity, an object of a plain class, the
    character U+0000. The contents are encoded here, so changing `data` later has no effect.
    """

    type: str
    data: object
    metadata: Mapping[str, object] | None = None
    id: UUID | str | None = None
    _texts: tuple[str, str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name_text("type", self.type)
        if self.metadata is not None and not isinstance(cast("object", self.metadata), Mapping):
            raise bad("metadata", type(self.metadata).__name__, "must be a mapping by name")
        texts = (
            to_json(self.type).decode(),
            json_text("data", self.data),
            json_text("metadata", dict(self.metadata or {})),
        )
        object.__setattr__(self, "_texts", texts)
        object.__setattr__(self, "id", message_id(self.id))

    @property
    def type_text(self) -> str:
        """The type, as JSON."""
        return self._texts[0]

    @property
    def data_text(self) -> str:
        """The data, as JSON."""
        return self._texts[1]

    @property
    def metadata_text(self) -> str:
        """The metadata, as a JSON object."""
        return self._texts[2]


def stream_name(value: object) -> str:
    """Check the name of a stream. Raises `ConfigError`."""
    stream = name_text("stream", value)
    if len(stream.encode()) > LONGEST_NAME:
        raise bad("stream", stream, f"must be at most {LONGEST_NAME} bytes long in UTF-8")
    return stream


def expected_version(value: object) -> int | None:
    """Check that the value is a version, `NO_STREAM`, or `None` for any. Raises `ConfigError`."""
    if value is None:
        return None
    try:
        return count("expected", value, least=NO_STREAM)
    except ConfigError:
        rule = "must be the version of the stream's last message, NO_STREAM (-1), or None for any"
        raise bad("expected", value, rule) from None


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
