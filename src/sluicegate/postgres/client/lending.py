"""The order in which connections are lent, and which of them stay idle for the next loan. No I/O.

1. At most `size` connections are lent or idle. Each holds a permit from the time it may be acquired
   from the pool until it is back there.
2. Requests are served in order. A returned connection, or the permit of one that is back in the
   pool, passes immediately to the first waiter, so no later request overtakes it. A waiter that is
   cancelled after its turn passes it on.
3. The idle connection that was returned last is lent first. The others become unused, and go back
   to the pool, which closes them after its own `max_inactive_connection_lifetime`.
4. A connection passes through the pool after `loans` loans at most: there asyncpg replaces one that
   has expired or has run `max_queries`. With 0 no connection is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

ConT = TypeVar("ConT")


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

    def acquired(self, con: ConT) -> None:
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
