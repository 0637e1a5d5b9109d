"""Many messages of several streams in one call: parallel columns, the statements, the answers.

1. `append_new` is one `INSERT` of all messages. It fails as a whole if an id is already in the log,
   or if another transaction appends to one of the streams concurrently.
2. `append_each` then processes them one by one in the server, and answers for each, by default in
   the order of their streams.
3. Columns are arrays of text, so that codecs of a connection cannot change them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from ...client.names import quoted
from .message import Appended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Record

NEW, KNOWN, OTHER, VERSION, BEHIND = "new", "known", "other", "version", "behind"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ANSWER = (
    "SELECT r_id, r_state, r_position, r_version, "
    "CAST(extract(epoch FROM r_at) * 1000000 AS bigint) AS r_at FROM {schema}.{function}("
    "CAST($1 AS text[]), CAST($2 AS text[]), CAST($3 AS text[]), CAST($4 AS text[]), "
    "CAST($5 AS text[])"
)
_MORE = ", CAST($6 AS bigint[]), CAST($7 AS int[]), CAST($8 AS boolean)"


class MessageAnswer(NamedTuple):
    """The result of one message."""

    state: str
    version: int | None
    """The version of the message; if the state is `VERSION`, of the stream."""
    appended: Appended | None
    """Set if the state is `NEW` or `KNOWN`."""

    @classmethod
    def of(cls, row: Record) -> MessageAnswer:
        """Read a row."""
        id_, state, position, version, at = row.values()
        if state not in {NEW, KNOWN}:
            return cls(state, version, None)
        when = _EPOCH + timedelta(microseconds=at)
        return cls(state, version, Appended(position, version, UUID(id_), when, state == NEW))


@dataclass(slots=True)
class MessageColumns:
    """Messages to append, as parallel columns."""

    streams: list[str] = field(default_factory=list[str])
    types: list[str] = field(default_factory=list[str])
    data: list[str] = field(default_factory=list[str])
    metadata: list[str] = field(default_factory=list[str])
    ids: list[str] = field(default_factory=list[str])
    expected: list[int | None] = field(default_factory=list["int | None"])

    def __len__(self) -> int:
        return len(self.streams)

    def kept(self, places: Sequence[int]) -> MessageColumns:
        """Return the messages at these places."""
        streams, types, data, metadata, ids = (
            [column[place] for place in places] for column in self.texts
        )
        expected = [self.expected[place] for place in places]
        return MessageColumns(streams, types, data, metadata, ids, expected)

    @property
    def texts(self) -> tuple[list[str], ...]:
        """The parameters of `append_new`."""
        return self.streams, self.types, self.data, self.metadata, self.ids


def new_statement(schema: str) -> str:
    """Return the statement that calls `append_new`."""
    return _ANSWER.format(schema=quoted(schema), function="append_new") + ")"


def each_statement(schema: str) -> str:
    """Return the statement that calls `append_each`."""
    return _ANSWER.format(schema=quoted(schema), function="append_each") + _MORE + ")"
