"""The processor time of a record from Kafka into PostgreSQL, by part. What Sluicegate adds is the rest
after the least that the client, the decoder and the driver take.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from functools import partial
from json import loads
from typing import TYPE_CHECKING

import psutil

from ...destination import Destination, postgres_server
from ...destination import timed as timed_writes
from ...harness import US_PER_ITEM, Case, placed
from ...kafka.counting import Counter
from ...kafka.pipes.actions import ACTIONS, actions, row_of
from ...kafka.pipes.loops import copy, executemany
from ...kafka.pipes.ours import into_table
from ...kafka.pipes.runs import Run, timed
from ...kafka.topics import a_broker, fill_with
from ...kafka.ways import unhandled
from ...postgres import by_asyncpg
from ...processes import seconds_of
from ...stopwatch import Clock, Stopwatch
from .pipe import COPY, INSERT, KEYED, KEYS, PARTITIONS, PLAIN, SIZE, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...destination import Opener, Row
    from ...harness import Contender
    from ...kafka.pipes.runs import Way

CLIENT = "aiokafka, getmany"
DECODER = "json.loads, the row"
DRIVER = "asyncpg"
REST = "the loop or pipe"
SERVER = "PostgreSQL"
POSTMASTER = "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)"
PARTS = (CLIENT, DECODER, DRIVER, REST, SERVER)

WAYS: dict[str, tuple[Way, Opener]] = {
    INSERT: (executemany(SIZE), by_asyncpg.executemany),
    COPY: (copy(SIZE), by_asyncpg.copy),
    PLAIN: (into_table(SIZE, keyed=False), by_asyncpg.copy),
    KEYED: (into_table(SIZE, keyed=True), by_asyncpg.copy),
}
"""The ways, each with the statement that it sends."""


@dataclass(slots=True)
class Division:
    """The parts of a way, measured one after the other at the first part of a round. The rest is
    computed by subtraction.
    """

    bootstrap: str
    to: Destination
    server: psutil.Process
    values: Sequence[bytes]
    way: Way
    opener: Opener
    seconds: dict[str, float] = field(default_factory=dict[str, float], init=False)

    def part(self, name: str) -> float:
        """Return the seconds of a part in this round."""
        if name == PARTS[0]:
            self.seconds = asyncio.run(self._measure())
        return self.seconds[name]

    async def _measure(self) -> dict[str, float]:
        count, server = len(self.values), 0.0
        client = await unhandled(self.bootstrap, TOPIC, Counter(count))
        decoder, rows = self._decode()
        await self.to.make_empty("CHECKPOINT")
        batches = [rows[first : first + SIZE] for first in range(0, count, SIZE)]
        driver = await timed_writes(self.opener, self.to, [rows[:1], *batches])

        async def way(run: Run, to: Destination) -> None:
            nonlocal server
            before = seconds_of(self.server)
            await self.way(run, to)
            server = seconds_of(self.server) - before

        whole = await timed(way, Run(self.bootstrap, TOPIC, count), self.to)
        parts = {CLIENT: client.processor, DECODER: decoder, DRIVER: driver.processor}
        return parts | {REST: whole.processor - sum(parts.values()), SERVER: server}

    def _decode(self) -> tuple[float, list[Row]]:
        watch = Stopwatch()
        rows = [row_of(loads(value)) for value in self.values]
        return watch.read().processor, rows


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    records = [*actions(count, KEYS)]
    values = [value for _, value in records]
    with a_broker() as broker, postgres_server() as dsn:
        fill_with(broker, TOPIC, records, partitions=PARTITIONS)
        to = Destination(dsn, ACTIONS)
        server = psutil.Process(int(asyncio.run(to.value(POSTMASTER))))
        divisions = {
            name: Division(broker.bootstrap, to, server, values, way, opener)
            for name, (way, opener) in WAYS.items()
        }
        yield [
            placed(part, name, partial(division.part, part), ours=part == REST)
            for name, division in divisions.items()
            for part in PARTS
        ]


CASE = Case(
    name="kafka-postgres-parts",
    title="Processor time of a record from Kafka into PostgreSQL, by part",
    prepare=prepare,
    items=100_000,
    quick_items=2_000,
    unit=US_PER_ITEM,
    by=Clock.PROCESSOR,
    peers=(),
    along="way",
    is_stacked=True,
)
