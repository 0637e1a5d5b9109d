"""The demo's scenes on brokers: the flights through a broker into a table, in order per aircraft.

1. A sink produces them, keyed by aircraft. Two consumers pipe them into PostgreSQL; one is killed
   half-way, a third one joins, and only then is the rest produced.
2. Positions and acknowledgements cover settled rows only, so the last rows of the killed consumer
   are delivered again: the table keeps the first arrival of each (`legs.py`).
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import asyncpg

from .consumer import MODULE, Place
from .consumers import Consumers
from .legs import count_stored, create_legs, legs_of, prove_legs
from .progress import EVERY, Pace
from .proof import CONNECT_SECONDS, Finding

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from sluicegate import Batcher

    from .consumer import Broker
    from .flights import Flight
    from .legs import Leg
    from .progress import View

FIRST_PART = 0.75
"""The part of the flights that is produced before the third consumer has joined."""
STALLED_SECONDS = 60.0
"""Seconds without progress after which the proof shows what is missing."""


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """The parts of the scene that depend on the broker."""

    broker: Broker
    name: str
    stream: str
    """The broker's channel for the flights, as text."""
    topic: str
    flights: int
    """Maximum number of flights that go through it."""
    start: Callable[[ExitStack], str]
    """Starts the broker with its topic or stream; returns its address. Raises
    `EmbeddedUnavailable`.
    """
    producer: Callable[[str], Batcher[Leg]]
    """Makes a batcher that writes to it."""


class CarriedScene:
    """One run of the scene, in a schema that has the flights."""

    def __init__(
        self, carrier: Carrier, dsn: str, schema: str, flights: Iterable[Flight], view: View
    ) -> None:
        self._carrier = carrier
        self._dsn = dsn
        self._schema = schema
        self._view = view
        self._legs = list(islice(legs_of(flights), carrier.flights))
        self._progress = CarriedProgress(carrier.name, len(self._legs))
        self.repeated = 0
        """Number of rows that were written again after the kill."""
        self.consumers = 0
        """Number of consumers that stored a row."""

    async def play(self) -> list[Finding]:
        """Produce, consume, and prove the result.

        Raises `EmbeddedUnavailable` if the broker cannot be started here, before anything is
        written.
        """
        carrier = self._carrier
        self._view.say(f"starting an embedded {carrier.name}")
        async with _in_thread(carrier.start) as address:
            connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS)
            try:
                await create_legs(connection, self._schema)
                place = Place(
                    broker=carrier.broker,
                    address=address,
                    topic=carrier.topic,
                    dsn=self._dsn,
                    schema=self._schema,
                )
                async with Consumers(MODULE, place) as consumers:
                    codes = await self._move(address, consumers, connection)
                proven = await prove_legs(connection, self._schema, self._legs)
                self.repeated, self.consumers = proven.repeated, proven.consumers
                return [
                    Finding("consumers that drained at the end", [0, 0], codes),
                    *proven.findings,
                ]
            finally:
                connection.terminate()

    async def _move(
        self,
        address: str,
        consumers: Consumers,
        connection: asyncpg.Connection[asyncpg.Record],
    ) -> list[int]:
        """Move all flights through the topic; return the exit codes of the last consumers."""
        spoiled = sum(leg["line"] < 0 for leg in self._legs)
        self._view.say(
            f"{len(self._legs) - spoiled:,} flights and {spoiled:,} spoiled ones for {self._carrier.stream}, keyed by aircraft; two consumers pipe them into a table"
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(consumers.start("first"))
            group.create_task(consumers.start("second"))
        self._view.open()
        self._progress.begin(consumers)
        watching = asyncio.create_task(self._watch(connection))
        try:
            await self._kill_and_join(self._carrier.producer(address), consumers)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching  # its query must end before the connection's next one
            self._view.show(self._progress)
            self._view.close()
        return await consumers.stop()

    async def _kill_and_join(self, producer: Batcher[Leg], consumers: Consumers) -> None:
        total = len(self._legs)
        first = round(total * FIRST_PART)
        async with producer, asyncio.TaskGroup() as group:
            group.create_task(producer.add_from(self._legs[:first]))
            await self._reach(min(first, total // 2), consumers)
            self._view.say("half-way: killing the first consumer with SIGKILL")
            await consumers.kill("first")
            await consumers.start("third")
            self._view.say("a third consumer has joined; producing the rest")
            await producer.add_from(self._legs[first:])
            await producer.flush()
            await self._reach(total, consumers)

    async def _reach(self, count: int, consumers: Consumers) -> None:
        """Wait until this many records are settled, or until progress has stalled."""
        progress = self._progress
        while progress.done < count and progress.idle_seconds < STALLED_SECONDS:
            consumers.check()
            await asyncio.sleep(EVERY)

    async def _watch(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Show the rows in the table periodically until cancelled."""
        while True:
            self._progress.update(*await count_stored(connection, self._schema))
            self._view.show(self._progress)
            await asyncio.sleep(EVERY)


class CarriedProgress:
    """The displayed figures of the scene."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self.total = total
        self._stored = 0
        self._letters = 0
        self._pace = Pace()
        self._began = self._moved = time.monotonic()
        self._consumers: Consumers | None = None

    def begin(self, consumers: Consumers) -> None:
        """Start the clock."""
        self._consumers = consumers
        self._began = self._moved = time.monotonic()

    def update(self, stored: int, letters: int) -> None:
        """Update the numbers of stored flights and of dead letters."""
        if stored + letters != self.done:
            self._moved = time.monotonic()
        self._stored, self._letters = stored, letters

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last record was settled."""
        return time.monotonic() - self._moved

    @property
    def done(self) -> int:
        """Number of records that are stored or dead letters."""
        return self._stored + self._letters

    def figures(self) -> dict[str, str]:
        """The current figures."""
        return {
            f"through {self._name}": f"{self._stored:,} of {self.total:,}",
            "rate": f"{self._pace.at(self.seconds, self._stored):,.0f} rows/s",
            "dead letters": f"{self._letters:,}",
            "consumers": "none" if self._consumers is None else self._consumers.states,
        }


@asynccontextmanager
async def _in_thread(start: Callable[[ExitStack], str]) -> AsyncGenerator[str]:
    """Start a server in a thread, and stop it at the end.

    A thread cannot be cancelled: the exit waits for it first, and stops the server only then.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="demo broker")
    opened = ExitStack()
    try:
        yield await asyncio.get_running_loop().run_in_executor(thread, start, opened)
    finally:
        thread.shutdown(wait=True, cancel_futures=True)
        opened.close()
