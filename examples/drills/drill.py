"""What the drills share: a service that writes events through a batcher, an operator's view of it,
and the record of its metrics that Prometheus judges.

1. A drill asserts nothing: it prints, and returns what was sent and what arrived.
2. Times on the timeline are those of an incident. In quick mode 300 of its seconds pass in one, and
   the time limits of the service are a tenth.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
from prometheus_client import CollectorRegistry

from sluicegate import (
    AddTimeout,
    Backoff,
    Batcher,
    DeadLetter,
    Limits,
    Observer,
    Retry,
    Timeout,
    stack,
)
from sluicegate.postgres import PostgresAccess, PostgresSink
from sluicegate.sinks import MemorySink
from sluicegate.telemetry import PrometheusObserver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
    from pathlib import Path

    from sluicegate import Sink
    from sluicegate.testing import EmbeddedPostgres

QUICK = 300
"""Seconds of an incident in one second."""
SCRAPE = 15
"""Seconds of an incident between two scrapes."""
LIMITS = Limits(max_items=100, workers=2, max_pending_items=2000)


class Drill:
    """One incident, from its first minute to the tally."""

    def __init__(self, server: EmbeddedPostgres, folder: Path, *, slow: bool = False) -> None:
        self.server = server
        self.folder = folder
        self._pace = 1 if slow else QUICK
        self._limits = 1.0 if slow else 0.1
        self._began = time.monotonic()
        self.registry = CollectorRegistry()
        self.record: list[tuple[float, dict[str, float]]] = []
        """Scrapes: the second of the incident, and the values by series."""
        self.sent: list[int] = []
        """The ids of accepted events."""
        self.busy = 0
        """Requests that were answered 503, since the ledger was full."""
        self.broken = self.diagnosed = 0.0
        """When the trouble and the runbook's steps began, in seconds of the incident."""
        self.sick: Callable[[int], bool] = lambda _: False
        """Which events have an action that the table refuses."""
        self._numbers = itertools.count()
        self._writes = _Writes()

    def now(self) -> float:
        """Seconds of the incident so far."""
        return (time.monotonic() - self._began) * self._pace

    async def minutes(self, number: float) -> None:
        """Wait for minutes of the incident."""
        await asyncio.sleep(number * 60 / self._pace)

    def limit(self, seconds: float) -> float:
        """A time limit of the service."""
        return seconds * self._limits

    def show(self, text: object) -> None:
        """Print a line of the timeline."""
        minutes, seconds = divmod(round(self.now()), 60)
        print(f"{minutes:02}:{seconds:02}  {text}")

    def look(self, batcher: Batcher[Any]) -> None:
        """Print what an operator sees in `stats()`, or on the dashboard."""
        stats, tally, there = batcher.stats(), batcher.tally(), batcher.stats().destination
        self.show(
            f"destination {there.state}; in flight {stats.in_flight_batches}/{stats.workers}; "
            f"queued {tally.queued}/{stats.capacity_items}; backing off {tally.backing_off}; "
            f"producers waiting {stats.waiting_producers}; answered 503: {self.busy}; "
            f"dead letters {tally.dead_lettered}; lost {tally.lost}; {self._writes.summary()}"
        )
        if there.reason:
            self.show(f"reason: {there.reason}")
        if there.repair:
            self.show(f"to repair: {there.repair}")

    @asynccontextmanager
    async def table(self) -> AsyncGenerator[asyncpg.Connection]:
        """The table of events, and a connection of its administrator."""
        con = await asyncpg.connect(self.server.dsn)
        await con.execute("""
            DROP TABLE IF EXISTS events;
            DO $$ BEGIN CREATE ROLE app LOGIN PASSWORD 'drill';
            EXCEPTION WHEN duplicate_object THEN NULL; END $$;
            CREATE TABLE events (
                id bigint PRIMARY KEY,
                action text NOT NULL CONSTRAINT known CHECK (action IN ('login', 'logout'))
            );
            GRANT INSERT, SELECT ON events TO app
        """)
        try:
            yield con
        finally:
            await con.close()

    @property
    def dsn(self) -> str:
        """Where the service writes, as its own role."""
        return f"postgresql://app:drill@127.0.0.1:{self.server.port}/postgres"

    def sink(self, **settings: str) -> PostgresSink:
        """The table as a sink with a pool of its own."""
        options = {"server_settings": {"application_name": "audit", **settings}}
        return events(PostgresAccess(self.dsn, connect_options=options))

    def protected(self, sink: Sink[Any], *more: Any) -> Sink[Any]:
        """The stack of a service."""
        backoff = Backoff(longest=self.limit(5.0))
        return stack(sink, Timeout(self.limit(5.0)), Retry(backoff=backoff), *more)

    @asynccontextmanager
    async def service(
        self,
        sink: Sink[Any],
        limits: Limits = LIMITS,
        *,
        letters: Sink[Any] | None = None,
        rate: int = 20,
    ) -> AsyncGenerator[Batcher[Any]]:
        """A batcher with producers, scraped by Prometheus, whose log is on the timeline."""
        log, lines = logging.getLogger("sluicegate"), _Lines(self.show)
        level = log.level
        log.addHandler(lines)
        log.setLevel(logging.INFO)
        observers = [PrometheusObserver(self.registry), self._writes]
        batcher = Batcher[Any](
            self.protected(sink, DeadLetter(letters or MemorySink())),
            name="audit",
            limits=limits,
            observers=observers,
        )
        try:
            async with batcher:
                tasks = [
                    asyncio.create_task(each)
                    for each in (self._produce(batcher, rate), self._scrape())
                ]
                try:
                    yield batcher
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
        finally:
            log.removeHandler(lines)
            log.setLevel(level)

    async def incident(
        self,
        batcher: Batcher[Any],
        break_it: Callable[[], Awaitable[object]],
        mend: Callable[[], Awaitable[object]],
        step: str,
    ) -> None:
        """Two healthy minutes, eleven of trouble, and eight after the runbook's steps."""
        await self.minutes(2)
        self.look(batcher)
        self.broken = self.now()
        await break_it()
        await self.minutes(3)
        self.look(batcher)
        await self.minutes(8)
        self.look(batcher)
        self.diagnosed = self.now()
        await mend()
        self.show(f"runbook: {step}")
        await self.minutes(8)
        self.look(batcher)

    async def _produce(self, batcher: Batcher[Any], rate: int) -> None:
        for number in self._numbers:
            if number % rate == 0:
                await asyncio.sleep(self.limit(0.1))
            action = "transfer" if self.sick(number) else "login"
            try:
                await batcher.add({"id": number, "action": action}, timeout=self.limit(1.0))
                self.sent.append(number)
            except AddTimeout:  # the service answers 503, with `retry_after` as Retry-After
                self.busy += 1

    async def burst(self, batcher: Batcher[Any], count: int) -> None:
        """Add many events at once."""
        numbers = [*itertools.islice(self._numbers, count)]
        await batcher.add_many([{"id": number, "action": "login"} for number in numbers])
        self.sent += numbers

    async def _scrape(self) -> None:
        while True:
            self.record.append((self.now(), series(self.registry)))
            await asyncio.sleep(SCRAPE / self._pace)

    def end(self, stored: Iterable[int]) -> set[int]:
        """Print the tally by content; return the events that are nowhere."""
        kept = set(stored)
        missing = set(self.sent) - kept
        self.show(f"accepted {len(self.sent)}; stored {len(kept)}; missing {len(missing)}")
        return missing


def events(access: PostgresAccess) -> PostgresSink:
    """The table of events as a sink."""
    return PostgresSink(access, table="events", columns=("id", "action"), on_conflict="ignore")


async def stored(drill: Drill) -> list[int]:
    """The ids in the table."""
    con = await asyncpg.connect(drill.server.dsn)
    try:
        return [row["id"] for row in await con.fetch("SELECT id FROM events")]
    finally:
        await con.close()


def series(registry: CollectorRegistry) -> dict[str, float]:
    """The values of all series, by their name and labels."""
    found: dict[str, float] = {}
    for family in registry.collect():
        for sample in family.samples:
            labels = ",".join(f'{label}="{value}"' for label, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


class _Writes(Observer):
    """Durations and reasons of the writes since the last look."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._reasons: dict[str, int] = {}

    def on_flushed(self, batch: Any, seconds: float, errors: Any) -> None:
        self._seconds.append(seconds)
        reason = batch.reason.value
        self._reasons[reason] = self._reasons.get(reason, 0) + 1

    def summary(self) -> str:
        """The summary of the writes; they are forgotten."""
        seconds, reasons = sorted(self._seconds), self._reasons
        self._seconds, self._reasons = [], {}
        if not seconds:
            return "no write ended"
        p50, p99 = (seconds[int(len(seconds) * share)] for share in (0.5, 0.99))
        by_reason = ", ".join(f"{count} by {reason}" for reason, count in sorted(reasons.items()))
        return f"writes: {by_reason}, p50 {p50:.3f} s, p99 {p99:.3f} s"


class _Lines(logging.Handler):
    """Log lines on the timeline; of the dead letters only the first."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._show = show
        self._has_letters = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "sluicegate.dead_letter":
            if self._has_letters:
                return
            self._has_letters = True
        self._show(f"log: {record.levelname} {record.name}: {record.getMessage()}")
