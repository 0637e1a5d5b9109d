"""Reads figures of queues periodically, for metrics and alerts.

Each queue is queried separately, so a slow query affects only its own figures.
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
from ...monitoring.queue_observer import QueueObserver
from ...monitoring.record import PollRecord
from ...schema.opened import DEFAULT_SCHEMA, check_schema_name
from .monitor_stats import QueueFigures, QueueMonitorStats
from .queue_queries import QueueQueries
from .schema_access import SchemaAccess

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from asyncpg import Pool

    from ...._core.clock import Clock
    from ...client.access import PoolFactory, PostgresAccess, Prepared
    from ...client.connections import Connections
    from .queue_stats import QueueStats, StoredQueue

logger = logging.getLogger("sluicegate.postgres")

EVERY = 15.0
"""Default interval in seconds between two readings."""
STALE_AFTER = 3
"""Number of intervals after which figures are too old to be shown."""


@known_arguments()
class QueueMonitor(Openable):
    """Reads the figures of all queues in a schema every few seconds while it is open.

    One process per schema is enough; several report the same figures. It may run in a consumer's
    process or in its own.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown. The role needs the privilege to work on queues, or to operate
            them.
        schema: the schema of the queues; default `"sluicegate"`.
        name: the label of its metrics; default: the schema.
        observers: receivers of the figures, such as `sluicegate.postgres.PrometheusQueueObserver`.
        every: seconds between two readings; default 15.
        count_to: the limit for each count of jobs or keys in a queue; default 10,000. A reading
            scans up to this many entries of a few indexes for each queue.
        pool: an asyncpg pool of the application, or a function that creates one, instead of `dsn`.
        close_pool: whether closing closes that pool; default: only if a function created it.
        statement_timeout: timeout in seconds of a query on the server; default 5. Not with `pool`.
        prepared_statements: as for `PostgresSink`.
        close_timeout: timeout in seconds for closing the connection; default 5.
        answer_timeout: seconds for the answer to each statement of the library itself; then the
            connection is ended, which counts as an outage. Default 20.
        clock: the source of time; default: the loop's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Opening does not
    connect and does not fail: an unreachable server, a missing schema and missing privileges are
    counted and logged as failed readings.
    """

    _run_time = ("_polling",)

    def __init__(
        self,
        dsn: str | PostgresAccess | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        name: str | None = None,
        observers: Iterable[QueueObserver] = (),
        every: float | timedelta = EVERY,
        count_to: int = 10_000,
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
        self._observers = Watchers(checked_observers(observers, QueueObserver))
        self._every = checks.seconds("every", every, usual=checks.LONG_TIMEOUT)
        self._count_to = checks.count("count_to", count_to)
        self._close_timeout = checks.seconds(
            "close_timeout", close_timeout, usual=checks.LONG_TIMEOUT
        )
        self._clock = checks.checked_clock(clock)
        self._record: PollRecord[QueueFigures, QueueMonitorStats] = PollRecord(
            self.name,
            STALE_AFTER * self._every,
            QueueMonitorStats,
            what="queues",
            part="queue",
            logger=logger,
        )
        self._polling: PeriodicPolls[QueueFigures] | None = None

    async def _open(self, stack: AsyncExitStack) -> None:
        self._polling = PeriodicPolls(
            self._access,
            self._schema,
            self._figures,
            self._record,
            close_timeout=self._close_timeout,
        )
        await self._polling.begin(
            stack, self.name, self._observers, every=self._every, clock=self._clock
        )

    async def poll(self) -> QueueFigures:
        """Read the figures of the queues now, and store them.

        Raises `ClosedError` if this is not open, `ConfigError` for a schema that is missing or too
        old, and the errors of `QueueAdmin`. Suspends for a few queries; a cancelled call stores
        nothing.
        """
        if self._polling is None:
            raise ClosedError(f"{self!r} is not open; use it in an `async with`")
        return await self._polling.poll()

    def stats(self) -> QueueMonitorStats:
        """Return the figures of the last reading. Does not suspend; may be called in any thread."""
        return self._record.stats()

    async def _figures(self, connections: Connections, clock: Clock) -> QueueFigures:
        del clock
        queries = QueueQueries(SchemaAccess(connections, self._schema, self._access.place))
        found = await queries.queues()
        queues = {name: await self._of_queue(queries, queue) for name, queue in found.items()}
        paused = {name: queue.is_paused for name, queue in found.items()}
        return QueueFigures(queues, paused, *await queries.tables())

    async def _of_queue(self, queries: QueueQueries, queue: StoredQueue) -> QueueStats | None:
        try:
            stats = await queries.stats(queue, self._count_to)
        except Exception as error:
            self._record.failed_in_part(queue.name, error)
            return None
        self._record.succeeded_in_part(queue.name)
        return stats

    def __repr__(self) -> str:
        return f"QueueMonitor({self._access.place}, schema={self._schema!r})"
