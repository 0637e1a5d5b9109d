"""The engine of a sink: a URL, an engine, or a function that returns one; and calls of plain
functions on its connections.

The work is written as plain functions of a connection, which run in threads.

1. Connections are those of SQLAlchemy's pool, in autocommit mode: a single statement needs no
   transaction, and the writer itself begins and ends transactions of several statements.
2. The pool of the sink's own engine tests a connection before each write: the server or a proxy may
   have closed it, and a statement that discovers this would have an unknown outcome.
3. An error while connecting is an outage or a refusal, whatever class the driver gives it.
4. A peer may be silent forever, so no end of a connection waits for it: after a cancellation the
   socket is broken first, and a thread that reads from it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from .._core.addresses import UNSET, Options, split, unreadable
from .._core.checks import bad
from .._core.errors import ConfigError, MissingExtra
from .._core.extras import need
from .._core.runtime.threads import close_within
from .dialects import dialect_of
from .errors import for_connecting, is_moved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection, Engine


POOL_SIZE = 10
_RULE = 'must be an SQLAlchemy URL, such as "mysql+pymysql://user@host/database"'
_OWNED = {
    "pool_size": "use pool_size=",
    "max_overflow": "use pool_size=",
    "isolation_level": "statements commit by themselves or in the sink's transactions",
}

_OTHERS = "an engine, or a function that returns one"
CONNECT_WITHIN = 10
"""Seconds for connecting and the login, unless the URL or `connect_args` say otherwise."""
R = TypeVar("R")
SOCKETS: dict[str, Callable[[Any], Any]] = {
    "pymysql": lambda driver: getattr(driver, "_sock", None),
}
"""The socket of a driver's connection; `None` if it is closed.

There is no public name for it; written for PyMySQL 1.1 and 1.2.
"""
_OWNER: ContextVar[object] = ContextVar("sluicegate.sql.owner", default=None)
"""The owner of the call that this thread runs."""


@dataclass(frozen=True, slots=True, repr=False)
class EngineGiven:
    """The engine of a sink, created when the sink is opened."""

    given: Any
    place: str
    """The database's address in messages, without a password."""
    size: int
    options: Options
    close_timeout: float

    @classmethod
    def of(
        cls,
        given: Any,
        *,
        size: int | None,
        options: Mapping[str, Any] | None,
        close_timeout: float,
    ) -> EngineGiven:
        """Validate the arguments. Raises `ConfigError`, and `MissingExtra` without SQLAlchemy."""
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
            with contextlib.suppress(sqlalchemy.exc.ArgumentError):  # an unknown driver: see `make`
                if given.get_dialect().is_async:
                    rule = "names an async driver; name another one, such as pymysql"
                    raise bad("url", f"{given.drivername}://...", rule)
            place = _place(given)
            return cls(
                given,
                place,
                size or (1 if is_single else POOL_SIZE),
                Options(options or {}),
                close_timeout,
            )
        if options:
            raise bad("engine_options", [*options], "requires a URL: an engine has its own options")
        is_engine = isinstance(given, sqlalchemy.Engine)
        if not is_engine and not callable(given):
            raise bad("url", given, f"{_RULE}, {_OTHERS}")
        place = "an engine" if is_engine else "the engine of a function"
        return cls(given, place, size or POOL_SIZE, Options({}), close_timeout)

    def make(self) -> SqlEngine:
        """Create the engine. Raises `ConfigError` for options or a driver that SQLAlchemy refuses."""
        sqlalchemy = _sqlalchemy()

        given, closes = self.given, False
        if isinstance(given, sqlalchemy.URL):
            closes = True
            options = {
                "pool_size": self.size,
                "max_overflow": 0,
                "pool_pre_ping": True,
                "pool_reset_on_return": None,
                "isolation_level": "AUTOCOMMIT",
                **self.options,
            }
            try:
                given = sqlalchemy.create_engine(given, **options)
            except ImportError as error:
                raise MissingExtra(
                    f"the driver of {self.place} is not installed ({error})"
                ) from error
            except (TypeError, sqlalchemy.exc.ArgumentError) as error:
                raise ConfigError(f"engine_options: SQLAlchemy refuses them ({error})") from error
            self._set_up(given)
        elif not isinstance(given, sqlalchemy.Engine):
            given = given()
        return SqlEngine(given, closes=closes, size=self.size, close_timeout=self.close_timeout)

    def _set_up(self, engine: Any) -> None:
        from sqlalchemy import event

        dialect = dialect_of(engine.dialect.name)

        def connecting(_: object, __: object, ___: object, given: dict[str, Any]) -> None:
            if engine.dialect.driver == "pymysql":
                given.setdefault("connect_timeout", CONNECT_WITHIN)

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


# -- engines ---------------------------------------------------------------------------------------


class SqlEngine:
    """An engine that runs functions on its connections, in threads.

    A cancelled call waits for its thread for at most `close_timeout`; then its socket is broken. A
    call that is still queued for a thread is dropped.
    """

    def __init__(self, engine: Engine, *, closes: bool, size: int, close_timeout: float) -> None:
        self.sync = engine
        self._closes = closes
        self._close_timeout = close_timeout
        self._connections = SqlConnections(engine, is_own=closes)
        self._threads = ThreadPoolExecutor(size, "sluicegate-sql")

    async def run(self, function: Callable[[Connection], R]) -> R:
        """Run a function on a connection in autocommit mode.

        Suspends. Raises the errors of the function and of the client. A cancelled call breaks its
        socket, if the driver shows it, so that it ends.
        """
        owner = object()
        call = self._threads.submit(self._connections.call, function, owner)
        future = asyncio.wrap_future(call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not call.cancel() and not future.done():
                future.add_done_callback(_ignore)
                try:
                    await asyncio.wait([future], timeout=close_within(self._close_timeout))
                finally:
                    if not future.done() and not self._connections.cut(owner):
                        self._connections.cut_connecting(owner)
                        call.add_done_callback(lambda _: self._connections.forget(owner))
            raise

    async def _dispose(self) -> None:
        """Close the idle connections of the sink's own engine."""
        await asyncio.get_running_loop().run_in_executor(None, self.sync.dispose)

    async def close(self) -> None:
        """Close the connections of the sink's own engine.

        Suspends for at most `close_timeout`; after that time, or a cancellation, the sockets are
        broken.
        """
        self._threads.shutdown(wait=False)
        if not self._closes:
            return
        closing = asyncio.ensure_future(self._dispose())
        try:
            await asyncio.wait([closing], timeout=close_within(self._close_timeout))
        finally:
            if not closing.done():
                self._connections.cut_all()
                closing.cancel()
        if not closing.cancelled() and closing.done():
            closing.result()


def _ignore(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a call that is no longer awaited."""
    if not future.cancelled():
        future.exception()


# -- connections -----------------------------------------------------------------------------------


class SqlConnections:
    """Takes connections from the engine's pool for calls. Thread-safe."""

    def __init__(self, engine: Engine, *, is_own: bool) -> None:
        from sqlalchemy import event

        self._engine = engine
        self._is_own = is_own
        self._socket = SOCKETS.get(engine.dialect.driver)
        self._used: dict[object, Connection] = {}
        """The connections of running calls, by their owners."""
        self._open: WeakSet[Any] = WeakSet()
        """The records of the pool of the sink's own engine."""
        self._abandoned: set[object] = set()
        """The owners of calls that were cut before they had a connection."""
        if is_own:
            event.listen(engine, "connect", self._note_open)
            event.listen(engine, "do_connect", self._refuse_abandoned)

    def call(self, function: Callable[[Connection], R], owner: object | None = None) -> R:
        """Call a function with a connection. The function must end its transaction or invalidate
        the connection. `cut(owner)` breaks the call off.
        """
        owner = object() if owner is None else owner
        _OWNER.set(owner)
        con: Connection | None = None
        try:
            con = self._connect(owner)
            return function(con)
        except Exception as error:
            if con is not None and is_moved(error):
                con.invalidate()
            raise
        except BaseException:
            if con is not None:
                self._break(con)
                con.invalidate()
            raise
        finally:
            if (used := self._used.pop(owner, None)) is not None:
                _close(used)

    def _note_open(self, _: object, record: Any) -> None:
        self._open.add(record)

    def cut(self, owner: object) -> bool:
        """Break the connection of a running call, so that the call fails. Return whether it has one;
        does not suspend.
        """
        con = self._used.get(owner)
        if con is not None:
            self._break(con)
        return con is not None

    def cut_connecting(self, owner: object) -> None:
        """Break off a call that has no connection yet: the pool may be testing one, whose
        peer is silent. Connections without a call are broken, and the call opens no other one; does
        not suspend.
        """
        self._abandoned.add(owner)
        used = [con.connection.driver_connection for con in [*self._used.values()] if _is_live(con)]
        for record in list(self._open):
            driver = record.driver_connection
            if not any(driver is other for other in used):
                self._break_socket(driver)

    def forget(self, owner: object) -> None:
        """Drop the note of `cut_connecting`: the call has ended, or never began."""
        self._abandoned.discard(owner)

    def _refuse_abandoned(self, *_: object) -> None:
        if _OWNER.get() in self._abandoned:
            raise ConnectionError("the call was cancelled before it had a connection")

    def cut_all(self) -> None:
        """Break all connections of the sink's own engine; does not suspend."""
        for record in list(self._open):
            self._break_socket(record.driver_connection)

    def _connect(self, owner: object) -> Connection:
        """A connection of the pool in autocommit mode; `_used` has it from now on."""
        try:
            con = self._used[owner] = self._engine.connect()
            self._refuse_abandoned()
            return con if self._is_own else con.execution_options(isolation_level="AUTOCOMMIT")
        except Exception as error:
            raise for_connecting(error)  # noqa: B904  # it has its cause

    def _break(self, con: Connection) -> None:
        """Break a connection's socket, if the driver shows it."""
        if _is_live(con):
            self._break_socket(con.connection.driver_connection)

    def _break_socket(self, driver: Any) -> None:
        with contextlib.suppress(Exception):  # it is broken already
            if self._socket is not None and (found := self._socket(driver)) is not None:
                with socket.socket(fileno=os.dup(found.fileno())) as same:
                    same.shutdown(socket.SHUT_RDWR)


def _is_live(con: Connection) -> bool:
    return not (con.closed or con.invalidated)


def _close(con: Connection) -> None:
    """Give a connection back; one that cannot be reset, such as of a user whose password has expired,
    is dropped.
    """
    try:
        con.close()
    except Exception:  # whatever the error, its work is done
        if not con.closed:
            con.invalidate()
