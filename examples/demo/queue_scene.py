"""The demo's scene on the queue: flights enqueued in the transactions of a table, and handled in
order per aircraft by processes that are killed and whose number changes.

1. Producers insert flights into a table and their jobs into the queue, in the same transactions;
   some of these are rolled back.
2. One worker becomes eight; three of them are killed, three others drain. The queue is sticky: each
   worker has a share of the aircraft, and the shares are reassigned.
3. The table of handled flights refuses a spoiled flight. The queue is configured to skip it: it
   becomes a dead letter, and later flights of its aircraft are handled.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import asyncpg

from sluicegate.postgres import QueueAdmin, install_streams

from .consumers import Consumers
from .legs import legs_of
from .progress import EVERY, Pace
from .proof import CONNECT_SECONDS, Finding, replace_schema
from .queue_producer import enqueue, planned, shares_of
from .queue_proof import QueueCounts, QueueTables
from .queue_worker import MODULE, QUEUE, QueuePlace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .flights import Flight
    from .progress import View
    from .queue_producer import Bundle

FLIGHTS = 40_000
WORKERS = ("1", "2", "3", "4", "5", "6", "7", "8")
KILLED = ("1", "2", "3")
DRAINED = ("4", "5", "6")
FIRST_PART = 0.4
"""The part of the flights that is enqueued before all workers have joined."""
JOIN_AT, KILL_AT, DRAIN_AT = 0.1, 0.55, 0.75
"""The parts of the flights that are handled before each change of the workers."""
MAX_ATTEMPTS = 20
"""High enough that no flight becomes a dead letter because its workers were killed."""
STALLED_SECONDS = 30.0
"""Seconds without progress after which the proof shows what is missing."""


class QueueScene:
    """One run of the scene, in a schema that has the flights, and one for the queue."""

    def __init__(
        self, dsn: str, schema: str, queues: str, flights: Iterable[Flight], view: View
    ) -> None:
        self._place = QueuePlace(dsn=dsn, queues=queues, schema=schema)
        self._view = view
        self._shares = shares_of(islice(legs_of(flights), FLIGHTS))
        self._planned = planned(self._shares)
        self._progress = QueueProgress(self._planned.committed)
        self._have_joined = asyncio.Event()
        self.repeated = 0
        """Number of times that a flight was handled again."""
        self.workers = 0
        """Number of workers that have handled a flight."""

    async def play(self) -> list[Finding]:
        """Enqueue and handle all flights, and prove the result."""
        place = self._place
        connection = await asyncpg.connect(place.dsn, timeout=CONNECT_SECONDS)
        tables = QueueTables(connection, place.schema, place.queues)
        try:
            await self._create_queue(connection)
            await tables.create()
            self._announce()
            async with Consumers(MODULE, place) as workers:
                codes = await self._work(workers, tables)
            self.repeated = (await tables.count()).repeated
            self.workers = await tables.workers()
            drained = Finding("workers that drained", [0] * (len(WORKERS) - len(KILLED)), codes)
            return [drained, *await tables.prove(self._planned)]
        finally:
            connection.terminate()

    async def _create_queue(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        place = self._place
        async with connection.transaction():
            await replace_schema(connection, place.queues)
        await install_streams(place.dsn, schema=place.queues)
        async with QueueAdmin(place.dsn, schema=place.queues) as admin:
            await admin.create(QUEUE, sticky=True, poison="skip", max_attempts=MAX_ATTEMPTS)

    def _announce(self) -> None:
        plan = self._planned
        self._view.say(
            f"{plan.committed:,} flights for a sticky queue in PostgreSQL, keyed by aircraft, each job "
            f"in one transaction with its row; {plan.spoiled:,} are spoiled, and the queue skips them; "
            f"{plan.rolled_back:,} more are rolled back"
        )

    async def _work(self, workers: Consumers, tables: QueueTables) -> list[int]:
        """Enqueue and handle all flights; return the exit codes of the drained workers."""
        await workers.start(WORKERS[0])
        self._view.open()
        self._progress.begin(workers)
        watching = asyncio.create_task(self._watch(tables))
        try:
            async with asyncio.TaskGroup() as group:
                for share in self._shares:
                    group.create_task(self._produce(share))
                codes = await self._resize(workers)
            await self._reach(1.0, workers)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching  # its query must end before the connection's next one
            self._view.show(self._progress)
            self._view.close()
        return [*codes, *await workers.stop()]

    async def _produce(self, share: list[Bundle]) -> None:
        first = math.ceil(FIRST_PART * len(share))
        connection = await asyncpg.connect(self._place.dsn, timeout=CONNECT_SECONDS)
        try:
            await enqueue(connection, self._place, share[:first])
            await self._have_joined.wait()
            await enqueue(connection, self._place, share[first:])
        finally:
            connection.terminate()

    async def _resize(self, workers: Consumers) -> list[int]:
        """Change from one worker to eight to two; return the exit codes of the drained ones."""
        await self._reach(JOIN_AT, workers)
        self._view.say(f"one worker becomes {len(WORKERS)}")
        async with asyncio.TaskGroup() as group:
            for name in WORKERS[1:]:
                group.create_task(workers.start(name))
        self._have_joined.set()
        await self._reach(KILL_AT, workers)
        self._view.say(f"killing {len(KILLED)} workers with SIGKILL")
        async with asyncio.TaskGroup() as group:
            for name in KILLED:
                group.create_task(workers.kill(name))
        await self._reach(DRAIN_AT, workers)
        left = len(WORKERS) - len(KILLED) - len(DRAINED)
        self._view.say(f"{len(DRAINED)} more drain; {left} are left")
        return await workers.stop(*DRAINED)

    async def _reach(self, part: float, workers: Consumers) -> None:
        """Wait until this part of the flights has ended, and for the whole until the queue is
        empty; or until progress has stalled.
        """
        progress = self._progress
        count = round(part * progress.total)
        while progress.done < count or (part == 1.0 and not progress.is_empty):
            if progress.idle_seconds > STALLED_SECONDS:
                return
            workers.check()
            await asyncio.sleep(EVERY)

    async def _watch(self, tables: QueueTables) -> None:
        """Show the counts of the tables periodically until cancelled."""
        while True:
            self._progress.update(await tables.count())
            self._view.show(self._progress)
            await asyncio.sleep(EVERY)


class QueueProgress:
    """The displayed figures of the scene."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._counts = QueueCounts()
        self._pace = Pace()
        self._began = self._moved = time.monotonic()
        self._workers: Consumers | None = None

    def begin(self, workers: Consumers) -> None:
        """Start the clock."""
        self._workers = workers
        self._began = self._moved = time.monotonic()

    def update(self, counts: QueueCounts) -> None:
        """Update the counts of the tables."""
        if counts != self._counts:
            self._moved = time.monotonic()
        self._counts = counts

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def idle_seconds(self) -> float:
        """Seconds since the counts last changed."""
        return time.monotonic() - self._moved

    @property
    def done(self) -> int:
        """Number of flights that are handled or dead letters."""
        return self._counts.ended

    @property
    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        return not self._counts.jobs + self._counts.keys + self._counts.bells

    def figures(self) -> dict[str, str]:
        """The current figures."""
        counts = self._counts
        return {
            "through the queue": f"{counts.handled:,} of {self.total:,}",
            "rate": f"{self._pace.at(self.seconds, counts.handled):,.0f} flights/s",
            "waiting": f"{counts.jobs:,}",
            "handled again": f"{counts.repeated:,}",
            "dead letters": f"{counts.dead:,}",
            "workers": "none" if self._workers is None else self._workers.counts,
        }
