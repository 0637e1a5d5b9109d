"""Reads figures of queues periodically, for metrics and alerts.

Each queue is queried separately, so a slow query affects only its own figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.keywords import known_arguments
from ..client.access import PostgresAccess
from ..records.monitor import EVERY, Monitor, QueueObserver
from ..schema.opened import DEFAULT_SCHEMA
from .queries import QueueQueries
from .stats import QueueFigures, QueueMonitorStats

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from ..._core.clock import Clock
    from .stats import QueueStats, StoredQueue


@known_arguments(access=PostgresAccess)
class QueueMonitor(Monitor[QueueFigures, QueueMonitorStats]):
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
        clock: the source of time; default: the loop's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Opening does not
    connect and does not fail: an unreachable server, a missing schema and missing privileges are
    counted and logged as failed readings.
    """

    _observer = QueueObserver
    _what = "queues"
    _part = "queue"

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str = DEFAULT_SCHEMA,
        name: str | None = None,
        observers: Iterable[QueueObserver] = (),
        every: float | timedelta = EVERY,
        count_to: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            dsn,
            QueueMonitorStats,
            schema=schema,
            name=name,
            observers=observers,
            every=every,
            clock=clock,
        )
        self._count_to = checks.count("count_to", count_to)

    async def _read(self, clock: Clock) -> QueueFigures:
        del clock
        queries = QueueQueries(self._access_to("queues"))
        found = await queries.queues()
        queues = {name: await self._of_queue(queries, queue) for name, queue in found.items()}
        paused = {name: queue.is_paused for name, queue in found.items()}
        return QueueFigures(queues, paused, *await queries.tables())

    async def _of_queue(self, queries: QueueQueries, queue: StoredQueue) -> QueueStats | None:
        try:
            stats = await queries.stats(queue, self._count_to)
        except Exception as error:
            self._record.fail_in_part(queue.name, error)
            return None
        self._record.succeed_in_part(queue.name)
        return stats

    async def poll(self) -> QueueFigures:
        """Read the figures of the queues now, and store them.

        Raises `ClosedError` if this is not open, `ConfigError` for a schema that is missing or too
        old, and the errors of `QueueAdmin`. Suspends for a few queries; a cancelled call stores
        nothing.
        """
        return await self._poll()

    def stats(self) -> QueueMonitorStats:
        """Return the figures of the last reading. Does not suspend; may be called in any thread."""
        return self._record.stats()
