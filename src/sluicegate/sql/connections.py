"""The connections of an engine, reused across calls.

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

import contextlib
import os
import select
import socket
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import for_connecting, is_moved

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

R = TypeVar("R")
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
