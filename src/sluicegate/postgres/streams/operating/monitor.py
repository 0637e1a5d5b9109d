"""Periodic figures of a log, for metrics and alerts.

The backlog of each subscription is a separate query: a query that takes too long affects only its
own figures.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ...._core import checks
from ...._core.errors import ClosedError
from ...._core.keywords import known_arguments
from ...._core.observer import Watchers
from ...._core.opening import Openable
from ...client.access import Access, need_asyncpg
from ...client.answers import ANSWER_TIMEOUT
from ...monitoring.polls import PeriodicPolls, checked_observers
from ...monitoring.record import PollRecord
from ...monitoring.stream_observer import StreamObserver
from ...schema.opened import DEFAULT_SCHEMA, check_schema_name
from .log_poller import LogPoller
from .log_stats import LogStats

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from asyncpg import Pool

    from ...._core.clock import Clock
    from ...client.access import PoolFactory, PostgresAccess, Prepared
    from .log_stats import LogFigures

logger = logging.getLogger("sluicegate.postgres")

EVERY = 15.0
"""Default interval between two polls, in seconds."""
STALE_AFTER = 3
"""Number of intervals after which figures are too old to be shown."""


@known_arguments()
class StreamMonitor(Openable):
    """Reads the figures of a log periodically while it is open, and passes them to observers.

    Run it in one process per log; several would show the same figures. It may run in a consumer's
    process or in its own.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown. The role needs the right to subscribe, and membership in
            `pg_read_all_stats` to see the age of other roles' transactions.
        schema: the schema of the log; default `"sluicegate"`.
        name: the label of its metrics; default: the schema.
        observers: receive the figures, such as `sluicegate.postgres.PrometheusStreamObserver`.
        every: interval between two polls, in seconds; default 15.
        count_to: maximum number of unhandled messages counted for a subscription; default 10,000. A
            poll reads up to this number of index entries for each subscription.
        lease: seconds for which a process counts as a member after it was last seen; the `lease` of
            the subscriptions, by default 30.
        pool: an asyncpg pool of the application, or a function that creates one, instead of `dsn`.
        close_pool: whether to close that pool; default: only if a function created it.
        statement_timeout: time limit of a query on the server, in seconds; default 5. Not with
            `pool`.
        prepared_statements: as for `PostgresSink`.
        close_timeout: seconds for closing the connection; default 5.
        answer_timeout: seconds for the answer to each statement of the library itself; then the
            connection is ended, which counts as an outage. Default 20.
        clock: the source of time; default: the loop's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Opening does not
    connect and does not fail: an unreachable server, a missing schema and missing rights are
    counted and logged like any failed poll.
    """

    _run_time = ("_polling",)

    def __init__(
        self,
        dsn: str | PostgresAccess | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        name: str | None = None,
        observers: Iterable[StreamObserver] = (),
        every: float | timedelta = EVERY,
        count_to: int = 10_000,
        lease: float | timedelta = 30.0,
        pool: Pool[Any] | PoolFactory | None = None,
        close_pool: bool | None = None,
        statement_timeout: float | timedelta | None = None,
        prepared_statements: Prepared = "auto",
        close_timeout: float | timedelta = 5.0,
        answer_timeout: float | timedelta = ANSWER_TIMEOUT,
        clock: Clock | None = None,
    ) -> None:
        need_asyncpg()
        self._schema = check_schema_name(schema)
        self._access = Access.of(
            dsn,
            pool=pool,
            close_pool=close_pool,
            size=1,
            timeout=5.0 if statement_timeout is None and pool is None else statement_timeout,
            prepared=prepared_statements,
            answer_timeout=answer_timeout,
        )
        self.name = self._schema if name is None else checks.text("name", name)
        self._observers = Watchers(checked_observers(observers, StreamObserver))
        self._every = checks.seconds("every", every, usual=checks.LONG_TIMEOUT)
        self._count_to = checks.count("count_to", count_to)
        self._lease = checks.seconds("lease", lease, usual=checks.LONG_TIMEOUT)
        self._close_timeout = checks.seconds(
            "close_timeout", close_timeout, usual=checks.LONG_TIMEOUT
        )
        self._clock = checks.checked_clock(clock)
        self._record: PollRecord[LogFigures, LogStats] = PollRecord(
            self.name,
            STALE_AFTER * self._every,
            LogStats,
            what="log",
            part="backlog of the subscription",
            logger=logger,
        )
        self._polling: PeriodicPolls[LogFigures] | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        poller = LogPoller(self._record, self._schema, self._count_to, self._lease)
        self._polling = PeriodicPolls(
            self._access, self._schema, poller.poll, self._record, close_timeout=self._close_timeout
        )
        await self._polling.begin(
            stack, self.name, self._observers, every=self._every, clock=self._clock
        )

    async def poll(self) -> LogFigures:
        """Read and store the figures now.

        Raises `ClosedError` if the monitor is not open, `ConfigError` if the schema is missing or
        older, and errors of the client. Suspends for a few queries; a cancelled poll stores
        nothing.
        """
        if self._polling is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return await self._polling.poll()

    def stats(self) -> LogStats:
        """Return the figures of the last poll, from any thread. Does not suspend."""
        return self._record.stats()

    def __repr__(self) -> str:
        return f"StreamMonitor({self._access.place}, schema={self._schema!r})"
