"""Periodic polls of a schema while a monitor is open.

1. A scrape cannot wait for the database, so figures are read separately, on one connection.
2. A failed poll is counted, and there are no figures until the next one, since old figures would
   look current. It affects nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK, LoopClock
from ..client.connections import Connections
from ..schema.opened import opened_schema
from .record import FiguresT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from contextlib import AsyncExitStack

    from ..._core.clock import Clock
    from ..._core.observer import Watchers
    from ..client.access import Access
    from .monitor_observer import MonitorObserver
    from .record import PollRecord

ObserverT = TypeVar("ObserverT", bound="MonitorObserver")


class PeriodicPolls(Generic[FiguresT]):
    """The polls of an open monitor, one at a time, and their connection."""

    def __init__(
        self,
        access: Access,
        schema: str,
        poll: Callable[[Connections, Clock], Awaitable[FiguresT]],
        record: PollRecord[FiguresT, Any],
        *,
        close_timeout: float,
    ) -> None:
        self._access = access
        self._schema = schema
        self._poll = poll
        self._record = record
        self._close_timeout = close_timeout
        self._connections: Connections | None = None
        self._is_checked = False
        self._turn = asyncio.Lock()
        self._clock: Clock = LoopClock(asyncio.get_running_loop())  # read in the thread of a scrape

    async def begin(
        self,
        stack: AsyncExitStack,
        name: str,
        observers: Watchers[Any],
        *,
        every: float,
        clock: Clock,
    ) -> None:
        """Start periodic polls, until the stack ends them. Does not connect yet."""
        if clock is not LOOP_CLOCK:
            self._clock = clock
        stack.push_async_callback(self._close)
        self._record.begin(self._clock)
        observers.tell(lambda observer: observer.on_open(name, self._record.stats))

        def closed() -> None:
            self._record.end()
            observers.tell(lambda observer: observer.on_close(name))

        stack.callback(closed)
        run = self._run(name, observers, every)
        stack.push_async_callback(_cancelled, asyncio.get_running_loop().create_task(run))

    async def _run(self, name: str, observers: Watchers[Any], every: float) -> None:
        while True:
            try:
                await self.poll()
            except Exception as error:
                self._record.failed(error)
            observers.tell(lambda observer: observer.on_polled(name))
            await self._clock.sleep(every)

    async def poll(self) -> FiguresT:
        """Poll now, and store the figures with the start time of the poll."""
        async with self._turn:
            now = self._clock.now()
            if self._connections is None:
                self._connections = await Connections.to(self._access, self._close_timeout)
            if not self._is_checked:
                async with self._connections.asking() as con:
                    await opened_schema(con, self._schema)
                self._is_checked = True
            figures = await self._poll(self._connections, self._clock)
        self._record.polled(figures, now)
        return figures

    async def _close(self) -> None:
        if self._connections is not None:
            await self._connections.close()


def checked_observers(observers: Iterable[ObserverT], kind: type[ObserverT]) -> list[ObserverT]:
    """Check the observers. Raises `ConfigError` for another kind."""
    found = list(cast("Iterable[object]", observers))
    for each in found:
        if not isinstance(each, kind):
            raise bad("observers", type(each).__name__, f"must be {kind.__name__} objects")
    return cast("list[ObserverT]", found)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
