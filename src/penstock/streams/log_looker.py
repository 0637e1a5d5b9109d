"""A look at a log, and the record of the looks."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from .._core.say import say
from .._core.told import for_log
from .log_stats import LogFigures, LogStats

if TYPE_CHECKING:
    from .._core.clock import Clock
    from .log_queries import LogQueries, StoredSubscription
    from .log_stats import Backlog, HorizonStats, SubscriptionStats

logger = logging.getLogger("penstock.streams")

_FAILED = "%s: a look at the log failed (%s); there are no figures until one succeeds"
_AGAIN = "%s: looks at the log succeed again"
_NO_BACKLOG = "%s: the backlog of the subscription %r could not be read (%s); it has no figures"
_BACKLOG_AGAIN = "%s: the backlog of the subscription %r can be read again"


class LookRecord:
    """The counts of looks, and the figures of the last one. Read from any thread."""

    def __init__(self, name: str, stale_after: float) -> None:
        self._name = name
        self._stale_after = stale_after
        self._stats = LogStats("closed", 0, 0)
        self._clock: Clock | None = None
        self._at = 0.0
        self._fails = False
        self._unread = set[str]()
        """The subscriptions whose backlog could not be read by the last look."""
        self._lock = threading.Lock()

    def begin(self, clock: Clock) -> None:
        """The monitor is open; the clock can be read from any thread."""
        with self._lock:
            self._clock = clock
            self._stats = replace(self._stats, state="open", figures=None)

    def end(self) -> None:
        """The monitor is closed."""
        with self._lock:
            self._stats = replace(self._stats, state="closed", figures=None)

    def looked(self, figures: LogFigures, now: float) -> None:
        """Keep the figures of a look."""
        with self._lock:
            self._at = now
            self._stats = replace(self._stats, looks=self._stats.looks + 1, figures=figures)
        if self._fails:
            self._fails = False
            say(logger, logging.INFO, _AGAIN, self._name)

    def failed(self, error: Exception) -> None:
        """Count a look that failed, and drop the figures; log the first one in a row."""
        with self._lock:
            self._stats = replace(self._stats, failed=self._stats.failed + 1, figures=None)
        if not self._fails:
            self._fails = True
            say(logger, logging.WARNING, _FAILED, self._name, for_log(error))

    def failed_in_part(self, subscription: str, error: Exception) -> None:
        """Count a backlog that could not be read; log the first time in a row."""
        with self._lock:
            self._stats = replace(self._stats, failed=self._stats.failed + 1)
        if subscription not in self._unread:
            self._unread.add(subscription)
            say(logger, logging.WARNING, _NO_BACKLOG, self._name, subscription, for_log(error))

    def succeeded_in_part(self, subscription: str) -> None:
        """A backlog was read."""
        if subscription in self._unread:
            self._unread.remove(subscription)
            say(logger, logging.INFO, _BACKLOG_AGAIN, self._name, subscription)

    def stats(self) -> LogStats:
        """The counts, and the figures unless they are too old."""
        with self._lock:
            stats, at, clock = self._stats, self._at, self._clock
        if clock is not None and stats.figures and clock.now() - at > self._stale_after:
            return replace(stats, figures=None)
        return stats


class LogLooker:
    """Looks at a log, and notices a horizon that stands still."""

    def __init__(self, record: LookRecord, count_to: int, lease: float) -> None:
        self._record = record
        self._count_to = count_to
        self._lease = lease
        self._at = -1
        self._since = 0.0

    async def look(self, queries: LogQueries, clock: Clock) -> LogFigures:
        """Look once. Raises errors of the client."""
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
