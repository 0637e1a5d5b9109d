"""Flights into an embedded PostgreSQL with default durability: a batcher with a `PostgresSink`,
compared with loops written by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sluicegate import Batcher, Limits

from ...destination import Destination, installed, postgres_server
from ...harness import NS_PER_ITEM, Case, Contender, Target
from ...postgres import by_adbc, by_asyncpg, by_psycopg, by_sqlalchemy
from ...postgres.batch_loop import write_in_batches
from ...postgres.flights import FLIGHTS, load
from ...stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...destination import Opener

SIZE = 500
BY_HAND = "asyncpg COPY loop by hand"
OURS = "Batcher + PostgresSink"

row: Callable[[dict[str, Any]], tuple[Any, ...]] = itemgetter(*FLIGHTS.columns)
"""The conversion that all use."""


def _ours(to: Destination, items: Sequence[dict[str, Any]]) -> Took:
    from sluicegate.postgres import PostgresSink

    async def turn() -> Took:
        await to.make_empty("CHECKPOINT")
        sink = PostgresSink(to.dsn, table=to.table.name, columns=to.table.columns, row=row)
        async with Batcher(sink, limits=Limits(max_items=SIZE, workers=1)) as batcher:
            watch = Stopwatch()
            for item in items:
                await batcher.add(item)
            await batcher.flush()
            took = watch.read()
        await to.check(len(items))
        return took

    return asyncio.run(turn())


def _by_hand(opener: Opener, to: Destination, items: Sequence[dict[str, Any]]) -> Took:
    async def turn() -> Took:
        await to.make_empty("CHECKPOINT")
        async with opener(to) as write:
            watch = Stopwatch()
            await write_in_batches(write, items, row=row, size=SIZE)
            took = watch.read()
        await to.check(len(items))
        return took

    return asyncio.run(turn())


def _loops() -> Mapping[str, Opener]:
    """Return the loops with installed libraries."""
    found: dict[str, Opener] = {BY_HAND: by_asyncpg.copy}
    if installed(*by_psycopg.REQUIRES):
        found["psycopg binary COPY loop by hand"] = by_psycopg.binary_copy
        found["psycopg executemany loop by hand"] = by_psycopg.executemany
    if installed(*by_adbc.REQUIRES):
        found["ADBC ingest loop by hand"] = by_adbc.ingest
    if installed(*by_sqlalchemy.REQUIRES):
        found["SQLAlchemy insert loop by hand"] = by_sqlalchemy.executemany
    return found


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    items, _ = load(count)
    with postgres_server() as dsn:
        to = Destination(dsn, FLIGHTS)
        yield [
            Contender(OURS, lambda: _ours(to, items), ours=True),
            *(
                Contender(name, partial(_by_hand, opener, to, items))
                for name, opener in _loops().items()
            ),
        ]


CASE = Case(
    name="postgres",
    title="Flights into PostgreSQL, batches of 500, one connection",
    prepare=prepare,
    items=100_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(BY_HAND,),
    targets=(Target(OURS, BY_HAND, 0.95),),
)
