"""Subscriptions in the schema of the log: positions, and leases as locks.

1. A lease is an epoch and a time. A new holder increases the epoch. A store, a keep and an unlock
   state the epoch of their lease, and do not change a row with another epoch.
2. An expired lease still belongs to its holder until another one takes it: the epoch decides.
3. All times are those of the server's clock. If it is set back, they follow: otherwise the slots of
   a process that has died would be kept for hours.
4. Statements lock rows in the order of name and slot, so they cannot deadlock. They skip locked rows:
   a row that another session has locked, such as an operator's, does not delay other slots.
5. The response to a `lock` may be lost. The rows then name their owner, which may take them again
   immediately, and releases them at its end. Each owner therefore has one `lock` in progress at a
   time.
6. A cancelled call usually waits for the end of its statement: a later call finds its complete
   effect, or none.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..._core import checks
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ClosedError
from ..._core.logs import for_log, log_safely
from ..._core.runtime.threads import close_within, uncut
from ..._core.source import Position
from ..._core.subscriptions import Subscribed, locked_slot, slot_lock
from ..client.names import quoted
from ..records.access import SchemaObject
from ..schema.opened import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from ..._core.subscriptions import Move, SubscriptionStart
    from ..client.access import PostgresAccess


logger = logging.getLogger("sluicegate.postgres")

LEASE = 30.0
"""Default lease in seconds."""
_CONNECTIONS = 2
_NOT_FREED = "%r: its locks could not be released; they expire with their leases within %g s (%s)"
_INITIALIZE = """
WITH made AS (
  INSERT INTO {schema}.subscription (name, selection, start, earlier) VALUES ($1, $2, $3, $4)
  ON CONFLICT DO NOTHING RETURNING name
), slots AS (
  INSERT INTO {schema}.subscription_slot (name, slot, position)
  SELECT made.name, s.slot, s.position FROM made, unnest($5::smallint[], $6::bigint[]) AS s (slot, position)
)
SELECT EXISTS (SELECT FROM made)
"""
_READ = """
SELECT u.selection, u.earlier, u.paused, s.slot, s.position, s.metadata, s.paused AS slot_paused,
  s.missed
FROM {schema}.subscription u LEFT JOIN {schema}.subscription_slot s ON s.name = u.name
WHERE u.name = $1
"""
_STORE = """
WITH moves AS (
  SELECT * FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::bigint[])
    AS m (slot, before, before_metadata, after, after_metadata, epoch)
), rows AS (
  SELECT s.slot FROM {schema}.subscription_slot s JOIN moves m ON m.slot = s.slot
  WHERE s.name = $1 ORDER BY s.slot FOR NO KEY UPDATE OF s SKIP LOCKED
), moved AS (
  UPDATE {schema}.subscription_slot s
  SET position = m.after, metadata = m.after_metadata
  FROM moves m JOIN rows r ON r.slot = m.slot
  WHERE s.name = $1 AND s.slot = m.slot AND {may_move}
  RETURNING s.slot
)
SELECT v.slot, true AS is_done FROM moved v
UNION ALL
SELECT s.slot, false FROM {schema}.subscription_slot s JOIN moves m ON m.slot = s.slot
WHERE s.name = $1 AND {may_move} AND s.slot NOT IN (SELECT r.slot FROM rows r)
""".replace(
    "{may_move}",
    """m.after >= m.before AND (s.position, s.metadata) = (m.before, m.before_metadata)
  AND (s.epoch = m.epoch
    OR m.epoch IS NULL AND (s.lease_until IS NULL OR s.lease_until <= clock_timestamp()))""",
)
"""Rows that are locked elsewhere are not done, if they could be moved otherwise."""
_LOCK = """
WITH free AS (
  SELECT s.name, s.slot FROM {schema}.subscription_slot s
  JOIN unnest($1::text[], $2::smallint[]) AS w (name, slot) ON (w.name, w.slot) = (s.name, s.slot)
  WHERE s.lease_until IS NULL OR s.lease_until <= clock_timestamp() OR s.owner = $3
  ORDER BY s.name, s.slot FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE {schema}.subscription_slot s
SET epoch = s.epoch + 1, owner = $3, lease_until = clock_timestamp() + make_interval(secs => $4)
FROM free f WHERE (f.name, f.slot) = (s.name, s.slot)
  AND (s.lease_until IS NULL OR s.lease_until <= clock_timestamp() OR s.owner = $3)
RETURNING s.name, s.slot, s.epoch
"""
_CHANGE = """
WITH given AS (
  SELECT * FROM unnest($1::text[], $2::smallint[], $3::bigint[]) AS w (name, slot, epoch)
), held AS (
  SELECT s.name, s.slot, s.epoch FROM {schema}.subscription_slot s
  JOIN given w ON (w.name, w.slot) = (s.name, s.slot) AND w.epoch = s.epoch
  WHERE $4::float8 IS NULL OR s.lease_until IS NOT NULL
  ORDER BY s.name, s.slot FOR NO KEY UPDATE OF s SKIP LOCKED
), changed AS (
  UPDATE {schema}.subscription_slot s
  SET lease_until = clock_timestamp() + make_interval(secs => $4),
    owner = CASE WHEN $4::float8 IS NOT NULL THEN s.owner END
  FROM held h WHERE (h.name, h.slot, h.epoch) = (s.name, s.slot, s.epoch)
  RETURNING s.name, s.slot
)
SELECT c.name, c.slot, true AS is_done FROM changed c
UNION ALL
SELECT s.name, s.slot, false FROM {schema}.subscription_slot s
JOIN given w ON (w.name, w.slot) = (s.name, s.slot) AND w.epoch = s.epoch
WHERE s.lease_until IS NOT NULL
  AND NOT EXISTS (SELECT FROM held h WHERE (h.name, h.slot) = (s.name, s.slot))
"""
"""Without an interval the locks are released. A free lock is not extended. The locks of rows that are
locked elsewhere are not done.
"""
_MEMBERS = """
WITH seen AS (
  INSERT INTO {schema}.subscription_member AS m (name, member, seen_at)
  SELECT u.name, $2, clock_timestamp() FROM {schema}.subscription u WHERE u.name = $1
  ON CONFLICT (name, member) DO UPDATE SET seen_at = excluded.seen_at
  WHERE m.seen_at <= clock_timestamp() - make_interval(secs => $3::float8 / 3)
), gone AS (
  DELETE FROM {schema}.subscription_member WHERE name = $1 AND member IN (
    SELECT member FROM {schema}.subscription_member
    WHERE name = $1 AND member <> $2 AND seen_at <= clock_timestamp() - make_interval(secs => $3 * 10)
    FOR UPDATE SKIP LOCKED)
)
SELECT 1 + count(*) FILTER (WHERE member <> $2),
  max(seen_at) > clock_timestamp() + interval '5 s' AS is_ahead
FROM {schema}.subscription_member
WHERE name = $1 AND seen_at > clock_timestamp() - make_interval(secs => $3)
"""
_FOLLOW_CLOCK = """
WITH ahead AS (
  SELECT m.member, m.seen_at FROM {schema}.subscription_member m
  WHERE m.name = $1 AND m.seen_at > clock_timestamp() + interval '5 s' ORDER BY m.member FOR UPDATE
), back AS (
  SELECT max(a.seen_at) - statement_timestamp() AS back FROM ahead a
), moved AS (
  UPDATE {schema}.subscription_member m SET seen_at = m.seen_at - b.back
  FROM ahead a, back b WHERE m.name = $1 AND m.member = a.member
), held AS (
  SELECT s.slot, b.back FROM {schema}.subscription_slot s, back b
  WHERE s.name = $1 AND b.back > make_interval(secs => $2)
    AND s.lease_until > statement_timestamp() + b.back
  ORDER BY s.slot FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE {schema}.subscription_slot s SET lease_until = s.lease_until - h.back
FROM held h WHERE s.name = $1 AND s.slot = h.slot
"""
"""Moves the leases back with a clock that was set back, as the members show, which were seen in the
future. A step below the lease leaves them alone: those that began after it are not told from others.
"""
_LEAVE = """
WITH gone AS (DELETE FROM {schema}.subscription_member WHERE member = $1
), held AS (
  SELECT s.name, s.slot FROM {schema}.subscription_slot s WHERE s.owner = $1
  ORDER BY s.name, s.slot FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE {schema}.subscription_slot s SET owner = NULL, lease_until = NULL
FROM held h WHERE (h.name, h.slot) = (s.name, s.slot) AND s.owner = $1
"""
_AGAIN_AFTER = (0.02, 0.1)
"""Seconds before further attempts at locked rows, such as those extended here at the same time."""


class PostgresSubscriptions(SchemaObject):
    """Positions and locks of subscriptions, in the schema of the log in PostgreSQL.

    A lock is a lease: it expires after `lease` seconds, by the server's clock, unless it is
    extended. A store of a slot whose lock has passed to another process is refused. The processes
    of a subscription are counted, so that they can share its slots evenly. Works behind a pooler.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown.
        schema: the schema of the log, created by `sluicegate pg install`; default `"sluicegate"`.
        lease: seconds until a lock expires after it was taken or extended; default 30. The slots of
            a killed process are blocked for this long.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. The constructor does
    not suspend and does not connect. Opening connects, and raises `ConfigError` for a schema that
    is missing or older than this release, with the command that repairs it. Methods suspend, and
    raise asyncpg's errors, or `UnavailableError` without a connection. A cancelled call may have
    taken effect.
    """

    _run_time = ("_connections", "_own")

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str = DEFAULT_SCHEMA,
        lease: float | timedelta = LEASE,
    ) -> None:
        super().__init__(
            dsn,
            schema=schema,
            size=_CONNECTIONS,
            lease=lease,
        )
        self._lease = checks.seconds("lease", lease, usual=checks.LONG_TIMEOUT)
        self._own: _OwnLeases | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)
        self._own = own = _OwnLeases()
        stack.push_async_callback(self._leave, own)

    async def _leave(self, own: _OwnLeases) -> None:
        """Release all held locks within `close_timeout`; otherwise the leases expire."""
        own.epochs.clear()
        try:
            seconds = close_within(self._access.close_timeout)
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + seconds):
                await self._ask(_LEAVE, own.owner)
        except Exception as error:
            log_safely(logger, logging.WARNING, _NOT_FREED, self, self._lease, for_log(error))

    @property
    def _leases(self) -> _OwnLeases:
        if self._own is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._own

    async def _ask(self, statement: str, *arguments: object) -> list[Any]:
        statement = statement.replace("{schema}", quoted(self._schema))
        return await self._opened.fetch(statement, *arguments)

    async def _apply(self, statement: str, *arguments: object) -> list[Any]:
        """Like `_ask`, but cancellation waits for the response, for at most `close_timeout`
        seconds.
        """
        return await uncut(self._ask(statement, *arguments), within=self._access.close_timeout)

    # -- positions ---------------------------------------------------------------------------------

    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        """Store the start of a subscription unless it exists; return whether it was stored."""
        ((is_made,),) = await self._apply(
            _INITIALIZE,
            checks.text("name", name),
            start.selection,
            start.point,
            sorted(start.earlier),
            [*start.offsets],
            [*start.offsets.values()],
        )
        return bool(is_made)

    async def read(self, name: str) -> Subscribed | None:
        """Return the stored subscription; `None` before `initialize`."""
        rows = await self._ask(_READ, name)
        if not rows:
            return None
        slots = [row for row in rows if row["slot"] is not None]
        return Subscribed(
            {row["slot"]: Position(row["position"], row["metadata"]) for row in slots},
            earlier=frozenset(rows[0]["earlier"]),
            selection=rows[0]["selection"],
            is_paused=rows[0]["paused"],
            paused_slots=frozenset(row["slot"] for row in slots if row["slot_paused"]),
            missed=sum(row["missed"] for row in slots),
        )

    async def store(self, name: str, moves: Mapping[int, Move]) -> Collection[int]:
        """Move slots whose stored position has not changed; return these slots.

        Slots whose lock another process has, and those that another session has locked, are left
        out.
        """
        return (await self.try_store(name, moves))[0]

    async def try_store(
        self, name: str, moves: Mapping[int, Move]
    ) -> tuple[Collection[int], Collection[int]]:
        """Like `store`; return the moved slots, and those that another session has locked."""
        done, locked = await self._store(name, moves)
        for seconds in _AGAIN_AFTER:
            if not locked:
                break
            await LOOP_CLOCK.sleep(seconds)
            rest = {slot: moves[slot] for slot in locked}
            moved, locked = await self._store(name, rest)
            done |= moved
        return done, locked

    async def _store(self, name: str, moves: Mapping[int, Move]) -> tuple[set[int], set[int]]:
        """Return the moved slots, and those whose rows were skipped."""
        if not moves:
            return set(), set()
        own = self._leases
        before, after = zip(*moves.values(), strict=True)
        rows = await self._apply(
            _STORE,
            name,
            [*moves],
            [each.offset for each in before],
            [each.metadata for each in before],
            [each.offset for each in after],
            [each.metadata for each in after],
            [own.epochs.get(slot_lock(name, slot)) for slot in moves],
        )
        done = {row["slot"] for row in rows if row["is_done"]}
        return done, {row["slot"] for row in rows} - done

    # -- locks -------------------------------------------------------------------------------------

    @property
    def keep_every(self) -> float | None:
        """Seconds between calls of `keep`: a third of the lease."""
        return self._lease / 3

    async def lock(self, names: Collection[str]) -> Collection[str]:
        """Take each of these locks that is free; return the taken ones. One statement for all.

        Only slots of existing subscriptions can be locked. Raises `ConfigError` for names not of
        the form `SUBSCRIPTION/SLOT`.
        """
        own = self._leases
        async with own.turn:
            wanted = [locked_slot(name) for name in names if name not in own.epochs]
            if not wanted:
                return ()
            rows = await self._apply(_LOCK, *_columns(wanted), own.owner, self._lease)
            taken = {slot_lock(row["name"], row["slot"]): row["epoch"] for row in rows}
            own.epochs.update(taken)
            return [*taken]

    async def keep(self, names: Collection[str]) -> Collection[str]:
        """Extend these locks; return those still held, without those of locked slots."""
        return (await self.try_keep(names))[0]

    async def try_keep(self, names: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        """Like `keep`; return the extended locks, and those of slots that another session has
        locked, which are not extended.
        """
        own = self._leases
        epochs = {name: own.epochs[name] for name in names if name in own.epochs}
        kept, skipped = await self._change(epochs, self._lease)
        own.forget({name: epochs[name] for name in epochs.keys() - kept - skipped})
        return kept, skipped

    async def unlock(self, names: Collection[str]) -> None:
        """Release these locks; locks that are not held are ignored.

        A slot that another session keeps locked is left out: its lease expires.
        """
        own = self._leases
        epochs = {name: own.epochs[name] for name in names if name in own.epochs}
        left = set(epochs)
        for seconds in (0.0, *_AGAIN_AFTER):
            if left:
                await LOOP_CLOCK.sleep(seconds)
                rest = {name: epochs[name] for name in left}
                _, left = await self._change(rest, None)
        own.forget(epochs)  # after an error they still have to be released

    async def _change(
        self, epochs: Mapping[str, int], lease: float | None
    ) -> tuple[set[str], set[str]]:
        """Extend or end these leases; return the locks for which this is done, and those whose rows
        were skipped.
        """
        if not epochs:
            return set(), set()
        slots = [locked_slot(name) for name in epochs]
        rows = await self._apply(_CHANGE, *_columns(slots), [*epochs.values()], lease)
        done = {slot_lock(row["name"], row["slot"]) for row in rows if row["is_done"]}
        return done, {slot_lock(row["name"], row["slot"]) for row in rows} - done

    async def members(self, name: str) -> int:
        """Return the number of processes that called this for the subscription within the last
        lease time.
        """
        ((count, is_ahead),) = await self._ask(_MEMBERS, name, self._leases.owner, self._lease)
        if is_ahead:
            await self._ask(_FOLLOW_CLOCK, name, self._lease)
        return int(count)


class _OwnLeases:
    """The owner of the leases of one opening, and the locks taken by it."""

    def __init__(self) -> None:
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:12]}"
        self.epochs: dict[str, int] = {}
        """The epochs of the leases, by lock."""
        self.turn = asyncio.Lock()

    def forget(self, epochs: Mapping[str, int]) -> None:
        """Forget leases that have ended, unless their locks were taken again in the meantime."""
        for name, epoch in epochs.items():
            if self.epochs.get(name) == epoch:
                del self.epochs[name]


def _columns(slots: Iterable[tuple[str, int]]) -> tuple[list[str], list[int]]:
    names, numbers = zip(*slots, strict=True)
    return [*names], [*numbers]
