"""Reads the messages of a log, up to its horizon.

1. The horizon is read first; messages are read in a later statement, and only up to it. A horizon
   remains valid forever, so it is read again only when everything up to it was read.
2. One scan in the order of positions serves many slots; its rows are compared with the cursor of
   their slot. A few slots are read by index, slot by slot. A read is limited in bytes too, but has
   at least one message.
3. A message is decoded by itself (`UndecodableRecord`), and no column fails for others.
4. The search for unread messages probes each slot's index after its position, so an idle slot costs
   no scan.
"""

# ruff: noqa: S608  # quoted names, and a selection of quoted literals

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ...._core.source import Record, UndecodableRecord, Unread
from ...._core.subscriptions import SLOTS
from ...client.names import quoted
from ...records.values import entries_of, milliseconds, timestamp_of
from ...schema.opened import opened_schema
from ..messages.appender import appender_of, oldest_appender
from ..messages.stored import STORED, is_cut, within
from ..messages.unread import GIVEN, UnreadQueries

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from ...client.connections import Connections
    from ..messages.appender import OpenAppender
    from .pages import Page
    from .selection import SelectedLog

FEW = 16
"""The most slots to read by index."""
NEVER = 2**63 - 1
"""The cursor of a slot that is not to be read."""
_COLUMNS = (
    "m.position, m.slot, m.stream, m.type, m.id, m.version, "
    f"{milliseconds('m.at')}, convert_to(m.data::text, 'UTF8'), m.metadata::text"
)


class PageRows(NamedTuple):
    """The first messages of a page, in the order of their positions."""

    records: Sequence[Record]
    is_cut: bool
    """Whether the limit in bytes has left out others."""


class Horizon(NamedTuple):
    """How far a log may be read, and the last position in use."""

    position: int
    """No message can become visible at or before this position any more."""
    last: int
    """The last position that was assigned."""


class LogReader:
    """Reads the selected messages of the log. Methods suspend, and raise errors of the client."""

    def __init__(self, connections: Connections, selection: SelectedLog) -> None:
        self._connections = connections
        self._topic = selection.topic
        self._name = selection.schema
        self._schema = schema = quoted(selection.schema)
        self._condition = condition = selection.condition
        self._horizon = (
            f"SELECT {schema}.horizon() AS position, "
            f"(SELECT last_value - (NOT is_called)::int FROM {schema}.position) AS last"
        )
        self._scan = _limited(
            f"SELECT {STORED} FROM {schema}.message m WHERE m.position >= $1 AND "
            f"m.position <= $2 AND m.position >= ($3::bigint[])[m.slot + 1] AND {condition} "
            "ORDER BY m.position LIMIT $4"
        )
        queries = UnreadQueries(schema, GIVEN, condition, "$4")
        self._oldest = queries.oldest("c.slot, extract(epoch FROM r.at)::float8 AS at")
        self._unread = queries.by_slot("$5")
        self._probe = _limited(
            "SELECT r.* FROM unnest($1::smallint[], $2::bigint[]) AS c(slot, cursor) "
            f"CROSS JOIN LATERAL (SELECT {STORED} FROM {schema}.message m WHERE m.slot = c.slot "
            f"AND m.position >= c.cursor AND m.position <= $3 AND {condition} "
            "ORDER BY m.position LIMIT $4) AS r ORDER BY r.position LIMIT $4"
        )

    async def check(self) -> None:
        """Raise `ConfigError` for a schema that is missing, too old or not accessible."""
        async with self._connections.asking() as con:
            await opened_schema(con, self._name)

    async def horizon(self) -> Horizon:
        """Return the current horizon, on the primary server."""
        (row,) = await self._fetch(self._horizon)
        return Horizon(row["position"], row["last"])

    async def records(self, page: Page, most_bytes: int) -> PageRows:
        """Return the first messages of a page, of at most `most_bytes` bytes, but at least one."""
        if len(page.slots) <= FEW:
            slots = [held.slot for held in page.slots]
            cursors = [held.cursor for held in page.slots]
            rows = await self._fetch(self._probe, slots, cursors, page.last, page.room, most_bytes)
        else:
            limits = [NEVER] * SLOTS
            for held in page.slots:
                limits[held.slot] = held.cursor
            given = (page.first, page.last, limits, page.room, most_bytes)
            rows = await self._fetch(self._scan, *given)
        return PageRows([record_of(self._topic, row) for row in rows], is_cut(rows))

    async def span(self, first: int, last: int, most: int, most_bytes: int) -> PageRows:
        """Return the first messages from `first` to `last`, of all slots: at most `most`, of at most
        `most_bytes` bytes, but at least one if there is one.
        """
        rows = await self._fetch(self._scan, first, last, [0] * SLOTS, most, most_bytes)
        return PageRows([record_of(self._topic, row) for row in rows], is_cut(rows))

    async def oldest(
        self, cursors: Mapping[int, int], last: int, earlier: Collection[int]
    ) -> dict[int, float]:
        """Return the append time of the first unread message of each of these slots, in
        milliseconds, up to `last` and without the positions in `earlier`. Slots without unread
        messages are left out.
        """
        rows = await self._fetch(self._oldest, *_given(cursors, earlier), last)
        return {row["slot"]: row["at"] for row in rows}

    async def unread(
        self, cursors: Mapping[int, int], last: int, earlier: Collection[int], most: int
    ) -> dict[int, Unread]:
        """Return the number and the age of the unread messages of each of these slots, up to `last`
        and without the positions in `earlier`. Counts at most `most` messages of each slot.
        """
        rows = await self._fetch(self._unread, *_given(cursors, earlier), last, most)
        found = {row["slot"]: Unread(row["messages"], row["seconds"]) for row in rows}
        return {slot: found.get(slot, Unread(0, 0.0)) for slot in cursors}

    async def ends(self, slots: Collection[int]) -> dict[int, int]:
        """Return the offset after the last visible message of each slot; 0 if there is none."""
        rows = await self._fetch(
            "SELECT c.slot, coalesce((SELECT m.position + 1 FROM "
            f"{self._schema}.message m WHERE m.slot = c.slot AND {self._condition} "
            "ORDER BY m.position DESC LIMIT 1), 0) AS over FROM unnest($1::smallint[]) AS c(slot)",
            list(slots),
        )
        return {row["slot"]: row["over"] for row in rows}

    async def last_visible(self) -> int:
        """Return the position of the last visible message, of any selection; 0 if there is none."""
        (row,) = await self._fetch(
            f"SELECT coalesce(max(m.position), 0) AS position FROM {self._schema}.message m"
        )
        return int(row["position"])

    async def first_at(self, time: datetime) -> int | None:
        """Return the lowest position of a message of this time or later; `None` if there is none."""
        (
            row,
        ) = await self._fetch(  # OFFSET 0: use the index of `at`, and do not scan from position 1
            "SELECT min(f.position) AS position FROM (SELECT m.position FROM "
            f"{self._schema}.message m WHERE m.at >= $1 AND {self._condition} OFFSET 0) AS f",
            time,
        )
        return row["position"]  # type: ignore[no-any-return]

    async def visible(self, since: int, before: datetime | None, most: int) -> list[int]:
        """Return up to `most` positions from `since` on, of visible messages appended before a
        time.
        """
        rows = await self._fetch(
            f"SELECT m.position FROM {self._schema}.message m WHERE m.position >= $1 "
            f"AND m.at < coalesce($2::timestamptz, 'infinity') AND {self._condition} "
            "ORDER BY m.position LIMIT $3",
            since,
            before,
            most,
        )
        return [row["position"] for row in rows]

    async def oldest_appender(self) -> OpenAppender | None:
        """Return the open transaction that holds back the horizon, if any."""
        return appender_of(await self._fetch(oldest_appender(self._schema)))

    async def _fetch(self, query: str, *arguments: object) -> Sequence[Any]:
        async with self._connections.asking() as con:
            rows: Sequence[Any] = await con.fetch(query, *arguments)
            return rows


def _limited(page: str) -> str:
    return within(_COLUMNS, page, "$5::bigint", "m.position")


def _given(cursors: Mapping[int, int], earlier: Collection[int]) -> tuple[object, ...]:
    """Build the arguments of `GIVEN`, with the unread positions of `earlier`."""
    least = min(cursors.values(), default=0)
    return list(cursors), list(cursors.values()), [each for each in earlier if each >= least]


def record_of(topic: str, row: Any) -> Record:
    """Build the record of a row of `_COLUMNS`; undecodable metadata is a header, as text."""
    position, slot, stream, kind, message_id, version, at, data, metadata, _ = row
    headers, error = entries_of("metadata", metadata)
    headers += [
        ("type", _utf8(kind)),
        ("id", str(message_id).encode()),
        ("version", b"%d" % version),
    ]
    found = (topic, slot, position, stream, data, headers, timestamp_of(at))
    return Record(*found) if error is None else UndecodableRecord(*found, error=error)


_utf8 = lru_cache(256)(str.encode)
