"""The limit of every wait for a server response, and the liveness of connections.

1. The statements of the library itself (claims, positions, locks, state) are answered within
   `answer_timeout` seconds each. Otherwise the connection is terminated, so that nothing is read
   from it again, and `UnavailableError` is raised. The statement may have taken effect.
2. The connection is terminated instead of the call being cancelled: a cancelled call would leave a
   request to cancel the statement, whose response the next statement on the connection waits for.
3. TCP keepalive detects a lost peer of an idle connection, and `TCP_USER_TIMEOUT` one that no
   longer acknowledges sent bytes, where the platform has it. Writes of rows have no other bound
   here.
"""

from __future__ import annotations

import contextlib
import socket
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..._core.classify import caused
from ..._core.clock import LOOP_CLOCK
from ..._core.errors import SluicegateError, UnavailableError
from ..._core.runtime.threads import close_within
from .errors import is_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

ANSWER_TIMEOUT = 20.0
"""Default of `answer_timeout`, in seconds."""
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds until the first probe (the second name is that of macOS) and between two, and their
number."""
_USER_TIMEOUT_MS = 60_000
"""More than the waits for locks of a COPY, whose bytes the server does not read meanwhile."""
ROLLBACK_WITHIN = 5.0
"""Seconds for the rollback of a transaction; then its connection is terminated."""
_WITH_ANSWER = frozenset(
    {
        "add_listener",
        "execute",
        "executemany",
        "fetch",
        "fetchrow",
        "fetchval",
        "reload_schema_state",
    }
)


@contextmanager
def answered(
    con: Connection[Any] | PoolConnectionProxy[Any], seconds: float, place: str
) -> Generator[None]:
    """Terminate the connection unless the block ends within `seconds`.

    Then raises `UnavailableError` from the error of the statement.
    """
    is_late = False

    def end() -> None:
        nonlocal is_late
        if not is_gone(con):
            is_late = True
            con.terminate()

    timer = LOOP_CLOCK.call_at(LOOP_CLOCK.now() + seconds, end)
    try:
        yield
    except Exception as error:
        if not is_late or isinstance(error, SluicegateError):  # such an error says more
            raise
        text = (
            f"no answer from {place} within {seconds:g} s, so the connection was ended; its last "
            "statement may have taken effect"
        )
        raise caused(UnavailableError(text), error)  # noqa: B904  # it has its cause
    finally:
        timer.cancel()


@asynccontextmanager
async def transaction(
    con: Connection[Any] | PoolConnectionProxy[Any],
    bound: Callable[[], AbstractContextManager[None]] = nullcontext,
    **options: Any,
) -> AsyncGenerator[None]:
    """Enter `con.transaction(**options)`. A rollback that takes too long ends the connection.

    asyncpg's own would wait forever for a server that does not answer, even in a cancelled task.
    """
    made = con.transaction(**options)
    with bound():
        await made.start()
    try:
        yield
    except BaseException:
        if not is_gone(con):
            within = close_within(ROLLBACK_WITHIN)
            with contextlib.suppress(Exception), answered(con, within, "the server"):
                await made.rollback()
        raise
    with bound():
        await made.commit()


class AnsweredConnection:
    """A connection each of whose statements is bounded by `answered`. It looks like that
    connection, even to `isinstance`.
    """

    def __init__(
        self, con: Connection[Any] | PoolConnectionProxy[Any], seconds: float, place: str
    ) -> None:
        self._con = con
        self._seconds = seconds
        self._place = place

    @classmethod
    def of(cls, con: Any, seconds: float, place: str) -> PoolConnectionProxy[Any]:
        """Wrap a connection. The result has the same methods."""
        return cast("PoolConnectionProxy[Any]", cls(con, seconds, place))

    @property  # type: ignore[misc]  # looks like the connection
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride,reportIncompatibleMethodOverride]
        return type(self._con)

    def transaction(self, **options: Any) -> AbstractAsyncContextManager[None]:
        """Like `transaction`, with a bound for the begin and the commit too."""
        bound = partial(answered, self._con, self._seconds, self._place)
        return transaction(self._con, bound, **options)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._con, name)
        return partial(self._answer, attribute) if name in _WITH_ANSWER else attribute

    async def _answer(
        self, method: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any
    ) -> Any:
        with answered(self._con, self._seconds, self._place):
            return await method(*arguments, **options)

    def __repr__(self) -> str:
        return repr(self._con)


async def disconnect(con: Connection[Any] | PoolConnectionProxy[Any], seconds: float) -> None:
    """Close a connection of its own, and terminate it unless that ends within `seconds`.

    Never raises for a server that does not answer.
    """
    try:
        await con.close(timeout=close_within(seconds))
    except Exception:
        con.terminate()


def keep_alive(con: Connection[Any]) -> None:
    """Set TCP keepalive on a new connection; do nothing for a Unix socket."""
    transport: Any = getattr(con, "_transport", None)  # of asyncpg 0.30 to 0.32: see the extra
    found: socket.socket | None = transport and transport.get_extra_info("socket")
    if found is None or found.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    with contextlib.suppress(OSError):  # a platform without an option
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in {**_KEEPALIVE, "TCP_USER_TIMEOUT": _USER_TIMEOUT_MS}.items():
            if (option := getattr(socket, name, None)) is not None:
                found.setsockopt(socket.IPPROTO_TCP, option, value)
