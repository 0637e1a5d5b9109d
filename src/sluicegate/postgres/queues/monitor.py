"""Reads figures of queues periodically, for metrics and alerts.

Each queue is queried separately, so a slow query affects only its own figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._core.keywords import known_arguments
from ..client.access import PostgresAccess
from ..records.monitor import Monitor, QueueObserver
from .queries import QueueQueries
from .stats import QueueFigures

if TYPE_CHECKING:
    from ..._core.clock import Clock
    from .stats import QueueStats, StoredQueue


@known_arguments(access=PostgresAccess)
class QueueMonitor(Monitor[QueueFigures, QueueObserver]):
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
