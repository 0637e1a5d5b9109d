"""The connections of an engine, kept between calls.

1. Each is in autocommit, so a single statement needs no transaction; the writer begins and ends those of several
   statements by itself.
2. The way through SQLAlchemy's pool takes as long as a short statement. So a connection of a sink's own
   engine is kept by the sink, unless the pool has options of the user's, which then hold for each write.
3. A connection is kept only in a state known to be good: a cancelled call closes its connection, and a lost
   one takes the idle ones with it, since the server has probably gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine

R = TypeVar("R")


class SqlConnections:
    """Takes connections for calls, and keeps them. Usable from several threads."""

    def __init__(self, engine: Engine, *, keeps: bool) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._keeps = keeps
        self._is_closed = False
        self._idle: list[Connection] = []

    def call(self, function: Callable[[Connection], R]) -> R:
        """Call a function with a connection. It must end its transaction, or invalidate the connection."""
        con = self.idle() or self._engine.connect()
        try:
            return function(con)
        except Exception:
            raise
        except BaseException:
            con.invalidate()
            raise
        finally:
            self.give_back(con)

    def idle(self) -> Connection | None:
        """Take an idle connection, if there is one; to be given back."""
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
            self._idle.append(con)
            return
        con.close()

    def _drop_idle(self) -> None:
        while (con := self.idle()) is not None:
            con.invalidate()
            con.close()

    def close(self) -> None:
        """Close the idle connections; the others when their calls end."""
        self._is_closed = True
        while (con := self.idle()) is not None:
            con.close()
