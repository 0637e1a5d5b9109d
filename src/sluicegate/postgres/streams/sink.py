"""The sink for streams in PostgreSQL.

1. All messages of a batch are appended by one `INSERT` (`append_new`), which commits by itself. It
   fails as a whole if an id is already in the log, or if another transaction appends to one of the
   streams concurrently.
2. Then, and if an earlier attempt may have appended them, messages are appended one by one inside
   the server (`append_each`), which answers for each, by default in the order of their streams. So
   a refused item fails alone.
3. Columns are arrays of text, so that codecs of a connection cannot change them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from ..._core.checks import bad
from ..._core.errors import MessageIdConflict
from ..._core.keywords import known_arguments
from ..._core.order.keys import accepted
from ..._core.outcome import Outcome
from ..._core.sink import Capabilities
from ..._core.trace_context import item_traces
from ..client.access import PostgresAccess
from ..client.errors import sqlstate
from ..client.names import quoted
from ..client.notifications import Notifier
from ..records.access import UNIQUE
from ..records.sink import GivenRecords, RecordSink, RecordWrite, getters
from ..records.values import RecordColumns, json_texts_of, mapping_text, name_text, time_of
from ..schema.opened import DEFAULT_SCHEMA, check_may_append
from .log import channel_of, readers_of
from .message import Appended, stream_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncpg import Record
    from asyncpg.pool import PoolConnectionProxy

    from ..._core.batch import Batch
    from ..._core.sink import WriteResult
    from ..._core.trace_context import TraceHeaders
    from ..._core.values.encoding import Getter
    from ..client.connections import Connections
    from ..client.statements import Statements

Answers = tuple["Sequence[int]", "Sequence[Record]"]
"""The places of messages, and the returned rows."""

NEW, KNOWN, OTHER, BEHIND = "new", "known", "other", "behind"

_ANSWER = (
    "SELECT r_id, r_state, r_position, r_version, "
    "CAST(extract(epoch FROM r_at) * 1000000 AS bigint) AS r_at FROM {schema}.{function}("
    "CAST($1 AS text[]), CAST($2 AS text[]), CAST($3 AS text[]), CAST($4 AS text[]), "
    "CAST($5 AS text[])"
)
_MORE = ", NULL, CAST($6 AS int[]), CAST($7 AS boolean)"


@known_arguments(access=PostgresAccess)
class PostgresStreamSink(RecordSink):
    """Appends items as messages to streams in PostgreSQL. Each write is one transaction.
    Readers are notified of commits, at most once per 20 ms.

    An item that cannot become a message, or that the server refuses, fails alone with
    `PermanentError`; the other items are appended. The detail of an appended item's receipt is its
    `Appended`: position, version, id and time.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        schema: the schema in which `sluicegate pg install` has created the log; default
            `"sluicegate"`.
        stream: the field that contains the name of an item's stream, or a function from an item to
            it. Also use it as the batcher's `key=`, so that the messages of a stream are appended
            in the order of their items.
        type: the field that contains a message's type, or a function from an item to it.
        data: the field that contains a message's contents, or a function from an item to it;
            default: the item itself. Contents must be representable in JSON, as in `NewMessage`.
        metadata: the field that contains a mapping with string keys, or a function from an item to
            it; default: none.
        id: the field that contains a message's id (a UUID or the text of one, or `None` for a new
            one), or a function from an item to it. A message whose id is already in the log, with
            the same contents, is delivered and not appended again. Default: an id that is the same
            in every retry of a write, so that no retry appends a message twice.
        pool_size: number of connections, and therefore of concurrent writes; default 10.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Constructing does
    not suspend and connects to nothing. Opening suspends; it connects and looks up the log. It
    raises `ConfigError` for a schema without a log or with an older one, and for a wrong user,
    password, database or certificate, and `UnavailableError` if no server responds.
    """

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str = DEFAULT_SCHEMA,
        stream: str | Callable[[Any], str],
        type: str | Callable[[Any], str],  # noqa: A002  # the part's name
        data: str | Callable[[Any], object] | None = None,
        metadata: str | Callable[[Any], Mapping[str, object] | None] | None = None,
        id: str | Callable[[Any], object] | None = None,  # noqa: A002  # the part's name
        pool_size: int | None = None,
    ) -> None:
        super().__init__(dsn, schema=schema, pool_size=pool_size)
        for name, part in (("stream", stream), ("type", type)):
            if part is None:
                raise bad(name, None, "must be a field's name or a function of an item")
        self._parts = getters(stream=stream, type=type, data=data, metadata=metadata, id=id)

    @property
    def capabilities(self) -> Capabilities:
        """As many concurrent writes as connections; idempotent if items have their own ids.

        `key_prefix_safe`: in a batch with keys, nothing is appended after a refused item of the
        same key.
        """
        return Capabilities(
            key_prefix_safe=True,
            idempotent=self._parts["id"] is not None,
            max_concurrency=self._access.size,
        )

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        """Append every item of `batch`, in order; suspends for one round trip, or for a few if
        items are refused, and while another transaction that appends to one of the streams is open.

        Returns the refused items (`PermanentError`, `MessageIdConflict`, and `KeyStopped` after a
        refused item of their key), the items that an earlier attempt with an
        unknown outcome had appended (`duplicate`), and an `Appended` for each appended item. Raises
        `ClosedError` while the sink is not open, `RefusedError` if the server refuses every message
        until an operator repairs the cause (a login, a permission, no log), `UnavailableError` if
        no connection can be opened, `UnknownOutcomeError` if the connection was lost, and the
        server's own error for any other failure that is not caused by an item. After such an error
        nothing is appended, or, if the outcome is unknown, all or nothing; a retry resolves this.
        Cancellation cancels the statement, which may have been applied.
        """
        return await self._write(batch)

    def _write_of(self, batch: Batch[Any], items: Sequence[Any]) -> _StreamWrite:
        given = _GivenMessages(
            MessageColumns(), self._parts, items, batch.item_keys(), item_traces(batch)
        )
        return _StreamWrite(self._schema, self._access.place, self._nothing_done, batch, given)

    async def _look_up(self, con: PoolConnectionProxy[Any]) -> None:
        await check_may_append(con, self._schema)

    def _notifier_on(self, connections: Connections) -> Notifier:
        return Notifier(connections, channel_of(self._schema), readers_of(self._schema))

    @property
    def _nothing_done(self) -> str:
        return f"nothing appended to {self._schema!r}"


@dataclass(slots=True)
class MessageColumns(RecordColumns):
    """Messages to append, as parallel columns."""

    streams: list[str] = field(default_factory=list[str])
    types: list[str] = field(default_factory=list[str])
    data: list[str] = field(default_factory=list[str])
    metadata: list[str] = field(default_factory=list[str])
    ids: list[str] = field(default_factory=list[str])

    @property
    def texts(self) -> tuple[list[str], ...]:
        """The parameters of `append_new`."""
        return self.streams, self.types, self.data, self.metadata, self.ids


class _GivenMessages(GivenRecords[MessageColumns]):
    """The messages of a batch."""

    _kind = "message"
    _namespace = UUID("a4b51d43-5a5c-4a8e-9b0c-6d0f7a0c2a51")

    def _enter(self, item: Any, token: str, trace: TraceHeaders) -> Any:
        parts, columns = self._parts, self.columns
        stream, kind = cast("Getter", parts["stream"]), cast("Getter", parts["type"])
        columns.streams.append(stream_name(stream(item)))
        columns.types.append(name_text("type", kind(item)))
        metadata = None if (part := parts["metadata"]) is None else part(item)
        columns.metadata.append(_metadata(metadata, trace))
        columns.ids.append(self._id(item, token))
        return item if (part := parts["data"]) is None else part(item)

    def _encode(self, contents: Sequence[Any]) -> Mapping[int, Exception]:
        texts, faults = json_texts_of("data", contents)
        self.columns.data.extend(texts)
        return faults


def _metadata(value: object, trace: TraceHeaders) -> str:
    return "{}" if value is None and not trace else mapping_text("metadata", value, trace)


class _StreamWrite(RecordWrite[MessageColumns]):
    """Appends the messages of one batch."""

    _right = "--append"

    def __init__(
        self,
        schema: str,
        place: str,
        nothing_done: str,
        batch: Batch[Any],
        given: _GivenMessages,
    ) -> None:
        super().__init__(schema, place, nothing_done, batch, given)
        self._groups = _groups(batch.keys)

    async def run(self, con: PoolConnectionProxy[Any], statements: Statements) -> None:
        """See `RecordWrite`."""
        places = range(len(self._given.indices))
        await self._write(con, places, self._together(con, statements, places))

    async def _together(
        self, con: PoolConnectionProxy[Any], statements: Statements, places: Sequence[int]
    ) -> Answers:
        try:
            async with statements.block(con):
                return await self._append(con, places)
        except Exception as error:
            if self._batch.maybe_applied or sqlstate(error) != UNIQUE:
                raise
            async with statements.block(con):
                return await self._send(con, places)

    async def _append(self, con: PoolConnectionProxy[Any], places: Sequence[int]) -> Answers:
        """Append all messages by one `INSERT`, if that is possible."""
        if self._batch.maybe_applied:
            return await self._send(con, places)
        columns = self._given.columns
        rows = await con.fetch(_new_statement(self._schema), *columns.texts)
        place_of = {id_: place for place, id_ in enumerate(columns.ids)}
        return [place_of[row[0]] for row in rows], rows

    async def _send(self, con: PoolConnectionProxy[Any], places: Sequence[int]) -> Answers:
        """Append messages one by one inside the server."""
        columns = self._given.columns.pick(places)
        groups = None
        if (of_batch := self._groups) is not None:
            groups = [of_batch[self._given.indices[place]] for place in places]
        statement = _each_statement(self._schema)
        in_order = groups is not None and _are_mixed(groups, columns.streams)
        rows = await con.fetch(statement, *columns.texts, groups, in_order)
        if not in_order:
            places = sorted(places, key=lambda place: self._given.columns.streams[place].encode())
        return places, rows

    def _note(self, answers: Answers) -> None:
        indices, columns = self._given.indices, self._given.columns
        maybe = self._batch.maybe_applied
        places, rows = answers
        for place, row in zip(places, rows, strict=True):
            index, stream = indices[place], columns.streams[place]
            id_, state, position, version, at = row.values()
            if state in {NEW, KNOWN}:
                is_new = state == NEW
                self._details[index] = Appended(position, version, UUID(id_), time_of(at), is_new)
                if not is_new and index in maybe:
                    self._outcomes[index] = Outcome.DUPLICATE
            elif state == OTHER:
                why = f"the id {columns.ids[place]} belongs to another message in the log"
                self._fail(place, MessageIdConflict(stream, why))
            else:
                assert state == BEHIND, state  # the only remaining state


def _groups(keys: Sequence[object] | None) -> list[int] | None:
    """A number for each item, the same for equal keys."""
    if keys is None:
        return None
    numbers: dict[object, int] = {}
    return [numbers.setdefault(accepted(key), len(numbers)) for key in keys]


def _are_mixed(groups: Sequence[int], streams: Sequence[str]) -> bool:
    """Whether a group has messages of several streams."""
    return len({*zip(groups, streams, strict=True)}) > len({*groups})


def _new_statement(schema: str) -> str:
    """Return the statement that calls `append_new`."""
    return _ANSWER.format(schema=quoted(schema), function="append_new") + ")"


def _each_statement(schema: str) -> str:
    """Return the statement that calls `append_each`."""
    return _ANSWER.format(schema=quoted(schema), function="append_each") + _MORE + ")"
