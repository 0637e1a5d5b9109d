"""Access to the database: a URL, an engine, or a function that returns one; validated.

An SQLAlchemy engine, async or not, that runs plain functions of a connection.

The work is written once, as plain functions: an async engine runs them through SQLAlchemy's own
bridge, any other engine in threads.

The connections of an engine, reused across calls.

1. Each is in autocommit mode, so a single statement needs no transaction; the writer itself begins
   and ends transactions of several statements.
2. A checkout from SQLAlchemy's pool takes as long as a short statement. So the sink keeps the
   connections of its own engine, unless the user has set pool options, which then apply to each
   write.
3. A connection is kept only in a state known to be good: a cancelled call closes its connection,
   and a lost connection closes the idle ones too, since the server has probably gone.
4. A connection that was idle for more than `FRESH_SECONDS`, or whose socket has an end or data to
   read, is tested first: the server or a proxy may have closed it, and a statement that discovers
   this would have an unknown outcome.
5. An error while connecting is an outage or a refusal, whatever class the driver gives it.
6. A peer may be silent for ever, so no end of a connection waits for it: after a cancellation or a
   loss the socket is broken first, and a thread that reads from it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .._core.addresses import UNSET, split, unreadable
from .._core.checks import bad
from .._core.clock import LoopClock
from .._core.errors import ConfigError, MissingExtra, UnknownOutcomeError
from .._core.extras import need
from .._core.options import Options
from .._core.runtime.closing import close_within
from .dialects import dialect_of
from .errors import for_connecting, is_moved, is_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine


POOL_SIZE = 10
_RULE = 'must be an SQLAlchemy URL, such as "postgresql+asyncpg://user@host/database"'
_OWNED = {
    "pool_size": "use pool_size=",
    "max_overflow": "use pool_size=",
    "isolation_level": "statements commit by themselves or in the sink's transactions",
}

_OTHERS = "an engine, or a function that returns one"
CONNECT_WITHIN = 10
"""Seconds for connecting and the login, unless the URL or `connect_args` say otherwise."""
LIMITS = {
    "asyncpg": ("timeout",),
    "asyncmy": ("connect_timeout",),
    "psycopg": ("connect_timeout",),
    "pymysql": ("connect_timeout",),
}
"""The options of drivers that limit this."""


@dataclass(frozen=True, slots=True, repr=False)
class EngineGiven:
    """The engine of a sink, created when the sink is opened."""

    given: Any
    place: str
    """The database's address in messages, without a password."""
    size: int
    options: Options
    close_timeout: float
    prepares: bool
    """Whether statements are prepared without a test for a pooler."""

    @classmethod
    def of(
        cls,
        given: Any,
        *,
        size: int | None,
        options: Mapping[str, Any] | None,
        close_timeout: float,
        prepared: object = "auto",
    ) -> EngineGiven:
        """Validate the arguments. Raises `ConfigError`, and `MissingExtra` without SQLAlchemy."""
        if prepared is not True and prepared != "auto":
            raise bad("prepared_statements", prepared, 'must be "auto" or True')
        prepares = prepared is True
        sqlalchemy = _sqlalchemy()
        for name in options or {}:
            if name in _OWNED:
                raise ConfigError(f"engine_options[{name!r}]: is set by Sluicegate: {_OWNED[name]}")
        if given is None or given == "":
            raise bad("url", given, f"{_RULE}, {_OTHERS}; {UNSET}")
        if isinstance(given, str):
            if "://" in given and not given.startswith("sqlite"):
                split("url", given, (given.partition("://")[0].lower(),), _RULE)
            try:
                given = sqlalchemy.make_url(given)
            except (sqlalchemy.exc.ArgumentError, ValueError):  # its text may show a password
                if "://" not in given:
                    raise ConfigError(f"url=...: {_RULE}") from None
                raise unreadable("url", given) from None
        if isinstance(given, sqlalchemy.URL):
            name = given.get_backend_name()
            is_single = dialect_of(name).is_single_writer
            if name == "sqlite" and given.database in {None, "", ":memory:"}:
                rule = "must name a file: each thread would have its own in-memory database"
                raise bad("url", "sqlite://", rule)
            place = _place(given)
            return cls(
                given,
                place,
                size or (1 if is_single else POOL_SIZE),
                Options(options or {}),
                close_timeout,
                prepares,
            )
        if options:
            raise bad("engine_options", [*options], "requires a URL: an engine has its own options")
        is_engine = isinstance(given, _engines())
        if not is_engine and not callable(given):
            raise bad("url", given, f"{_RULE}, {_OTHERS}")
        place = "an engine" if is_engine else "the engine of a function"
        return cls(given, place, size or POOL_SIZE, Options({}), close_timeout, prepares)

    def made(self) -> SqlEngine:
        """Create the engine. Raises `ConfigError` for options or a driver that SQLAlchemy refuses."""
        sqlalchemy = _sqlalchemy()
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

        given, closes = self.given, False
        if isinstance(given, sqlalchemy.URL):
            closes = True
            options = {"pool_size": self.size, "max_overflow": 0, **self.options}
            try:
                is_async = given.get_dialect().is_async
                make = create_async_engine if is_async else sqlalchemy.create_engine
                given = make(given, **options)
            except ImportError as error:
                raise MissingExtra(
                    f"the driver of {self.place} is not installed ({error})"
                ) from error
            except (TypeError, sqlalchemy.exc.ArgumentError) as error:
                raise ConfigError(f"engine_options: SQLAlchemy refuses them ({error})") from error
            self._set_up(given.sync_engine if is_async else given)
        elif not isinstance(given, _engines()):
            given = given()
        keeps = closes and not any(name.startswith("pool") for name in self.options)
        kind: Any = AsyncSqlEngine if isinstance(given, AsyncEngine) else ThreadedSqlEngine
        made: SqlEngine = kind(
            given, closes=closes, keeps=keeps, size=self.size, close_timeout=self.close_timeout
        )
        return made

    def _set_up(self, engine: Any) -> None:
        from sqlalchemy import event

        dialect = dialect_of(engine.dialect.name, prepares=self.prepares)

        def connecting(_: object, __: object, ___: object, given: dict[str, Any]) -> None:
            for name in LIMITS.get(engine.dialect.driver, ()):
                given.setdefault(name, CONNECT_WITHIN)

        def connected(dbapi: Any, _: object) -> None:
            dialect.set_up(dbapi)

        event.listen(engine, "do_connect", connecting)
        event.listen(engine, "connect", connected)

    def __repr__(self) -> str:
        return f"EngineGiven({self.place})"


def _place(url: Any) -> str:
    """Return driver, host, port and database."""
    port = "" if url.port is None else f":{url.port}"
    return f"{url.drivername}://{url.host or ''}{port}/{url.database or ''}"


def _sqlalchemy() -> Any:
    need("sqlalchemy", "sql", "SqlSink")
    import sqlalchemy

    return sqlalchemy


def _engines() -> tuple[type[Any], ...]:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    return Engine, AsyncEngine


# -- engines ---------------------------------------------------------------------------------------

# -- connections -----------------------------------------------------------------------------------

R = TypeVar("R")
LONGEST = 15_000
"""Longest statement, in characters, that asyncpg itself keeps prepared; SQLAlchemy also keeps
longer ones.
"""


async def _by_asyncpg(driver: Any, statement: str, values: Sequence[Any]) -> None:
    await driver.execute(statement, *values)


async def _by_asyncmy(driver: Any, statement: str, values: Sequence[Any]) -> None:
    async with driver.cursor() as cursor:
        await cursor.execute(statement, values)


SENDS = {"asyncpg": _by_asyncpg, "asyncmy": _by_asyncmy}
"""Functions that run a statement directly on the connection of an async driver, without
SQLAlchemy's bridge.
"""


class SqlEngine(Protocol):
    """An engine that runs functions on its connections."""

    @property
    def sync(self) -> Engine:
        """The engine, or the synchronous engine inside an async engine."""
        ...

    async def run(self, function: Callable[[Connection], R]) -> R:
        """Run a function on a connection in autocommit mode.

        Suspends. Raises the errors of the function and of the client.
        """
        ...

    async def execute(
        self, statement: str, values: Sequence[Any], function: Callable[[Connection], None]
    ) -> None:
        """Run a statement that returns nothing, directly on the driver if that is faster.

        `function` runs it through SQLAlchemy, also after a refusal, so that the error is
        SQLAlchemy's. Raises `UnknownOutcomeError` if the connection was lost.
        """
        ...

    async def close(self) -> None:
        """Close the connections, and the engine if the sink created it.

        Suspends for at most `close_timeout`; after that time, or a cancellation, the sockets are
        broken.
        """
        ...


class AsyncSqlEngine:
    """An async engine. A cancelled call closes its connection.

    On a kept connection the driver runs the statement, and SQLAlchemy only repeats failed ones. Its
    execution and its bridge into the loop cost more: a write through it takes 1.54 times the
    processor time for 1 row, 1.37 for 10 and 1.38 for 100 with asyncpg, and 1.34, 1.43 and 1.19
    with asyncmy (medians of 40 interleaved rounds).
    """

    def __init__(
        self, engine: AsyncEngine, *, closes: bool, keeps: bool, size: int, close_timeout: float
    ) -> None:
        self.sync = engine.sync_engine
        self._close_timeout = close_timeout
        self._engine = engine
        self._closes = closes
        self._connections = SqlConnections(self.sync, keeps=keeps, now=_now())
        self._slots = asyncio.Semaphore(size)
        self._send = SENDS.get(self.sync.dialect.driver)

    async def run(self, function: Callable[[Connection], R]) -> R:
        """See `SqlEngine`."""
        from sqlalchemy.util import greenlet_spawn

        owner = object()
        async with self._slots:
            call: Coroutine[Any, Any, R] = greenlet_spawn(self._connections.call, function, owner)
            if self._send is not None:
                return await call
            # psycopg would ask the server to cancel the statement, and wait for it
            calling = asyncio.ensure_future(call)
            try:
                return await asyncio.shield(calling)
            except asyncio.CancelledError:
                if not self._connections.cut(owner):
                    calling.cancel()
                calling.add_done_callback(_ignored)
                await asyncio.wait([calling], timeout=close_within(self._close_timeout))
                calling.cancel()
                raise

    async def execute(
        self, statement: str, values: Sequence[Any], function: Callable[[Connection], None]
    ) -> None:
        """See `SqlEngine`."""
        from sqlalchemy.util import greenlet_spawn

        send, con = self._send, None
        if send is not None and len(statement) <= LONGEST and not self._slots.locked():
            con = self._connections.fresh()
        if send is None or con is None:
            return await self.run(function)
        async with self._slots:
            try:
                await send(con.connection.driver_connection, statement, values)
            except Exception as error:
                if not is_refusal(error):
                    con.invalidate()
                    told = f"the connection was lost: {error!r}"
                    raise UnknownOutcomeError(told) from error
                await greenlet_spawn(function, con)
                con.invalidate()  # the driver's prepared statement may be stale
            except BaseException:
                con.invalidate()
                raise
            finally:
                self._connections.give_back(con)

    async def close(self) -> None:
        """See `SqlEngine`."""
        await _closed(self._close(), self._connections, self._close_timeout)

    async def _close(self) -> None:
        from sqlalchemy.util import greenlet_spawn

        await greenlet_spawn(self._connections.close)
        if self._closes:
            await self._engine.dispose()


class ThreadedSqlEngine:
    """Any other engine, in threads.

    A cancelled call waits for its thread for at most `close_timeout`; then its socket is broken, if
    the driver shows it, so that the thread ends. A call that is still queued for a thread is dropped.
    """

    def __init__(
        self, engine: Engine, *, closes: bool, keeps: bool, size: int, close_timeout: float
    ) -> None:
        self.sync = engine
        self._closes = closes
        self._close_timeout = close_timeout
        self._connections = SqlConnections(engine, keeps=keeps, now=_now())
        self._threads = ThreadPoolExecutor(size, "sluicegate-sql")

    async def run(self, function: Callable[[Connection], R]) -> R:
        """See `SqlEngine`."""
        owner = object()
        call = self._threads.submit(self._connections.call, function, owner)
        future = asyncio.wrap_future(call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not call.cancel() and not future.done():
                future.add_done_callback(_ignored)
                try:
                    await asyncio.wait([future], timeout=close_within(self._close_timeout))
                finally:
                    if not future.done():
                        self._connections.cut(owner)
            raise

    async def execute(
        self, statement: str, values: Sequence[Any], function: Callable[[Connection], None]
    ) -> None:
        """See `SqlEngine`; always through SQLAlchemy."""
        await self.run(function)

    async def close(self) -> None:
        """See `SqlEngine`."""
        self._threads.shutdown(wait=False)
        await _closed(self._close(), self._connections, self._close_timeout)

    async def _close(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._connections.close)
        if self._closes:
            await loop.run_in_executor(None, self.sync.dispose)


async def _closed(
    work: Coroutine[Any, Any, None], connections: SqlConnections, within: float
) -> None:
    """Run the work for at most `within` seconds; then break the connections."""
    closing = asyncio.ensure_future(work)
    try:
        await asyncio.wait([closing], timeout=close_within(within))
    finally:
        if not closing.done():
            connections.cut_all()
            closing.cancel()
    if not closing.cancelled() and closing.done():
        closing.result()


def _now() -> Callable[[], float]:
    """The clock of the running loop, readable in any thread."""
    return LoopClock(asyncio.get_running_loop()).now


def _ignored(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a call that is no longer awaited."""
    if not future.cancelled():
        future.exception()


FRESH_SECONDS = 1.0


SOCKETS: dict[str, Callable[[Any], Any]] = {
    "asyncpg": lambda driver: _socket_of(getattr(driver, "_transport", None)),
    "asyncmy": lambda driver: _socket_of(getattr(driver, "_transport", None)),
    "psycopg": lambda driver: None if driver.closed else driver,
    "pymysql": lambda driver: getattr(driver, "_sock", None),
}
"""The socket of a driver's connection, or an object with its `fileno`; `None` if it is closed.

Except for psycopg there is no public name for it; written for asyncpg 0.29 to 0.32, asyncmy 0.2, and
PyMySQL 1.1 and 1.2.
"""


def _socket_of(transport: Any) -> Any:
    return (
        None if transport is None or transport.is_closing() else transport.get_extra_info("socket")
    )


class SqlConnections:
    """Provides connections for calls, and keeps them. Thread-safe.

    Args:
        engine: the engine of the connections.
        keeps: whether connections are kept.
        now: the time in monotonic seconds.
    """

    def __init__(self, engine: Engine, *, keeps: bool, now: Callable[[], float]) -> None:
        self._engine = engine
        self._keeps = keeps
        self._now = now
        self._is_closed = False
        self._socket = SOCKETS.get(engine.dialect.driver)
        self._idle: list[tuple[Connection, float]] = []
        self._closing: Any = None
        """The driver's connection that `close` is closing."""
        self._used: dict[object, Connection] = {}
        """The connections of running calls, by their owners."""

    def call(self, function: Callable[[Connection], R], owner: object | None = None) -> R:
        """Call a function with a connection. The function must end its transaction or invalidate
        the connection. `cut(owner)` breaks the call off.
        """
        owner = object() if owner is None else owner
        try:
            con = self._taken(owner)
        except BaseException:
            if (left := self._used.pop(owner, None)) is not None:
                self._end(left)
            raise
        try:
            return function(con)
        except Exception as error:
            if is_moved(error):
                con.invalidate()
            raise
        except BaseException:
            self._break(con)
            con.invalidate()
            raise
        finally:
            del self._used[owner]
            self.give_back(con)

    def cut(self, owner: object) -> bool:
        """Break the connection of a running call, so that the call fails. Return whether it has one;
        does not suspend.
        """
        con = self._used.get(owner)
        if con is not None:
            self._break(con)
        return con is not None

    def cut_all(self) -> None:
        """Break all connections, even while `close` closes them; does not suspend."""
        if self._closing is not None:
            self._break_socket(self._closing)
        for con in [*self._used.values(), *[each for each, _ in self._idle]]:
            self._break(con)

    def _break(self, con: Connection) -> None:
        """Break a connection's socket, if the driver shows it."""
        if not (con.closed or con.invalidated):
            self._break_socket(con.connection.driver_connection)

    def _break_socket(self, driver: Any) -> None:
        with contextlib.suppress(Exception):  # it is broken already
            if self._socket is not None and (found := self._socket(driver)) is not None:
                with socket.socket(fileno=os.dup(found.fileno())) as same:
                    same.shutdown(socket.SHUT_RDWR)

    def _end(self, con: Connection) -> None:
        """Break a connection, and close it."""
        self._break(con)
        con.invalidate()
        _close(con)

    def fresh(self) -> Connection | None:
        """Take a recently used idle connection that is still open, if there is one; return it with
        `give_back`.
        """
        found = self._popped()
        if found is None:
            return None
        if self._now() - found[1] > FRESH_SECONDS or self._is_ended(found[0]):
            self._idle.append(found)
            return None
        return found[0]

    def _is_ended(self, con: Connection) -> bool:
        """Whether an idle connection may have ended, without a round trip: its socket is closed, or
        has an end, an error or data to read.
        """
        if self._socket is None:
            return False
        if (socket := self._socket(con.connection.driver_connection)) is None:
            return True
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        return bool(poll.poll(0))

    def _taken(self, owner: object) -> Connection:
        """An idle connection that is known to work, or a new one; `_used` has it from now on."""
        while True:
            if (con := self.fresh()) is not None:
                self._used[owner] = con
                return con
            if (found := self._popped()) is None:
                return self._connected(owner)
            con = self._used[owner] = found[0]
            if _answers(con):
                return con
            del self._used[owner]
            _close(con)
            self._drop_idle()

    def _connected(self, owner: object) -> Connection:
        """A new connection in autocommit mode."""
        try:
            con = self._used[owner] = self._engine.connect()
            return con.execution_options(isolation_level="AUTOCOMMIT")
        except Exception as error:
            raise for_connecting(error)  # noqa: B904  # it has its cause

    def _popped(self) -> tuple[Connection, float] | None:
        """The most recently used connection with the time of its use; another thread may take it
        first.
        """
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def give_back(self, con: Connection) -> None:
        """Keep a connection, or close it."""
        if con.invalidated:
            self._drop_idle()
        elif self._is_closed:
            con.invalidate()
        elif self._keeps:
            self._idle.append((con, self._now()))
            return
        _close(con)

    def _drop_idle(self) -> None:
        while (found := self._popped()) is not None:
            self._end(found[0])

    def close(self) -> None:
        """Close the idle connections; the others are closed at the end of their calls.

        They are in a known state, so their server is told, and not asked.
        """
        self._is_closed = True
        while (found := self._popped()) is not None:
            con = found[0]
            self._closing = None if con.invalidated else con.connection.driver_connection
            con.invalidate()
            _close(con)
        self._closing = None


def _close(con: Connection) -> None:
    """Close a connection; one that cannot be reset, such as of a user whose password has expired,
    is dropped.
    """
    try:
        con.close()
    except Exception:  # whatever the error, its work is done
        if not con.closed:
            con.invalidate()


def _answers(con: Connection) -> bool:
    try:
        con.exec_driver_sql("SELECT 1").close()
    except Exception:  # whatever the error, use another connection
        con.invalidate()
        return False
    return True
