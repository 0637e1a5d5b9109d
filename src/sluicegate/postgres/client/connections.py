"""An open pool of connections to PostgreSQL.

1. A connection returns to the pool outside any transaction, within `close_timeout`, or is
   terminated.
2. The connection of a write without an error stays with the sink for the next write (`Lending`),
   since acquiring and releasing cost as much as writing a few rows. Connections that no write used
   for about a second return to the pool. No timer is set as long as none is idle.
3. After a cancellation it is reset in the background, since the server must end the statement
   first.
4. After a refusal every connection of the pool is replaced before its next use: a session keeps
   the role, the settings and the server that it began with, and after a failover or a repair a new
   one has others.
5. A pool that the user closes also serves other parts of the application. Only connections lent
   here are ended, none is kept, and the pool is never closed, terminated or expired.
6. At most `size` connections are lent or idle. Each holds a permit from the time it may be acquired
   from the pool until it is back there.
7. Requests are served in order. A returned connection, or the permit of one that is back in the
   pool, passes immediately to the first waiter, so no later request overtakes it. A waiter that is
   cancelled after its turn passes it on.
8. The idle connection that was returned last is lent first. The others become unused, and go back
   to the pool, which closes them after its own `max_inactive_connection_lifetime`.
9. A connection passes through the pool after `loans` loans at most: there asyncpg replaces one that
   has expired or has run `max_queries`. With 0 no connection is kept.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..._core.checks import bad
from ..._core.classify import caused
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import ConfigError, ErrorClass, RefusedError
from ..._core.runtime.threads import close_within
from .answers import AnsweredConnection, answered
from .errors import classify_postgres, is_gone
from .hosts import connector
from .refusals import for_connecting, for_opening
from .statements import Statements, is_pooled, keeps_statements

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine
    from contextlib import AbstractContextManager
    from types import TracebackType

    from asyncpg.pool import Pool, PoolConnectionProxy

    from ..._core.clock import TimerHandle
    from .access import Access

ConT = TypeVar("ConT")


class Connections:
    """An open asyncpg pool."""

    def __init__(self, pool: Pool[Any], access: Access, statements: Statements) -> None:
        self.statements = statements
        self.pool = pool
        self._access = access
        self._place = access.place
        self.close_timeout = access.close_timeout
        self._lent: set[PoolConnectionProxy[Any]] = set()
        self._returning: dict[asyncio.Task[None], PoolConnectionProxy[Any]] = {}
        self._lending: Lending[PoolConnectionProxy[Any]] = Lending(
            pool.get_max_size(), access.loans
        )
        self._timer: TimerHandle | None = None

    @classmethod
    async def to(cls, access: Access) -> Connections:
        """Connect. Raises `ConfigError` for a refusal, `UnavailableError` if no server answers."""
        statements = Statements(access)
        pool = await _make_pool(access, statements)
        opened = cls(pool, access, statements)
        try:
            _check_usable(pool)
            await pool
            if access.pool is not None:
                _check_size(pool, access.size)
                await opened._examine()
        except ConfigError:
            opened.terminate()
            raise
        except Exception as error:
            opened.terminate()
            raise for_opening(error, access.place)  # noqa: B904  # it has its cause
        return opened

    async def _examine(self) -> None:
        """Determine whether statements can be prepared in a pool of the user."""
        async with self.opening() as con:
            cached, prepared = keeps_statements(con), self._access.prepared
            if cached and (prepared is False or (prepared == "auto" and await is_pooled(con))):
                rule = (
                    f"its connections prepare statements, which {_why(prepared)}; create it with "
                    "statement_cache_size=0, or pass prepared_statements=True if the pooler keeps "
                    "prepared statements or is in session mode"
                )
                raise bad("pool", "an asyncpg pool", rule)
            await self.statements.keep(con, cached=cached)

    @asynccontextmanager
    async def opening(self) -> AsyncGenerator[PoolConnectionProxy[Any]]:
        """Lend a connection while the sink is being opened; raises client errors."""
        con = await self.pool.acquire()
        try:
            yield self.answering(con)
        except BaseException:
            if not is_gone(con):
                con.terminate()
            raise
        finally:
            await self.pool.release(con, timeout=close_within(self.close_timeout))

    @asynccontextmanager
    async def asking(self) -> AsyncGenerator[PoolConnectionProxy[Any]]:
        """Lend a connection for queries, each at the level READ COMMITTED."""
        async with self.lent(answered=True) as con, self.statements.block(con):
            yield con

    async def fetch(self, query: str, *arguments: object) -> list[Any]:
        """Return the rows of one statement, at the level READ COMMITTED, within the time for an
        answer.
        """
        seconds, failure = self._access.answer_timeout, None
        con = await self.borrow(seconds)
        try:
            if self.statements.are_in_blocks:
                bounded = self.answering(con)
                async with self.statements.block(bounded):
                    return await bounded.fetch(query, *arguments)
            with answered(con, seconds, self._place):
                return await con.fetch(query, *arguments)
        except BaseException as error:
            failure = error
            raise
        finally:
            await self.give_back(con, failure)

    async def lost_statement(self, con: PoolConnectionProxy[Any], *, again: bool) -> None:
        """Handle the loss of a prepared statement on the lent connection.

        The cause was a pooler if one is detected now, or if it happens `again` after all statements
        were prepared again.
        """
        if again or await is_pooled(con):
            self.statements.switch("a prepared statement was lost")
            await self._expire()
        else:
            await con.reload_schema_state()

    @property
    def idle(self) -> int:
        """The number of connections that are not lent."""
        return self._lending.idle + self.pool.get_idle_size()

    @property
    def may_switch(self) -> bool:
        """Whether the connections can be replaced by others that prepare nothing."""
        return self._access.pool is None and self.statements.may_switch

    def lent(self, *, keep: bool = False, answered: bool = False) -> Loan:
        """Lend a connection for a context. Entering raises errors as `for_connecting` does.

        With `keep`, it may serve the next loan without a reset, since no reference to it remains.
        With `answered`, the wait for a connection and each of its statements are bounded.
        """
        return Loan(self, keep=keep, answered=answered)

    def bounded(self, con: PoolConnectionProxy[Any]) -> AbstractContextManager[None]:
        """Bound the time of statements in a context: `answered`."""
        return answered(con, self._access.answer_timeout, self._place)

    def answering(
        self, con: PoolConnectionProxy[Any], seconds: float | None = None
    ) -> PoolConnectionProxy[Any]:
        """Bound each statement on a lent connection, by the time for a response or `seconds`."""
        return AnsweredConnection.of(con, seconds or self._access.answer_timeout, self._place)

    async def borrow_soon(self) -> PoolConnectionProxy[Any]:
        """Take a connection. A new one is available within the time for a response.

        The wait until others return theirs has no limit of its own: theirs have one.
        """
        return await self.borrow(self._access.answer_timeout)

    async def borrow(self, seconds: float | None = None) -> PoolConnectionProxy[Any]:
        """Take a connection, a new one within these seconds; `Loan` gives it back."""
        con = self._lending.take() or await self._lending.turn()
        if con is None or is_gone(con):
            con = await self._acquire(con, seconds)
        self._lent.add(con)
        return con

    def keep(self, con: PoolConnectionProxy[Any]) -> bool:
        """Keep the connection of a write without an error, if it may serve another."""
        if is_gone(con) or con.is_in_transaction() or not self._lending.keep(con):
            return False
        self._lent.discard(con)
        if self._timer is None:
            self._watch_idle()
        return True

    async def give_back(self, con: PoolConnectionProxy[Any], error: BaseException | None) -> None:
        """Return a connection to the pool after the loan, which may have ended by an error."""
        try:
            if isinstance(error, asyncio.CancelledError):
                self._give_back_later(con)
                return
            if error is not None and classify_postgres(error) is ErrorClass.REFUSED:
                await self._replace(con)
        finally:
            self._lent.discard(con)
        await self._give_back(con)

    async def _acquire(
        self, broken: PoolConnectionProxy[Any] | None, seconds: float | None
    ) -> PoolConnectionProxy[Any]:
        """Acquire a connection, in place of one that broke while it was idle."""
        try:
            if broken is not None:
                self._lending.forget(broken)
                await self.pool.release(broken, timeout=self.close_timeout)
            until = None if seconds is None else LOOP_CLOCK.now() + seconds
            async with LOOP_CLOCK.timeout_at(until):
                con = await self.pool.acquire()
        except BaseException as error:
            self._lending.free()
            if not isinstance(error, Exception):
                raise
            if isinstance(error, TimeoutError) and seconds is not None:
                error = TimeoutError(f"none was available within {seconds:g} s")
            if not self._access.closes_pool and self.pool.is_closing():
                raise _closed_early(error) from error
            raise for_connecting(error, self._place)  # noqa: B904  # it has its cause
        self._lending.note_acquired(con)
        return con

    async def _replace(self, con: PoolConnectionProxy[Any]) -> None:
        """Replace the sessions after a refusal: all, or only this one of a shared pool."""
        if self._access.closes_pool:
            await self._expire()
        elif not is_gone(con):
            con.terminate()

    async def _expire(self) -> None:
        """Make the pool replace every connection before its next loan."""
        await self.pool.expire_connections()
        for con in self._lending.expire():
            self._in_background(con, self._give_back(con))

    def _watch_idle(self) -> None:
        """Return unused connections to the pool periodically, as long as any is idle."""
        if self._lending.idle:
            when = LOOP_CLOCK.now() + self._access.idle_seconds
            self._timer = LOOP_CLOCK.call_at(when, self._return_unused)

    def _return_unused(self) -> None:
        self._timer = None
        for con in self._lending.unused():
            self._in_background(con, self._give_back(con))
        self._watch_idle()

    async def _give_back(self, con: PoolConnectionProxy[Any]) -> None:
        """Return a connection outside any transaction; terminate it if that takes too long."""
        try:
            if is_gone(con) or not con.is_in_transaction():
                await self.pool.release(con, timeout=close_within(self.close_timeout))
            else:
                await self._roll_back(con)
        except asyncio.CancelledError:
            self._give_back_later(con)
            raise
        except Exception:
            await self._drop(con)
        else:
            self._note_return(con)

    def _give_back_later(self, con: PoolConnectionProxy[Any]) -> None:
        """Wait in the background for the end of a cancelled statement, then return the connection.

        Outside a transaction the server answers a ROLLBACK with a notice only.
        """
        self._in_background(con, self._reset(con))

    def _in_background(
        self, con: PoolConnectionProxy[Any], returning: Coroutine[Any, Any, None]
    ) -> None:
        task = asyncio.get_running_loop().create_task(returning)
        self._returning[task] = con
        task.add_done_callback(self._returning.pop)

    async def _reset(self, con: PoolConnectionProxy[Any]) -> None:
        try:
            await self._roll_back(con)
        except Exception:
            await self._drop(con)
        else:
            self._note_return(con)

    async def _roll_back(self, con: PoolConnectionProxy[Any]) -> None:
        async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + close_within(self.close_timeout)):
            await con.execute("ROLLBACK")
        await self.pool.release(con, timeout=close_within(self.close_timeout))

    async def _drop(self, con: PoolConnectionProxy[Any]) -> None:
        """Terminate a connection; the pool replaces it."""
        try:
            if not is_gone(con):
                con.terminate()
            await self.pool.release(con, timeout=close_within(self.close_timeout))
        finally:
            self._note_return(con)

    def _note_return(self, con: PoolConnectionProxy[Any]) -> None:
        self._lending.forget(con)
        self._lending.free()

    async def close(self) -> None:
        """Close every connection within `close_timeout`, then terminate the rest."""
        try:
            seconds = close_within(self.close_timeout)
            async with LOOP_CLOCK.timeout_at(LOOP_CLOCK.now() + seconds):
                for con in self._lending.expire():
                    self._in_background(con, self._give_back(con))
                if self._returning:  # not cancelled with this call: each must return its connection
                    await asyncio.wait(self._returning)
                if self._access.closes_pool:
                    await self.pool.close()
        except Exception:
            self.terminate()
        finally:
            self._stop_watching()

    def terminate(self) -> None:
        """Terminate every connection immediately; in a shared pool, only those not yet returned."""
        self._stop_watching()
        if self._access.closes_pool:
            self.pool.terminate()
            return
        for con in (*self._lent, *self._returning.values()):
            if not is_gone(con):
                con.terminate()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Loan:
    """A connection, lent for a context."""

    __slots__ = ("_answered", "_con", "_connections", "_keep")

    _con: PoolConnectionProxy[Any]

    def __init__(self, connections: Connections, *, keep: bool, answered: bool) -> None:
        self._connections = connections
        self._keep = keep
        self._answered = answered

    async def __aenter__(self) -> PoolConnectionProxy[Any]:
        if not self._answered:
            self._con = await self._connections.borrow()
            return self._con
        self._con = await self._connections.borrow_soon()
        return self._connections.answering(self._con)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None or not self._keep or not self._connections.keep(self._con):
            await self._connections.give_back(self._con, error)


async def _make_pool(access: Access, statements: Statements) -> Pool[Any]:
    import asyncpg  # an optional dependency

    if access.pool is None:
        options: dict[str, Any] = {"reset": _nothing_to_reset, **access.pool_options()}
        if "connect" not in options:
            options["connect"] = connector(options["dsn"], options, access.answer_timeout)
        connect = partial(statements.connect, connect_with=options.pop("connect"))
        made: Any = asyncpg.create_pool(connect=connect, **options)
    else:
        made = access.pool() if callable(access.pool) else access.pool
    if inspect.isawaitable(made) and not isinstance(made, asyncpg.Pool):
        made = await made
    if not isinstance(made, asyncpg.Pool):
        raise bad("pool", type(made).__name__, "the function must return an asyncpg pool")
    return cast("Pool[Any]", made)


def _check_usable(pool: Pool[Any]) -> None:
    """Raise `ConfigError` for a pool that is closed, or belongs to another loop."""
    if pool.is_closing():
        raise bad(
            "pool",
            "an asyncpg pool",
            "is closed; open the sink while the pool is open, and close the pool after the sink",
        )
    # asyncpg would fail with an error about futures, and the connection would be lost to others
    if pool._loop is not asyncio.get_running_loop():  # type: ignore[attr-defined]  # noqa: SLF001
        rule = "belongs to another event loop; create the pool on the loop that opens the sink"
        raise bad("pool", "an asyncpg pool", rule)


def _check_size(pool: Pool[Any], size: int) -> None:
    if pool.get_max_size() < size:
        rule = f"the pool that pool= makes has {pool.get_max_size()} connections at most"
        raise bad("pool_size", size, rule)


def _why(prepared: object) -> str:
    if prepared is False:
        return "contradicts prepared_statements=False"
    return "are lost behind a pooler that lends a server for one transaction"


def _closed_early(error: Exception) -> RefusedError:
    made = RefusedError(
        "the application has closed the pool of an open sink",
        repair="close the batcher or the sink before the pool",
    )
    return caused(made, error)


async def _nothing_to_reset(con: object) -> None:
    """Skip the reset and its round trip: writes leave no state in a session."""


class Lending(Generic[ConT]):
    """The queue for the connections of a pool, and those that are idle between two loans."""

    def __init__(self, size: int, loans: int) -> None:
        self._permits = size
        self._loans = loans
        self._left: dict[ConT, int] = {}
        """The remaining number of loans of each connection before it returns to the pool."""
        self._idle: list[ConT] = []
        self._unused = 0
        """The number of connections, from the front, that were idle since `unused` was called."""
        self._waiters: deque[asyncio.Future[ConT | None]] = deque()

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return len(self._idle)

    def take(self) -> ConT | None:
        """Take the idle connection that was returned last, if there is one."""
        if not self._idle:
            return None
        con = self._idle.pop()
        self._unused = min(self._unused, len(self._idle))
        return con

    async def turn(self) -> ConT | None:
        """Take an idle connection, or the permit to acquire one (`None`); wait for one if needed.

        Cancellation takes neither.
        """
        if self._idle:
            return self.take()
        if self._permits:
            self._permits -= 1
            return None
        waiter: asyncio.Future[ConT | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._pass_on(waiter.result())
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def note_acquired(self, con: ConT) -> None:
        """Record a connection that was acquired with a permit."""
        self._left[con] = self._loans

    def keep(self, con: ConT) -> bool:
        """Take a connection back for the next loan; `False` if it must return to the pool."""
        left = self._left.get(con, 0) - 1
        if left <= 0:
            return False
        self._left[con] = left
        self._pass_on(con)
        return True

    def forget(self, con: ConT) -> None:
        """Record that a connection is lost; its loan still has the permit."""
        self._left.pop(con, None)

    def free(self) -> None:
        """Take back the permit of a loan without a connection."""
        self._pass_on(None)

    def unused(self) -> list[ConT]:
        """Remove and return the connections that have been idle since the last call."""
        unused, self._idle = self._idle[: self._unused], self._idle[self._unused :]
        self._unused = len(self._idle)
        return unused

    def expire(self) -> list[ConT]:
        """Remove every idle connection, and keep none of those that are lent."""
        self._left.clear()
        idle, self._idle, self._unused = self._idle, [], 0
        return idle

    def _pass_on(self, con: ConT | None) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(con)
                return
        if con is None:
            self._permits += 1
        else:
            self._idle.append(con)
