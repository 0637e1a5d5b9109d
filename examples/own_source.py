"""A source of your own: the events of a table in SQLite, with the positions in a second table."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import (
    Fetched,
    Position,
    Record,
    SourceCapabilities,
    TopicPartition,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence

    from sluicegate import Message
    from sluicegate.consumer import ClaimHost, SourceClaim

TABLES = """
create table events (topic, partition, at integer, key, value, primary key (topic, partition, at));
create table partitions (topic, partition, next integer, map, primary key (topic, partition));
"""


class TableSource:
    """The events of a topic, for one process. Reads are short, so they run in the event loop."""

    capabilities = SourceCapabilities(
        starts=frozenset({"beginning"}), batches=True, lag="ends", metadata=True
    )

    def __init__(self, path: Path, topic: str, look_every: float = 0.5) -> None:
        self._path = path
        self._topic = topic
        self._look_every = look_every
        self._next: dict[SourceClaim, int] = {}

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncIterator[None]:
        with closing(sqlite3.connect(self._path)) as self._base:
            query = "select partition, next, map from partitions where topic = ?"
            starts = {
                TopicPartition(self._topic, partition): Position(offset or 0, stored or "")
                for partition, offset, stored in self._base.execute(query, [self._topic])
            }
            claims = host.assigned(starts)
            self._next = {claim: starts[claim.partition].offset for claim in claims}
            try:
                yield
            finally:
                self._next.clear()
                host.ended(claims)

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched]:
        while True:
            found: list[Fetched] = []
            for claim in claims:
                if most and (records := self._read(claim, most)):
                    self._next[claim] = records[-1].offset + 1
                    found.append(Fetched(claim, records, self._next[claim]))
                    most -= len(records)
            if found:
                return found  # no await since the first read, so a cancellation loses nothing
            await asyncio.sleep(self._look_every)  # noqa: TID251  # a table sends no notifications

    def _read(self, claim: SourceClaim, most: int) -> list[Record]:
        if claim not in self._next:
            return []
        query = (
            "select at, key, value from events "
            "where (topic, partition) = (?, ?) and at >= ? order by at limit ?"
        )
        rows = self._base.execute(query, [*claim.partition, self._next[claim], most])
        return [Record(*claim.partition, at, key, value) for at, key, value in rows]

    async def commit(self, positions: Mapping[SourceClaim, Position]) -> Collection[SourceClaim]:
        held = {claim: position for claim, position in positions.items() if claim in self._next}
        change = "update partitions set next = ?, map = ? where (topic, partition) = (?, ?)"
        with self._base:  # all of them or none
            self._base.executemany(change, [(*held[claim], *claim.partition) for claim in held])
        return list(held)

    async def ends(self, claims: Collection[SourceClaim]) -> Mapping[SourceClaim, int]:
        query = "select coalesce(max(at) + 1, 0) from events where (topic, partition) = (?, ?)"
        return {claim: self._base.execute(query, claim.partition).fetchone()[0] for claim in claims}


async def book(message: Message) -> None:
    print(f"{message.coordinates}: {message.key} {message.value}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shop.db")
        with closing(sqlite3.connect(path)) as base, base:
            base.executescript(TABLES)
            base.execute("insert into partitions values ('orders', 0, null, null)")
            for at, event in enumerate([("ann", "placed"), ("bob", "placed"), ("ann", "paid")]):
                base.execute("insert into events values ('orders', 0, ?, ?, ?)", [at, *event])
        consumer = Consumer(TableSource(path, "orders"), name="book")
        asyncio.get_running_loop().call_later(1.0, consumer.stop)
        print(await consumer.run(book))


if __name__ == "__main__":
    asyncio.run(main())
