"""Locks of subscriptions as advisory locks of a session in PostgreSQL.

1. One connection has all locks. They end with its session, at once: a process that is killed keeps
   no slot from the others, and neither does one whose connection breaks.
2. A process learns of the end of its session at the next `keep`. Another one may have its locks by
   then, which only the positions tell: a store names the position that it follows.
3. A frozen process keeps its session, and so its locks, until it is killed or the server gives the
   connection up. Leases end that; these locks do not.
4. The key of a lock is negative, which keeps it apart from the marks of appenders.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

from ...._clients.postgres.access import Access, need_asyncpg
from ...._clients.postgres.connections import Connections
from ...._clients.postgres.errors import is_gone
from ...._clients.postgres.refusals import for_opening
from ...._clients.postgres.schema.opened import DEFAULT_SCHEMA, check_schema_name
from ...._clients.postgres.statements import is_pooled
from ...._core import checks
from ...._core.checks import bad
from ...._core.clock import LOOP_CLOCK
from ...._core.errors import ClosedError, ConfigError
from ...._core.opening import Openable
from ...._core.threads import uncut

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AsyncExitStack
    from datetime import timedelta

    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

_LOCK = "SELECT key FROM unnest($1::bigint[]) AS w (key) WHERE pg_try_advisory_lock(key)"
_UNLOCK = "SELECT pg_advisory_unlock(key) FROM unnest($1::bigint[]) AS w (key)"


class PostgresAdvisoryLocks(Openable):
    """Locks of subscriptions as advisory locks of one session in PostgreSQL.

    A lock ends with the session, so another process has it at once when its holder is killed.
    Choose `PostgresSubscriptions` instead, whose leases also end where a process is frozen or cut
    off, and which refuse its late stores, unless the locks must end at once.

    Args:
        dsn: the server, as `postgresql://USER:PASSWORD@HOST/DATABASE`. Never shown.
        schema: the schema of the log; the same names in another one are other locks. Default
            `"penstock"`.
        keep_every: seconds between two looks at the session, and for the answer to one; default 5.
        connect_options: any options of `asyncpg.create_pool`.
        close_timeout: seconds for the end of a cancelled call and for closing; default 5.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Constructing does
    not suspend and connects to nothing. Opening connects, and raises `ConfigError` behind a pooler,
    where sessions are lent. Methods suspend, and raise `UnavailableError` without a connection and
    asyncpg's errors.
    """

    _run_time = ("_session",)

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        keep_every: float | timedelta = 5.0,
        connect_options: Mapping[str, Any] | None = None,
        close_timeout: float | timedelta = 5.0,
    ) -> None:
        need_asyncpg()
        self._access = Access.of(
            dsn,
            pool=None,
            close_pool=None,
            size=1,
            options=connect_options,
            timeout=None,
            prepared="auto",
        )
        self._schema = check_schema_name(schema)
        self._keep_every = checks.seconds("keep_every", keep_every, usual=checks.LONG_TIMEOUT)
        self._close_timeout = checks.seconds(
            "close_timeout", close_timeout, usual=checks.LONG_TIMEOUT
        )
        self._session: _Session | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        connections = await Connections.to(self._access, self._close_timeout)
        stack.push_async_callback(connections.close)
        try:
            async with connections.opening() as con:
                await _check_own_session(con, self._access.place)
        except ConfigError:
            raise
        except Exception as error:
            raise for_opening(error, self._access.place)  # noqa: B904  # it has its cause
        self._session = _Session(connections, self._access.place)
        stack.push_async_callback(self._session.end)

    def _opened(self) -> _Session:
        if self._session is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return self._session

    @property
    def keep_every(self) -> float | None:
        """Seconds between calls of `keep`, which find out whether the session has ended."""
        return self._keep_every

    async def lock(self, names: Collection[str]) -> Collection[str]:
        """Take the locks of these names that are free; return them. Connects again if necessary."""
        keys = {_key_of(self._schema, name): name for name in names}
        session = self._opened()
        taken = await uncut(session.lock([*keys]), within=self._close_timeout)
        session.report(taken)
        return [keys[key] for key in taken]

    async def keep(self, names: Collection[str]) -> Collection[str]:
        """Look at the session; return the locks that are still held: none if it has ended."""
        held = await self._opened().look(self._keep_every)
        return [name for name in names if _key_of(self._schema, name) in held]

    async def unlock(self, names: Collection[str]) -> None:
        """Free these locks; those not held are ignored."""
        keys = [_key_of(self._schema, name) for name in names]
        await uncut(self._opened().unlock(keys), within=self._close_timeout)

    def __repr__(self) -> str:
        return f"PostgresAdvisoryLocks({self._access.place}, schema={self._schema!r})"


class _Session:
    """The session that has the locks, one after the other, and the keys of those it has now."""

    def __init__(self, connections: Connections, place: str) -> None:
        self._connections = connections
        self._place = place
        self._con: PoolConnectionProxy[Any] | None = None
        self._held: set[int] = set()
        self._unreported: set[int] = set()
        """Those of a call that was cancelled. They may be taken again, and freed."""
        self._turn = asyncio.Lock()

    async def connected(self) -> PoolConnectionProxy[Any]:
        """The connection; a new one, without locks, if the last one has broken."""
        if self._con is not None and not is_gone(self._con):
            return self._con
        await self._drop()
        con = await self._connections.borrow()
        try:
            await _check_own_session(con, self._place)
        except BaseException:
            con.terminate()
            await self._connections.give_back(con, None)
            raise
        self._con = con
        return con

    async def lock(self, keys: Collection[int]) -> Collection[int]:
        """Take those that are free."""
        async with self._turn:
            con = await self.connected()
            wanted = [key for key in keys if key not in self._held]
            rows = await self._ask(con, _LOCK, wanted)
            taken = {row["key"] for row in rows}
            again = self._unreported & {*keys}
            self._held |= taken
            self._unreported |= taken
            return taken | again

    def report(self, keys: Collection[int]) -> None:
        """Note that the caller of `lock` has learnt of these."""
        self._unreported -= {*keys}

    async def look(self, within: float) -> Collection[int]:
        """The keys of the locks that are held, after an answer of the server in this time."""
        async with self._turn:
            if self._con is None:
                return ()
            try:
                async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + within):
                    await self._con.execute("SELECT")
            except Exception:
                await self._drop()
            return frozenset(self._held)

    async def unlock(self, keys: Collection[int]) -> None:
        """Free those that are held. The end of a session that does not answer frees them, too."""
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
        """The answer. Without one nothing is known of the locks, and the session is ended."""
        if not keys:
            return ()
        try:
            found: list[asyncpg.Record] = await con.fetch(statement, keys)
        except BaseException:
            await self._drop()
            raise
        return found

    async def end(self) -> None:
        """End the session, and with it the locks."""
        async with self._turn:
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
            "leads through a pooler, which lends sessions: a lock would stay with another client. "
            "Give the server's own address, or use PostgresSubscriptions"
        )
        raise bad("dsn", place, rule)


def _key_of(schema: str, name: str) -> int:
    digest = hashlib.sha256(f"{schema}\0{name}".encode()).digest()
    return -1 - (int.from_bytes(digest[:8], "big") >> 1)
