"""Monitors read the figures of a schema periodically, for metrics and alerts.

1. A scrape cannot wait for the database, so figures are read separately, on one connection.
2. A failed poll is counted, and there are no figures until the next one, since old figures would
   look current. It affects nothing else.
3. A part of the figures that is read by a query of its own, such as a queue, may fail by itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from ..._core import checks
from ..._core.checks import bad
from ..._core.clock import LOOP_CLOCK, LoopClock
from ..._core.errors import ClosedError
from ..._core.logs import for_log, log_safely
from ..._core.observer import Watchers
from ..client.connections import Connections
from ..schema.opened import DEFAULT_SCHEMA, opened_schema
from .access import SchemaObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from ..._core.clock import Clock
    from ..client.access import PostgresAccess

logger = logging.getLogger("sluicegate.postgres")

FiguresT = TypeVar("FiguresT")

EVERY = 15.0
"""Default interval in seconds between two polls."""
STALE_AFTER = 3
"""Number of intervals after which figures are too old to be shown."""
QUERY_TIMEOUT = 5.0
"""Default time limit of a query on the server, in seconds."""

_FAILED = "%s: a poll of the %s failed (%s); there are no figures until one succeeds"
_AGAIN = "%s: polls of the %s succeed again"
_NO_PART = "%s: the %s %r could not be read (%s); it has no figures"
_PART_AGAIN = "%s: the %s %r can be read again"


class MonitorObserver:
    """Base class of monitor observers; all methods do nothing. Override what you need.

    Callbacks run in the monitor's loop and must return quickly. An exception is logged, and the
    monitor continues.
    """

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """The monitor `name` has opened. `stats` may be called from any thread, also afterwards."""

    def on_polled(self, name: str) -> None:
        """The monitor has new figures."""

    def on_close(self, name: str) -> None:
        """The monitor was closed."""


class QueueObserver(MonitorObserver):
    """Base class of `QueueMonitor` observers; all methods do nothing. Override what you need.

    Callbacks run in the monitor's loop and must return quickly. An exception is logged, and the
    monitor continues.
    """


class StreamObserver(MonitorObserver):
    """Base class of `StreamMonitor` observers; all methods do nothing. Override what you need.

    Callbacks run in the monitor's loop and must return quickly. An exception is logged, and the
    monitor continues.
    """


ObserverT = TypeVar("ObserverT", bound=MonitorObserver)


@dataclass(frozen=True, slots=True)
class MonitorStats(Generic[FiguresT]):
    """The state of a monitor, with the figures of its last poll."""

    state: Literal["open", "closed"]
    polls: int
    """Number of completed polls."""
    failed: int
    """Number of failed polls, and of failed queries of parts."""
    figures: FiguresT | None = None
    """`None` before the first poll, after a failed one, and if the last one is too old."""


class Monitor(SchemaObject, Generic[FiguresT, ObserverT]):
    """Reads the figures of a schema every few seconds while it is open."""

    _run_time = ("_connections", "_turn", "_reading_clock", "_is_checked")
    _observer: ClassVar[type[MonitorObserver]]
    _what: ClassVar[str]
    """The object that is polled, for log lines."""
    _part: ClassVar[str]
    """The kind of part that is read separately, for log lines."""

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str = DEFAULT_SCHEMA,
        name: str | None = None,
        observers: Iterable[ObserverT] = (),
        every: float | timedelta = EVERY,
        count_to: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(dsn, schema=schema, size=1, statement_timeout=QUERY_TIMEOUT)
        self.name = self._schema if name is None else checks.text("name", name)
        self._observers = Watchers(self._check(observers))
        self._every = checks.seconds("every", every, usual=checks.LONG_TIMEOUT)
        self._clock = checks.checked_clock(clock)
        self._count_to = checks.count("count_to", count_to)
        self._record: _PollRecord[FiguresT] = _PollRecord(
            self.name, STALE_AFTER * self._every, what=self._what, part=self._part
        )
        self._turn: asyncio.Lock | None = None
        self._reading_clock: Clock | None = None
        self._is_checked: bool | None = None
        """Whether the schema was checked since the opening."""

    def _check(self, observers: Iterable[object]) -> list[Any]:
        found = list(observers)
        for each in found:
            if not isinstance(each, self._observer):
                rule = f"must be {self._observer.__name__} objects"
                raise bad("observers", type(each).__name__, rule)
        return found

    async def _open(self, stack: AsyncExitStack) -> None:
        """Start the polls. Does not connect yet."""
        loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        clock = LoopClock(loop) if self._clock is LOOP_CLOCK else self._clock
        self._reading_clock = clock  # can be read in the thread of a scrape
        stack.push_async_callback(self._disconnect)
        self._record.begin(clock)
        self._observers.tell(lambda observer: observer.on_open(self.name, self._record.stats))
        stack.callback(self._end)
        stack.push_async_callback(_cancel, loop.create_task(self._run(clock)))

    def _end(self) -> None:
        self._record.end()
        self._observers.tell(lambda observer: observer.on_close(self.name))

    async def _disconnect(self) -> None:
        if self._connections is not None:
            await self._connections.close()

    async def _run(self, clock: Clock) -> None:
        while True:
            try:
                await self.poll()
            except Exception as error:
                self._record.fail(error)
            self._observers.tell(lambda observer: observer.on_polled(self.name))
            await clock.sleep(self._every)

    def stats(self) -> MonitorStats[FiguresT]:
        """Return the figures of the last poll, from any thread. Does not suspend."""
        return self._record.stats()

    async def poll(self) -> FiguresT:
        """Read the figures now, and store them with the time at which the poll began.

        Raises `ClosedError` if the monitor is not open, `ConfigError` if the schema is missing or
        older, and the errors of the schema's admin class. Suspends for a few queries; a cancelled
        poll stores nothing.
        """
        turn, clock = self._turn, self._reading_clock
        if turn is None or clock is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        async with turn:
            now = clock.now()
            if self._connections is None:
                self._connections = await Connections.to(self._access)
            if not self._is_checked:
                async with self._opened.asking() as con:
                    await opened_schema(con, self._schema)
                self._is_checked = True
            figures = await self._read(clock)
        self._record.store(figures, now)
        return figures

    @abstractmethod
    async def _read(self, clock: Clock) -> FiguresT:
        """Read the figures once."""


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


class _PollRecord(Generic[FiguresT]):
    """The counts of polls, and the figures of the last one. Read from any thread."""

    def __init__(
        self,
        name: str,
        stale_after: float,
        *,
        what: str,
        part: str,
    ) -> None:
        self._name = name
        self._stale_after = stale_after
        self._what = what
        self._part = part
        self._state: Literal["open", "closed"] = "closed"
        self._polls = self._failed = 0
        self._figures: FiguresT | None = None
        self._clock: Clock | None = None
        self._at = 0.0
        self._fails = False
        self._unread = set[str]()
        """The parts that could not be read by the last poll."""
        self._lock = threading.Lock()

    def begin(self, clock: Clock) -> None:
        """Record that the monitor is open. The clock can be read from any thread."""
        with self._lock:
            self._clock = clock
            self._state, self._figures = "open", None

    def end(self) -> None:
        """Record that the monitor is closed."""
        with self._lock:
            self._state, self._figures = "closed", None

    def store(self, figures: FiguresT, now: float) -> None:
        """Store the figures of a poll."""
        with self._lock:
            self._at = now
            self._polls += 1
            self._figures = figures
        if self._fails:
            self._fails = False
            log_safely(logger, logging.INFO, _AGAIN, self._name, self._what)

    def fail(self, error: Exception) -> None:
        """Count a failed poll, and drop the figures; log the first of consecutive failures."""
        with self._lock:
            self._failed += 1
            self._figures = None
        if not self._fails:
            self._fails = True
            told = (self._name, self._what, for_log(error))
            log_safely(logger, logging.WARNING, _FAILED, *told)

    def fail_in_part(self, name: str, error: Exception) -> None:
        """Count a part that could not be read; log the first of consecutive failures."""
        with self._lock:
            self._failed += 1
        if name not in self._unread:
            self._unread.add(name)
            told = (self._name, self._part, name, for_log(error))
            log_safely(logger, logging.WARNING, _NO_PART, *told)

    def succeed_in_part(self, name: str) -> None:
        """Record that a part was read."""
        if name in self._unread:
            self._unread.remove(name)
            log_safely(logger, logging.INFO, _PART_AGAIN, self._name, self._part, name)

    def stats(self) -> MonitorStats[FiguresT]:
        """Return the counts, and the figures unless they are too old."""
        with self._lock:
            at, clock, figures = self._at, self._clock, self._figures
            state, polls, failed = self._state, self._polls, self._failed
        if clock is not None and figures and clock.now() - at > self._stale_after:
            figures = None
        return MonitorStats(state, polls, failed, figures)
