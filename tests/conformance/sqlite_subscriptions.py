"""A provider of positions and locks of one's own: subscriptions in an SQLite file, shared by the
processes of one machine.

White box: it checks its arguments and opens its file as the providers of the package do.

1. Each object has its own connection, used by one thread at a time. Every call is one transaction
   that begins with the write lock of the file, and waits for it for at most `BUSY` seconds.
2. A lock is a lease with an epoch, as in PostgreSQL. Its time is that of the machine's clock. If
   the clock is changed, a lease ends early, or late by at most its length; the epoch still protects
   the positions.
3. A cancelled call has ended. If it took locks, the rows name their owner, which may take them
   again immediately, and releases them at its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from sluicegate._core import checks
from sluicegate._core.checks import bad
from sluicegate._core.errors import ClosedError
from sluicegate._core.opening import Openable
from sluicegate._core.runtime.threads import in_thread
from sluicegate._core.source import Position
from sluicegate._core.subscriptions import Subscribed, slot_lock

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from sluicegate._core.clock import Clock
    from sluicegate._core.subscriptions import Move, SubscriptionStart

LEASE = 30.0
"""Default lease in seconds."""
BUSY = 5.0
"""The longest wait in seconds for the calls of other processes."""
WAL_TRIES = 10
"""Tries to turn the write-ahead log on while other processes open the same new file."""
_TABLES = (
    """
CREATE TABLE IF NOT EXISTS sluicegate_subscription (
  name TEXT PRIMARY KEY, selection TEXT NOT NULL, point TEXT NOT NULL, earlier TEXT NOT NULL,
  format INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID
""",
    """
CREATE TABLE IF NOT EXISTS sluicegate_subscription_slot (
  name TEXT NOT NULL, slot INTEGER NOT NULL, position INTEGER NOT NULL, metadata TEXT NOT NULL,
  PRIMARY KEY (name, slot)
) WITHOUT ROWID
""",
    """
CREATE TABLE IF NOT EXISTS sluicegate_subscription_lock (
  name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, owner TEXT, kept_at REAL NOT NULL,
  lease REAL NOT NULL
) WITHOUT ROWID
""",
    """
CREATE TABLE IF NOT EXISTS sluicegate_subscription_member (
  name TEXT NOT NULL, member TEXT NOT NULL, seen_at REAL NOT NULL, PRIMARY KEY (name, member)
) WITHOUT ROWID
""",
)
_LOCK = """
INSERT INTO sluicegate_subscription_lock (name, epoch, owner, kept_at, lease)
VALUES (:name, 1, :owner, :now, :lease)
ON CONFLICT (name) DO UPDATE SET
  epoch = epoch + 1, owner = excluded.owner, kept_at = excluded.kept_at, lease = excluded.lease
WHERE owner = :owner OR NOT (owner IS NOT NULL AND abs(:now - kept_at) < lease)
RETURNING epoch
"""
_KEEP = """
UPDATE sluicegate_subscription_lock SET kept_at = :now, lease = :lease
WHERE name = :name AND epoch = :epoch RETURNING name
"""
_UNLOCK = (
    "UPDATE sluicegate_subscription_lock SET owner = NULL WHERE name = :name AND epoch = :epoch"
)
_STORE = """
UPDATE sluicegate_subscription_slot SET position = :after, metadata = :after_metadata
WHERE name = :name AND slot = :slot AND position = :before AND metadata = :before_metadata
  AND :after >= :before
  AND CASE WHEN :epoch IS NULL
    THEN NOT EXISTS (SELECT 1 FROM sluicegate_subscription_lock
      WHERE name = :lock AND owner IS NOT NULL AND abs(:now - kept_at) < lease)
    ELSE :epoch = (SELECT epoch FROM sluicegate_subscription_lock WHERE name = :lock) END
RETURNING slot
"""


class SQLiteSubscriptions(Openable):
    """Positions and locks of subscriptions in an SQLite file.

    For processes of one machine that share a file on a local disk. A lock is a lease: it expires
    after `lease` seconds unless it is extended. A store of a slot whose lock has passed to another
    process is refused. The processes of a subscription are counted, so that they can share its
    slots evenly.

    Args:
        path: the file; created if it does not exist, in an existing folder. The table names begin
            with `sluicegate_subscription`, so the file may contain other tables.
        lease: seconds until a lock expires after it was taken or extended; default 30. The slots of
            a killed process are blocked for this long.
        clock: the source of time; default: the system's.

    Raises `ConfigError` for a bad argument. The constructor does not suspend and does not open the
    file. Opening creates the tables, and raises `ConfigError` for a file that is not an SQLite
    database or not writable. Methods suspend while a thread works, and raise `sqlite3.Error`. A
    cancelled call waits for the thread.
    """

    _run_time = ("_file",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease: float | timedelta = LEASE,
        clock: Clock | None = None,
    ) -> None:
        text = checks.text("path", os.fspath(path))
        if text == ":memory:":
            raise bad("path", text, "must be a file; for memory use MemorySubscriptions")
        self._path = text
        self._lease = checks.seconds("lease", lease, usual=checks.LONG_TIMEOUT)
        self._clock = checks.checked_clock(clock)
        self._file: _File | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        file = _File(self._path)
        await in_thread(file.open)
        stack.push_async_callback(in_thread, file.close)
        self._file = file

    def _open_file(self) -> _File:
        if self._file is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._file

    async def initialize(self, name: str, start: SubscriptionStart) -> bool:
        """Store the start of a subscription unless it exists; return whether it was stored."""
        return await in_thread(self._open_file().initialize, checks.text("name", name), start)

    async def read(self, name: str) -> Subscribed | None:
        """Return the stored subscription; `None` before `initialize`."""
        return await in_thread(self._open_file().read, name)

    async def store(self, name: str, moves: Mapping[int, Move]) -> Collection[int]:
        """Move slots whose stored position has not changed; return these slots.

        Slots whose lock another process has are left out.
        """
        return await in_thread(self._open_file().store, name, moves, self._clock.wall_time())

    @property
    def keep_every(self) -> float | None:
        """Seconds between calls of `keep`: a third of the lease."""
        return self._lease / 3

    async def lock(self, names: Collection[str]) -> Collection[str]:
        """Take each of these locks that is free; return the taken ones."""
        file = self._open_file()
        async with file.turn:
            taken = await in_thread(file.lock, [*names], self._clock.wall_time(), self._lease)
            file.hold(taken)
            return [*taken]

    async def keep(self, names: Collection[str]) -> Collection[str]:
        """Extend these locks; return those still held."""
        return await in_thread(
            self._open_file().keep, [*names], self._clock.wall_time(), self._lease
        )

    async def unlock(self, names: Collection[str]) -> None:
        """Release these locks; locks that are not held are ignored."""
        await in_thread(self._open_file().unlock, [*names])

    async def members(self, name: str) -> int:
        """Count the objects that called this for the subscription within the last lease."""
        return await in_thread(
            self._open_file().members, name, self._clock.wall_time(), self._lease
        )

    def __repr__(self) -> str:
        return f"SQLiteSubscriptions({self._path!r})"


class _File:
    """An open file, and the locks held by it. All methods except `hold` block."""

    _con: sqlite3.Connection

    def __init__(self, path: str) -> None:
        self._path = path
        self._owner = f"{os.getpid()}:{uuid4().hex[:12]}"
        self._held: dict[str, int] = {}
        """The locks taken by this object, with the epochs of their leases."""
        self._using = threading.Lock()
        self.turn = asyncio.Lock()
        """Serializes `lock`, including the call of `hold`."""

    def open(self) -> None:
        """Open the file and create missing tables. Raises `ConfigError`."""
        try:
            self._con = sqlite3.connect(
                self._path, timeout=BUSY, isolation_level=None, check_same_thread=False
            )
            try:
                self._use_wal()
                with self._transaction():
                    for table in _TABLES:
                        self._con.execute(table)
            except BaseException:
                self._con.close()
                raise
        except sqlite3.Error as error:
            rule = f"must be a file that SQLite can write ({error})"
            raise bad("path", self._path, rule) from error

    def _use_wal(self) -> None:
        """Turn the write-ahead log on. SQLite does not wait for other processes here, so retry."""
        for left in reversed(range(WAL_TRIES)):
            try:
                self._con.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not left:
                    raise
                with self._transaction():  # which waits until another process has ended its own
                    continue
            return

    @contextmanager
    def _transaction(self) -> Generator[None]:
        with self._using:
            self._con.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._con.execute("ROLLBACK")
                raise
            self._con.execute("COMMIT")

    def close(self) -> None:
        """Release all locks and memberships of this owner, and close the file."""
        try:
            with self._transaction():
                mine = {"owner": self._owner}
                self._con.execute(
                    "UPDATE sluicegate_subscription_lock SET owner = NULL WHERE owner = :owner",
                    mine,
                )
                self._con.execute(
                    "DELETE FROM sluicegate_subscription_member WHERE member = :owner", mine
                )
        finally:
            self._con.close()

    def _check_format(self, found: int) -> None:
        checks.known_format("path", self._path, found)

    def initialize(self, name: str, start: SubscriptionStart) -> bool:
        """See `SubscriptionState`."""
        with self._transaction():
            made = self._con.execute(
                "INSERT INTO sluicegate_subscription (name, selection, point, earlier) "
                "VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING format",
                (name, start.selection, start.point, json.dumps(sorted(start.earlier))),
            ).fetchall()
            if not made:
                return False
            self._check_format(made[0][0])
            self._con.executemany(
                "INSERT INTO sluicegate_subscription_slot VALUES (?, ?, ?, '')",
                [(name, slot, offset) for slot, offset in start.offsets.items()],
            )
            return True

    def read(self, name: str) -> Subscribed | None:
        """See `SubscriptionState`."""
        with self._using:
            rows = self._con.execute(
                "SELECT u.format, u.selection, u.earlier, s.slot, s.position, s.metadata "
                "FROM sluicegate_subscription u LEFT JOIN sluicegate_subscription_slot s USING (name) "
                "WHERE u.name = ?",
                (name,),
            ).fetchall()
        if not rows:
            return None
        form, selection, earlier, *_ = rows[0]
        self._check_format(form)
        positions = {slot: Position(at, text) for *_, slot, at, text in rows if slot is not None}
        return Subscribed(positions, frozenset(json.loads(earlier)), selection)

    def store(self, name: str, moves: Mapping[int, Move], now: float) -> list[int]:
        """See `SubscriptionState`."""
        moved: list[int] = []
        with self._transaction():
            for slot, (before, after) in moves.items():
                lock = slot_lock(name, slot)
                values = {
                    "name": name,
                    "slot": slot,
                    "before": before.offset,
                    "before_metadata": before.metadata,
                    "after": after.offset,
                    "after_metadata": after.metadata,
                    "lock": lock,
                    "epoch": self._held.get(lock),
                    "now": now,
                }
                moved += [each for (each,) in self._con.execute(_STORE, values).fetchall()]
        return moved

    def lock(self, names: Collection[str], now: float, lease: float) -> dict[str, int]:
        """Take the free locks among these that are not held here; return them with their epochs."""
        taken: dict[str, int] = {}
        with self._transaction():
            for name in names:
                if name not in self._held and name not in taken:
                    values: dict[str, Any] = {"now": now, "lease": lease, "owner": self._owner}
                    for (epoch,) in self._con.execute(_LOCK, {**values, "name": name}).fetchall():
                        taken[name] = epoch
        return taken

    def hold(self, taken: Mapping[str, int]) -> None:
        """Register taken locks, when the caller receives them. Does not block."""
        self._held.update(taken)

    def keep(self, names: Collection[str], now: float, lease: float) -> list[str]:
        """See `SubscriptionLocks`."""
        held: list[str] = []
        with self._transaction():
            for name in dict.fromkeys(names):
                values = {"name": name, "epoch": self._held.get(name), "now": now, "lease": lease}
                if self._con.execute(_KEEP, values).fetchall():
                    held.append(name)
                else:
                    self._held.pop(name, None)
        return held

    def unlock(self, names: Collection[str]) -> None:
        """See `SubscriptionLocks`."""
        with self._transaction():
            for name in names:
                values = {"name": name, "epoch": self._held.pop(name, None)}
                self._con.execute(_UNLOCK, values)

    def members(self, name: str, now: float, lease: float) -> int:
        """See `CountsMembers`."""
        with self._transaction():
            self._con.execute(
                "DELETE FROM sluicegate_subscription_member WHERE name = ? AND abs(? - seen_at) >= ?",
                (name, now, lease),
            )
            self._con.execute(
                "INSERT OR REPLACE INTO sluicegate_subscription_member VALUES (?, ?, ?)",
                (name, self._owner, now),
            )
            ((count,),) = self._con.execute(
                "SELECT count(*) FROM sluicegate_subscription_member WHERE name = ?", (name,)
            ).fetchall()
            return int(count)
