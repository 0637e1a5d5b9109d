"""Periodic figures of a log, for metrics and alerts.

The backlog of each subscription is a separate query: a query that takes too long affects only its
own figures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.keywords import known_arguments
from ..client.access import PostgresAccess
from ..records.monitor import EVERY, Monitor, StreamObserver
from ..schema.opened import DEFAULT_SCHEMA
from .queries import LogQueries
from .stats import LogFigures

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AsyncExitStack
    from datetime import timedelta

    from ..._core.clock import Clock
    from .queries import StoredSubscription
    from .stats import Backlog, HorizonStats, SubscriptionStats


@known_arguments(access=PostgresAccess)
class StreamMonitor(Monitor[LogFigures, StreamObserver]):
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
        clock: the source of time; default: the loop's.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Opening does not
    connect and does not fail: an unreachable server, a missing schema and missing rights are
    counted and logged like any failed poll.
    """

    _observer = StreamObserver
    _what = "log"
    _part = "backlog of the subscription"

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str = DEFAULT_SCHEMA,
        name: str | None = None,
        observers: Iterable[StreamObserver] = (),
        every: float | timedelta = EVERY,
        count_to: int = 10_000,
        lease: float | timedelta = 30.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            dsn,
            schema=schema,
            name=name,
            observers=observers,
            every=every,
            count_to=count_to,
            clock=clock,
        )
        self._lease = checks.seconds("lease", lease, usual=checks.LONG_TIMEOUT)
        self._at = -1
        """The position at which the horizon was seen last, and since when."""
        self._since = 0.0

    async def _open(self, stack: AsyncExitStack) -> None:
        self._at = -1
        await super()._open(stack)

    async def _read(self, clock: Clock) -> LogFigures:
        queries = LogQueries(self._access_to("log"))
        horizon = self._age(await queries.horizon(), clock.now())
        found = await queries.subscriptions(self._lease)
        subscriptions = {
            name: await self._with_backlog(queries, name, stored, horizon.position)
            for name, stored in found.items()
        }
        return LogFigures(
            horizon, subscriptions, await queries.parked_keys(), await queries.tables()
        )

    def _age(self, horizon: HorizonStats, now: float) -> HorizonStats:
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
            self._record.fail_in_part(name, error)
        else:
            self._record.succeed_in_part(name)
        return stored.stats.with_backlog(backlog)
