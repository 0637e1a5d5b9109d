"""Detection of broken connections while asyncpg waits to send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._core.clock import LOOP_CLOCK
from ...client.errors import is_gone

if TYPE_CHECKING:
    from types import TracebackType

    from asyncpg.pool import PoolConnectionProxy


class Guard:
    """Ends a statement with `TimeoutError` if its connection breaks while asyncpg waits to send.

    A broken connection does not end that wait.
    """

    __slots__ = ("_con", "_is_over", "_limit")

    def __init__(self, con: PoolConnectionProxy[Any]) -> None:
        self._con = con
        self._limit = LOOP_CLOCK.timeout_at(None)
        self._is_over = False

    def _broken(self, con: object) -> None:
        if not self._is_over:
            self._limit.reschedule(LOOP_CLOCK.now())

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._con.add_termination_listener(self._broken)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        if not is_gone(self._con):
            self._con.remove_termination_listener(self._broken)
        await self._limit.__aexit__(kind, error, trace)
