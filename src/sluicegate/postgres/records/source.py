"""Sources over a schema of streams and queues, and the parts that serve one while it is open.

1. The first attempt to begin raises a `ConfigError`. Later, and in the background, an unreachable
   server is reported as a problem, and tried again; the next fetch raises an error that a retry
   cannot resolve.
2. Background tasks end before the claims are ended and given back.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from ..._core import checks
from ..._core.clock import CountedSignal
from ..._core.errors import ClosedError, ConfigError
from ..._core.logs import for_log, log_safely
from ..._core.opening import only_user
from ..._core.runtime.cuts import end_if_cut
from ..._core.source import Troubles
from ..._core.text import text_of
from ..client.access import Access, need_asyncpg
from ..client.connections import Connections
from ..client.notifications import Waker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping, Sequence
    from datetime import timedelta

    from ..._core.clock import Clock
    from ..._core.source import ClaimHost, Fetched, Position, SourceClaim
    from ..client.access import PostgresAccess

logger = logging.getLogger("sluicegate.postgres")

RETRY_TO = 5.0
"""The longest delay in seconds between attempts after an error."""

FAILED = "%s: %s failed (%s); it will be repeated"
_FAILED_FOR_GOOD = "%s: %s failed: %s"


class Serving(ABC):
    """The background tasks and the calls of a consumer while a source is open."""

    def __init__(self, name: str, host: ClaimHost, clock: Clock) -> None:
        self._name = name
        self._host = host
        self._clock = clock
        self._troubles = Troubles(host, name, logger)
        self.news = CountedSignal()
        """Fires when there may be more to read."""
        self._failure: ConfigError | None = None
        """An error that a retry cannot resolve."""

    @asynccontextmanager
    async def running(self, waker: Waker) -> AsyncGenerator[None]:
        """Serve the source within the context; at exit, end its claims.

        Raises `ConfigError` from the first attempt to begin.
        """
        await self._attempt("opening", self._begin())
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(each) for each in (*self._background(), waker.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._close()

    @abstractmethod
    async def _begin(self) -> None:
        """Prepare the fetches."""

    @abstractmethod
    def _background(self) -> Sequence[Coroutine[None, None, None]]:
        """Return the tasks that run while the source is open."""

    @abstractmethod
    async def _close(self) -> None:
        """End all claims."""

    async def _attempt(self, what: str, attempt: Coroutine[None, None, object]) -> bool:
        """Whether an attempt succeeded. Its error becomes a problem, or the failure of the
        source.
        """
        try:
            await attempt
        except ConfigError as error:
            self._failure = error
            self._troubles.note(what, _FAILED_FOR_GOOD % (self._name, what, text_of(error)))
            self.news.fire()
        except Exception as error:
            end_if_cut(error)
            log_safely(logger, logging.DEBUG, FAILED, self._name, what, for_log(error), error=error)
            self._troubles.note(what, FAILED % (self._name, what, for_log(error)))
        else:
            self._troubles.note(what, None)
            return True
        return False

    @abstractmethod
    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> list[Fetched] | None:
        """Deliver records of these claims; `None` at the end of a source that ends."""

    @abstractmethod
    async def commit(self, positions: Mapping[SourceClaim, Position]) -> list[SourceClaim]:
        """Store the positions of open claims; return the claims whose positions are stored."""

    @abstractmethod
    async def ends(self, claims: Collection[SourceClaim]) -> dict[SourceClaim, int]:
        """Return the offset after the last record of each claim."""


ServingT = TypeVar("ServingT", bound=Serving)


class RecordSource(ABC, Generic[ServingT]):
    """A source over a schema, used by one consumer at a time."""

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        lease: float | timedelta,
        clock: Clock | None,
    ) -> None:
        need_asyncpg()
        self._access = Access.of(dsn, lease=lease)
        self._clock = checks.checked_clock(clock)
        self._serving: ServingT | None = None

    @property
    @abstractmethod
    def _channel(self) -> str:
        """The channel on which writers notify of new records."""

    @property
    @abstractmethod
    def _name(self) -> str:
        """The name for log lines."""

    @abstractmethod
    async def _serve(
        self, connections: Connections, host: ClaimHost, stack: AsyncExitStack
    ) -> ServingT:
        """Build the parts that serve the open source."""

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        """Serve in the background; at exit, end the claims, and release or give back what they hold.

        Raises `ConfigError` if it is already open, for a schema that is missing or too old, and for
        a queue or subscription that does not fit.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(only_user(self))
            connections = await Connections.to(self._access)
            stack.push_async_callback(connections.close)
            self._serving = serving = await self._serve(connections, host, stack)
            stack.callback(self._forget)
            waker = Waker(self._name, self._channel, connections, serving.news, self._clock)
            await stack.enter_async_context(serving.running(waker))
            yield

    def _forget(self) -> None:
        self._serving = None

    @property
    def _opened(self) -> ServingT:
        if self._serving is None:
            raise ClosedError(f"{self!r} is not open")
        return self._serving

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        """Deliver records of these claims, or begin claims.

        Raises `ConfigError` for errors that a retry cannot resolve.
        """
        return await self._opened.fetch(claims, most)

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        """Store these positions, in one statement. Raises errors of the client or of the state."""
        return await self._opened.commit(positions)

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        """Return the offsets after the last records of these claims. Raises client errors."""
        return await self._opened.ends(claims)
