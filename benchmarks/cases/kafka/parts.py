"""The time of a record from Kafka by part: the client, the source around it, the consumer; and the
cost of many partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from ... import consuming
from ...harness import NS_PER_ITEM, Case, Contender, placed
from ...kafka import ways
from ...kafka.counting import Counter
from ...kafka.topics import a_broker, fill
from ...kafka.workloads import BARE, OURS
from ...stopwatch import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...harness import Results
    from ...kafka.ways import Way
    from ...stopwatch import TimedTurn, Took

ITEMS = 100_000
PARTITIONS = (1, 4, 100)
WHOLE = "a record, as a whole"
CLIENT = "the client: fetch, decode, `getmany`"
SOURCE = "the client, and the source around it"
CONSUMER = "the consumer, over the same records in memory"


def turn(way: Way, bootstrap: str, topic: str, count: int) -> TimedTurn:
    """Make a turn of this number of records of a topic."""

    async def consume() -> Took:
        return await way(bootstrap, topic, Counter(count))

    return lambda: asyncio.run(consume())


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with a_broker() as broker:
        fill(broker, "parts", count, keys=consuming.KEYS, partitions=4)
        of = partial(turn, bootstrap=broker.bootstrap, topic="parts", count=count)
        in_memory = consuming.ours(consuming.records(count), consuming.nothing)
        yield [
            Contender(WHOLE, of(ways.ours()), ours=True),
            Contender(CLIENT, of(ways.unhandled)),
            Contender(SOURCE, of(ways.source_alone), ours=True),
            Contender(CONSUMER, in_memory, ours=True),
        ]


def _rest(results: Results) -> list[str]:
    """Compute the remaining time in each round, by subtraction."""
    figures = results.figures
    columns = zip(*(figures[name] for name in (WHOLE, CLIENT, SOURCE, CONSUMER)), strict=True)
    rounds = [*columns]
    around = [source - client for _, client, source, _ in rounds]
    rest = [whole - source - consumer for whole, _, source, consumer in rounds]
    return [
        f"The source around the client: {_spread(around)}.",
        f"The rest, which is smaller fetches, commits and the client's tasks: {_spread(rest)}.",
    ]


def _spread(figures: Sequence[float]) -> str:
    return f"{median(figures):,.0f} ns ({min(figures):,.0f} to {max(figures):,.0f})"


@contextlib.contextmanager
def prepare_partitions(count: int) -> Iterator[Sequence[Contender]]:
    with a_broker() as broker:
        for partitions in PARTITIONS:
            fill(broker, f"of-{partitions}", count, keys=consuming.KEYS, partitions=partitions)
        yield [
            placed(
                line,
                partitions,
                turn(way, broker.bootstrap, f"of-{partitions}", count),
                ours=line != BARE,
            )
            for partitions in PARTITIONS
            for line, way in ((BARE, ways.bare), (SOURCE, ways.source_alone), (OURS, ways.ours()))
        ]


CASES = (
    Case(
        name="kafka-parts",
        title="Time of a record from Kafka, by part",
        prepare=prepare,
        items=ITEMS,
        quick_items=1_000,
        unit=NS_PER_ITEM,
        by=Clock.PROCESSOR,
        peers=(),
        is_drawn=False,
        notes=_rest,
    ),
    Case(
        name="kafka-partitions",
        title="The same records in more partitions",
        prepare=prepare_partitions,
        items=ITEMS,
        quick_items=1_000,
        unit=NS_PER_ITEM,
        by=Clock.PROCESSOR,
        peers=(BARE,),
        along="partitions",
        is_drawn=False,
    ),
)
