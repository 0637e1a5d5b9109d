"""Locks of subscriptions as advisory locks of a session in PostgreSQL.

1. One connection has all locks. They end with its session, immediately: a killed process does not
   keep slots from the others, nor does a process whose connection breaks.
2. A process notices the end of its session at the next `keep`. Another process may have its locks
   by then. Only the positions reveal this: a store states the position that it follows.
3. A frozen process keeps its session, and so its locks, until it is killed or the server drops the
   connection. Leases would expire; these locks do not.
4. The key of a lock is negative, to keep it apart from the marks of appenders.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..._core import checks
from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ClosedError, ConfigError
from ..._core.opening import Openable
from ..._core.runtime.threads import close_within, uncut
from ..client.access import Access, PostgresAccess, access_of, need_asyncpg
from ..client.connections import Connections
from ..client.errors import is_gone
from ..client.refusals import for_opening
from ..client.statements import is_pooled
from ..schema.opened import DEFAULT_SCHEMA, check_schema_name

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

_LOCK = "SELECT key FROM unnest($1::bigint[]) AS w (key) WHERE pg_try_advisory_lock(key)"
_UNLOCK = "SELECT pg_advisory_unlock(key) FROM unnest($1::bigint[]) AS w (key)"


class PostgresAdvisoryLocks(Openable):
    """Locks of subscriptions as advisory locks of one session in PostgreSQL.

    A lock ends with the session, so another process can take it as soon as its holder is killed.
    Prefer `PostgresSubscriptions` unless you need this: its leases also expire if a process is
    frozen or disconnected, and late stores are refused.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess` without a pool.
            Never shown.
        schema: the schema of the log; the same name in another schema is a different lock. Default
            `"sluicegate"`.
        keep_every: seconds between two checks of the session, and the limit of the wait for each
            response, which is 20 at most; default 5.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. The constructor does
    not suspend and does not connect. Opening connects, and raises `ConfigError` behind a pooler,
    where clients share sessions. Methods suspend, and raise asyncpg's errors, or `UnavailableError`
    without a connection.
    """

    _run_time = ("_session",)

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str = DEFAULT_SCHEMA,
        keep_every: float | timedelta = 5.0,
    ) -> None:
        need_asyncpg()
        self._keep_every = checks.seconds("keep_every", keep_every, usual=checks.LONG_TIMEOUT)
        access = Access.of(access_of(dsn, lends=False), size=1)
        within = min(self._keep_every, access.answer_timeout)
        self._access = replace(access, answer_timeout=within)
        self._schema = check_schema_name(schema)
        self._session: _Session | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        connections = await Connections.to(self._access)
        stack.push_async_callback(connections.close)
        try:
            async with connections.opening() as con:
                await _check_own_session(con, self._access.place)
        except ConfigError:
            raise
        except Exception as error:
            raise for_opening(error, self._access.place)  # noqa: B904  # it has a cause
        self._session = _Session(connections, self._access.place, self._access.close_timeout)
        stack.push_async_callback(self._session.end)

    def _current(self) -> _Session:
        if self._session is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._session

    @property
    def keep_every(self) -> float | None:
        """Seconds between calls of `keep`, which check whether the session has ended."""
        return self._keep_every

    async def lock(self, names: Collection[str]) -> Collection[str]:
        """Take each of these locks that is free; return the taken ones. Reconnects if necessary."""
        keys = {_key_of(self._schema, name): name for name in names}
        session = self._current()
        taken = await uncut(session.lock([*keys]), within=self._access.close_timeout)
        session.report(taken)
        return [keys[key] for key in taken]

    async def keep(self, names: Collection[str]) -> Collection[str]:
        """Check the session; return the locks still held: none if the session has ended."""
        held = await self._current().look()
        return [name for name in names if _key_of(self._schema, name) in held]

    async def unlock(self, names: Collection[str]) -> None:
        """Release these locks; locks that are not held are ignored."""
        keys = [_key_of(self._schema, name) for name in names]
        await uncut(self._current().unlock(keys), within=self._access.close_timeout)

    def __repr__(self) -> str:
        return f"PostgresAdvisoryLocks({self._access.place}, schema={self._schema!r})"


class _Session:
    """The current session that has the locks, and the keys of the held locks."""

    def __init__(self, connections: Connections, place: str, close_timeout: float) -> None:
        self._connections = connections
        self._place = place
        self._close_timeout = close_timeout
        self._con: PoolConnectionProxy[Any] | None = None
        self._held: set[int] = set()
        self._unreported: set[int] = set()
        """Locks of a cancelled call. They may be taken again, and released."""
        self._turn = asyncio.Lock()

    async def connect(self) -> PoolConnectionProxy[Any]:
        """Return the connection; a new one without locks if the last one has broken."""
        if self._con is not None and not is_gone(self._con):
            return self._con
        await self._drop()
        con = await self._connections.borrow_soon()
        try:
            await _check_own_session(self._connections.answering(con), self._place)
        except BaseException:
            if not is_gone(con):
                con.terminate()
            await self._connections.give_back(con, None)
            raise
        self._con = con
        return con

    async def lock(self, keys: Collection[int]) -> Collection[int]:
        """Take each of these locks that is free."""
        async with self._turn:
            con = await self.connect()
            wanted = [key for key in keys if key not in self._held]
            rows = await self._ask(con, _LOCK, wanted)
            taken = {row["key"] for row in rows}
            again = self._unreported & {*keys}
            self._held |= taken
            self._unreported |= taken
            return taken | again

    def report(self, keys: Collection[int]) -> None:
        """Record that the caller of `lock` has received these."""
        self._unreported -= {*keys}

    async def look(self) -> Collection[int]:
        """Return the keys of the held locks after the server has answered in time."""
        async with self._turn:
            if self._con is None:
                return ()
            try:
                await self._connections.answering(self._con).execute("SELECT")
            except Exception:
                await self._drop()
            return frozenset(self._held)

    async def unlock(self, keys: Collection[int]) -> None:
        """Release the held locks. If the session does not answer, its end releases them."""
        async with self._turn:
            mine = self._held & {*keys}
            if self._con is not None:
                with contextlib.suppress(Exception):
                    await self._ask(self._con, _UNLOCK, [*mine])
            self._held -= mine
            self._unreported -= mine

    async def _ask(
        self, con: PoolConnectionProxy[Any], statement: str, keys: Sequence[int]
    ) -> Sequence[asyncpg.Record]:
        """Return the response. Without one the locks are in an unknown state, and the session
        ends.
        """
        if not keys:
            return ()
        try:
            found: list[asyncpg.Record] = await self._connections.answering(con).fetch(
                statement, keys
            )
        except BaseException:
            await self._drop()
            raise
        return found

    async def end(self) -> None:
        """Release the locks and end the session, within `close_timeout`.

        The server also releases them when it notices the end of the session, which may be later.
        """
        seconds = close_within(self._close_timeout)
        with contextlib.suppress(TimeoutError):
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + seconds), self._turn:
                try:
                    if self._con is not None and not is_gone(self._con):
                        with contextlib.suppress(Exception):  # then the session's end does it
                            await self._con.execute("SELECT pg_advisory_unlock_all()")
                finally:
                    await self._drop()

    async def _drop(self) -> None:
        self._held, self._unreported = set(), set()
        con, self._con = self._con, None
        if con is not None:
            if not is_gone(con):
                con.terminate()
            await self._connections.give_back(con, None)


async def _check_own_session(con: PoolConnectionProxy[Any], place: str) -> None:
    """Raise `ConfigError` behind a pooler."""
    if await is_pooled(con):
        rule = (
            "leads through a pooler, where clients share sessions: a lock would stay with another client. "
            "Give the server's own address, or use PostgresSubscriptions"
        )
        raise bad("dsn", place, rule)


def _key_of(schema: str, name: str) -> int:
    digest = hashlib.sha256(f"{schema}\0{name}".encode()).digest()
    return -1 - (int.from_bytes(digest[:8], "big") >> 1)
