"""Samples of a log's figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from .log_queries import LogQueries
from .log_stats import LogFigures

if TYPE_CHECKING:
    from ...._core.clock import Clock
    from ...client.connections import Connections
    from ...monitoring.record import PollRecord
    from .log_queries import StoredSubscription
    from .log_stats import Backlog, HorizonStats, LogStats, SubscriptionStats



class LogPoller:
    """Reads a log's figures, and measures for how long the horizon has not moved."""

    def __init__(self, record: LogRecord, schema: str, count_to: int, lease: float) -> None:
        self._record = record
        self._schema = schema
        self._count_to = count_to
        self._lease = lease
        self._at = -1
        self._since = 0.0

    async def poll(self, connections: Connections, clock: Clock) -> LogFigures:
        """Read the figures once. Raises errors of the client."""
        queries = LogQueries(connections, self._schema)
        horizon = self._aged(await queries.horizon(), clock.now())
        found = await queries.subscriptions(self._lease)
        subscriptions = {
            name: await self._with_backlog(queries, name, stored, horizon.position)
            for name, stored in found.items()
        }
        return LogFigures(
            horizon, subscriptions, await queries.parked_keys(), await queries.tables()
        )

    def _aged(self, horizon: HorizonStats, now: float) -> HorizonStats:
        if horizon.position != self._at or not horizon.distance:
            self._at, self._since = horizon.position, now
        return replace(horizon, age=now - self._since)

    async def _with_backlog(
        self, queries: LogQueries, name: str, stored: StoredSubscription, horizon: int
    ) -> SubscriptionStats:
        backlog: Backlog | None = None
        try:
            backlog = await queries.backlog(name, stored.selection, horizon, self._count_to)
        except Exception as error:
            self._record.failed_in_part(name, error)
        else:
            self._record.succeeded_in_part(name)
        return stored.stats.with_backlog(backlog)
