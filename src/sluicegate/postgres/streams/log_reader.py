"""Reads the messages of a log, up to its horizon, and delivers them to the claims of slots.

1. The horizon is read first; messages are read in a later statement, and only up to it. A horizon
   remains valid forever, so it is read again only when everything up to it was read.
2. One scan in the order of positions serves many slots; its rows are compared with the cursor of
   their slot. A few slots are read by index, slot by slot. A read is limited in bytes too, but has
   at least one message.
3. A message is decoded by itself (`UndecodableRecord`), and no column fails for others.
4. The search for unread messages probes each slot's index after its position, so an idle slot costs
   no scan.
5. Slots whose cursors are close together form a group, and are read by one scan in the order of
   positions. A group is read up to the first cursor of the next group, and then becomes part of it.
6. The group that is farthest behind comes first. A second group gets half of the room, so that a
   slot with a long backlog does not starve the others; the other groups take turns as the second
   one.
7. Each answer names its server, by the start time. Another one, such as a promoted standby or the
   same server after a crash, may have lost messages and assigned their positions again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._core.source import Fetched, Record, UndecodableRecord, Unread
from ..._core.subscriptions import SLOTS
from ..client.names import quoted
from ..records.access import appender_of, oldest_appender
from ..records.values import entries_of, milliseconds, timestamp_of
from ..schema.opened import opened_schema
from .message import STORED, is_cut, within
from .queries import GIVEN, UnreadQueries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from ..client.connections import Connections
    from ..records.access import OpenAppender
    from .selection import SelectedLog
    from .slots import HeldSlot, SlotBook


# ruff: noqa: S608  # quoted names, and a selection of quoted literals


FEW = 16
"""Maximum number of slots to read by index."""
NEVER = 2**63 - 1
"""The cursor of a slot that is not to be read."""
_COLUMNS = (
    "m.position, m.slot, m.stream, m.type, m.id, m.version, "
    f"{milliseconds('m.at')}, convert_to(m.data::text, 'UTF8'), m.metadata::text"
)
SPREAD = 10_000
"""Maximum number of positions between the cursors of a group."""
_SERVER = "extract(epoch FROM pg_postmaster_start_time())::float8"
TELL_AFTER = 10_000
"""Number of positions without a record after which a slot's position moves nevertheless."""


class PageRows(NamedTuple):
    """The first messages of a page, in the order of their positions."""

    records: Sequence[Record]
    is_cut: bool
    """Whether the limit in bytes has left out others."""
    server: float
    """The start time of the server that answered."""

    @classmethod
    def of(cls, topic: str, rows: Sequence[Any]) -> PageRows:
        """Read rows of `_limit`: a page without messages is one row without a position."""
        server, found = rows[0][0], [row[1:] for row in rows if row[1] is not None]
        return cls([record_of(topic, row) for row in found], is_cut(found), server)


class Horizon(NamedTuple):
    """How far a log may be read, and the last position in use."""

    position: int
    """No message can become visible at or before this position any more."""
    last: int
    """The last position that was assigned."""
    server: float
    """The start time of the server that answered."""


class Seen(NamedTuple):
    """A message that was read."""

    position: int
    id: str


class ServerReplaced(Exception):
    """Another server has answered, whose log may be shorter than the one that was read."""


class LogReader:
    """Reads the selected messages of the log. Methods suspend, and raise client errors."""

    def __init__(self, connections: Connections, selection: SelectedLog) -> None:
        self._connections = connections
        self._topic = selection.topic
        self._name = selection.schema
        self._schema = schema = quoted(selection.schema)
        self._condition = condition = selection.condition
        self._horizon = (
            f"SELECT {schema}.horizon() AS position, "
            f"(SELECT last_value - (NOT is_called)::int FROM {schema}.position) AS last, "
            f"{_SERVER} AS server"
        )
        self._scan = _limit(
            f"SELECT {STORED} FROM {schema}.message m WHERE m.position >= $1 AND "
            f"m.position <= $2 AND m.position >= ($3::bigint[])[m.slot + 1] AND {condition} "
            "ORDER BY m.position LIMIT $4"
        )
        queries = UnreadQueries(schema, GIVEN, condition, "$4")
        self._oldest = queries.oldest("c.slot, extract(epoch FROM r.at)::float8 AS at")
        self._unread = queries.by_slot("$5")
        self._probe = _limit(
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
        (row,) = await self._connections.fetch(self._horizon)
        return Horizon(row["position"], row["last"], row["server"])

    async def server(self) -> float:
        """Return the start time of the server that answers."""
        ((server,),) = await self._connections.fetch(f"SELECT {_SERVER}")
        return float(server)

    async def records(self, page: Page, most_bytes: int) -> PageRows:
        """Return the first messages of a page, of at most `most_bytes` bytes, but at least one."""
        if len(page.slots) <= FEW:
            slots = [held.slot for held in page.slots]
            cursors = [held.cursor for held in page.slots]
            rows = await self._connections.fetch(
                self._probe, slots, cursors, page.last, page.room, most_bytes
            )
        else:
            limits = [NEVER] * SLOTS
            for held in page.slots:
                limits[held.slot] = held.cursor
            given = (page.first, page.last, limits, page.room, most_bytes)
            rows = await self._connections.fetch(self._scan, *given)
        return PageRows.of(self._topic, rows)

    async def span(self, first: int, last: int, most: int, most_bytes: int) -> PageRows:
        """Return the first messages from `first` to `last`, of all slots: at most `most`, of at most
        `most_bytes` bytes, but at least one if there is one.
        """
        rows = await self._connections.fetch(self._scan, first, last, [0] * SLOTS, most, most_bytes)
        return PageRows.of(self._topic, rows)

    async def oldest(
        self, cursors: Mapping[int, int], last: int, earlier: Collection[int]
    ) -> dict[int, float]:
        """Return the append time of the first unread message of each of these slots, in
        milliseconds, up to `last` and without the positions in `earlier`. Slots without unread
        messages are left out.
        """
        rows = await self._connections.fetch(self._oldest, *_arguments(cursors, earlier), last)
        return {row["slot"]: row["at"] for row in rows}

    async def unread(
        self, cursors: Mapping[int, int], last: int, earlier: Collection[int], most: int
    ) -> dict[int, Unread]:
        """Return the number and the age of the unread messages of each of these slots, up to `last`
        and without the positions in `earlier`. Counts at most `most` messages of each slot.
        """
        rows = await self._connections.fetch(
            self._unread, *_arguments(cursors, earlier), last, most
        )
        found = {row["slot"]: Unread(row["messages"], row["seconds"]) for row in rows}
        return {slot: found.get(slot, Unread(0, 0.0)) for slot in cursors}

    async def ends(self, slots: Collection[int]) -> dict[int, int]:
        """Return the offset after the last visible message of each slot; 0 if there is none."""
        rows = await self._connections.fetch(
            "SELECT c.slot, coalesce((SELECT m.position + 1 FROM "
            f"{self._schema}.message m WHERE m.slot = c.slot AND {self._condition} "
            "ORDER BY m.position DESC LIMIT 1), 0) AS over FROM unnest($1::smallint[]) AS c(slot)",
            list(slots),
        )
        return {row["slot"]: row["over"] for row in rows}

    async def last_visible(self) -> tuple[Seen | None, float]:
        """Return the last visible message, of any selection, and the server that answered."""
        (row,) = await self._connections.fetch(
            f"SELECT {_SERVER} AS server, m.position, m.id::text FROM (SELECT) AS one LEFT JOIN "
            f"(SELECT * FROM {self._schema}.message ORDER BY position DESC LIMIT 1) AS m ON true"
        )
        found = None if row["position"] is None else Seen(row["position"], row["id"])
        return found, row["server"]

    async def has(self, seen: Seen) -> bool:
        """Whether the log has this message at its position."""
        rows = await self._connections.fetch(
            f"SELECT FROM {self._schema}.message m WHERE m.position = $1 AND m.id::text = $2", *seen
        )
        return bool(rows)

    async def first_at(self, time: datetime) -> int | None:
        """Return the lowest position of a message of this time or later; `None` if there is none."""
        (
            row,
        ) = await self._connections.fetch(  # OFFSET 0: use the index of `at`, and do not scan from position 1
            "SELECT min(f.position) AS position FROM (SELECT m.position FROM "
            f"{self._schema}.message m WHERE m.at >= $1 AND {self._condition} OFFSET 0) AS f",
            time,
        )
        return row["position"]  # type: ignore[no-any-return]

    async def visible(self, since: int, before: datetime | None, most: int) -> list[int]:
        """Return up to `most` positions from `since` on, of visible messages appended before a
        time.
        """
        rows = await self._connections.fetch(
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
        return appender_of(await self._connections.fetch(oldest_appender(self._schema)))


def _limit(page: str) -> str:
    found = within(_COLUMNS, page, "$5::bigint", "m.position")
    return f"SELECT {_SERVER}, f.* FROM (SELECT) AS one LEFT JOIN ({found}) AS f ON true ORDER BY 2"


def _arguments(cursors: Mapping[int, int], earlier: Collection[int]) -> tuple[object, ...]:
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


class Page(NamedTuple):
    """A part of the log to read: for each slot, the messages from its cursor to `last`."""

    slots: Sequence[HeldSlot]
    first: int
    last: int
    room: int
    """Maximum number of messages to read."""

    def reach(self, positions: Sequence[int], *, is_cut: bool = False) -> int:
        """Return the offset before which everything was read, if the read returned these positions;
        `is_cut`: it has left out others behind them.
        """
        is_whole = len(positions) < self.room and not is_cut
        return self.last + 1 if is_whole else positions[-1] + 1


def pages(wanted: Iterable[HeldSlot], horizon: int, room: int, turn: int) -> list[Page]:
    """Return the next pages, at most two, for `room` messages in all; none if all slots are read.

    `turn` changes with each call.
    """
    groups = _group(wanted, horizon)
    if not groups:
        return []
    ends = [*(group[0].cursor - 1 for group in groups[1:]), horizon]
    chosen = [0]
    if len(groups) > 1 and room > 1:
        chosen.append(1 + turn % (len(groups) - 1))
    elif len(groups) > 1 and turn % 2:
        chosen = [1 + turn // 2 % (len(groups) - 1)]
    shares = [room] if len(chosen) == 1 else [room - room // 2, room // 2]
    return [
        Page(groups[at], groups[at][0].cursor, ends[at], share)
        for at, share in zip(chosen, shares, strict=True)
    ]


def _group(wanted: Iterable[HeldSlot], horizon: int) -> list[list[HeldSlot]]:
    groups: list[list[HeldSlot]] = []
    behind = [held for held in wanted if held.cursor <= horizon]
    for held in sorted(behind, key=lambda held: held.cursor):
        if not groups or held.cursor > groups[-1][0].cursor + SPREAD:
            groups.append([])
        groups[-1].append(held)
    return groups


class StreamDelivery:
    """Fetches of one open source: reads pages of the log, and delivers their messages to claims.

    1. A cancelled fetch has delivered nothing: cursors move in one stretch after the last query,
       and a claim that has ended in the meantime delivers nothing.
    2. Offsets between messages have no record. They are reported to the consumer with the next
       record of the slot, and without one only after `TELL_AFTER` positions, because each report is
       a position to store. A skipped message is reported immediately, so that it is not taken for
       unread.
    3. A horizon, and the pages up to it, are of one server. Another one is accepted only if it has
       the last message that was read, and so has assigned no position before it again, or after all
       claims have ended.
    """

    def __init__(self, log: LogReader, book: SlotBook) -> None:
        self._log = log
        self._book = book
        self._horizon = 0
        self._visible = 0
        """The last message that was seen, in any slot."""
        self._turn = 0
        self.seen: Seen | None = None
        """The last message that was read, or found to exist."""
        self.server: float | None = None
        """The server whose log is read; `None` if that is to be confirmed."""

    def accept(self, server: float, *, is_same_log: bool = True) -> None:
        """Read the log of this server."""
        self.server = server
        self.seen = self.seen if is_same_log else None
        self.rewind()

    def rewind(self) -> None:
        """Forget the state of a server that was lost: a restored one may be older."""
        self._horizon = self._visible = 0
        self._book.rewind()

    async def fetch(self, wanted: Sequence[HeldSlot], most: int, most_bytes: int) -> list[Fetched]:
        """Return the next messages of these slots, up to `most`; an empty list if there are none.

        They have at most `most_bytes` bytes, unless the first of a page is larger.

        Raises client errors, and `ServerReplaced`.
        """
        is_fresh, server = False, self.server
        while True:
            plan = pages(wanted, self._horizon, most, self._turn)
            if not plan and is_fresh:
                return await self._report(wanted)
            if not plan:
                horizon = await self._log.horizon()
                if self.seen is not None and horizon.last < self.seen.position:
                    self.server = None
                self._check(server, horizon.server)
                self._horizon = max(self._horizon, horizon.position)
                is_fresh = True
                continue
            self._turn += 1
            share = max(1, most_bytes // len(plan))
            read = [(page, await self._log.records(page, share)) for page in plan]
            self._check(server, *(rows.server for _, rows in read))
            if found := self._take(read):
                return found

    def _check(self, server: float | None, *answered: float) -> None:
        """Raise `ServerReplaced` unless all is from the server since the beginning of the fetch."""
        if server is None or {self.server, *answered} != {server}:
            raise ServerReplaced

    def _see(self, seen: Seen) -> None:
        self._visible = max(self._visible, seen.position)
        if self.seen is None or seen.position > self.seen.position:
            self.seen = seen

    def _take(self, read: Sequence[tuple[Page, PageRows]]) -> list[Fetched]:
        records: dict[int, list[Record]] = {}
        left_out: set[int] = set()
        for page, (rows, cut, _) in read:
            positions = [row.offset for row in rows]
            if rows:
                self._see(Seen(rows[-1].offset, dict(rows[-1].headers)["id"].decode()))
            reach = page.reach(positions, is_cut=cut)
            for held in page.slots:
                held.read_to(reach)
            earlier = {held.slot: held.earlier for held in page.slots}
            for row in rows:
                if row.offset in earlier[row.partition]:
                    left_out.add(row.partition)
                else:
                    records.setdefault(row.partition, []).append(row)
        slots = [held for page, _ in read for held in page.slots]
        return [
            Fetched(held.claim, records.get(held.slot, ()), held.tell(self._visible + 1))
            for held in slots
            if (held.slot in records or held.slot in left_out) and self._book.holds(held)
        ]

    async def _report(self, wanted: Sequence[HeldSlot]) -> list[Fetched]:
        far = [held for held in wanted if held.cursor - held.told >= TELL_AFTER]
        if far:
            server = self.server
            seen, answered = await self._log.last_visible()
            self._check(server, answered)
            if seen is not None:
                self._see(seen)
        return [
            Fetched(held.claim, (), held.tell(self._visible + 1))
            for held in far
            if self._book.holds(held) and self._visible + 1 > held.told
        ]
