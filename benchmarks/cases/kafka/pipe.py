"""From Kafka into PostgreSQL: a pipe compared with the usual loops; and the pipe with one hot key
and slow writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING

from sluicegate import Limits

from ...destination import Destination, postgres_server
from ...environments import environment
from ...harness import US_PER_ITEM, Case, Contender, name_of, placed
from ...kafka.pipes.actions import ACTIONS, actions
from ...kafka.pipes.loops import copy, executemany, fetch_and_write
from ...kafka.pipes.ours import into_table, pipe
from ...kafka.pipes.quix import ITEMS, PACKAGE, QUIX
from ...kafka.pipes.runs import ARRIVED, Run, check_rows, timed
from ...kafka.pipes.slow import SlowDestination
from ...kafka.topics import a_broker, fill_with
from ...workers import SOURCES, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...harness import Results
    from ...kafka.pipes.runs import Way
    from ...stopwatch import TimedTurn, Took

KEYS = 1_000
PARTITIONS = 4
TOPIC = "actions"
SIZES = (500, 2_000)
SIZE = SIZES[0]

INSERT = "getmany, executemany, commit"
COPY = "getmany, COPY, commit"
PLAIN = "flow.pipe"
KEYED = "flow.pipe, in order per key"
LOOP = "getmany, write, commit"


def turn(way: Way, bootstrap: str, to: Destination, count: int) -> TimedTurn:
    """Move all records of the topic, with a new group."""
    return lambda: asyncio.run(timed(way, Run(bootstrap, TOPIC, count), to))


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    with (
        a_broker() as broker,
        postgres_server() as dsn,
        _quix(broker.bootstrap, dsn) as (worker, library),
    ):
        fill_with(broker, TOPIC, actions(count, KEYS), partitions=PARTITIONS)
        to = Destination(dsn, ACTIONS)
        ways = [
            placed(line, size, turn(way, broker.bootstrap, to, count), ours=line in {PLAIN, KEYED})
            for size in SIZES
            for line, way in (
                (INSERT, executemany(size)),
                (COPY, copy(size)),
                (PLAIN, into_table(size, keyed=False)),
                (KEYED, into_table(size, keyed=True)),
            )
        ]
        peers = [
            placed(QUIX, size, partial(_turn_of, worker, to, size, count), library=library)
            for size in SIZES
            if worker is not None
        ]
        yield ways + peers


@contextlib.contextmanager
def _quix(bootstrap: str, dsn: str) -> Iterator[tuple[Worker | None, str | None]]:
    """Start a process with Quix Streams, if it can be installed; also return its version."""
    with environment(sys.executable, ["tenacity"], [PACKAGE]) as made:
        if not made.has(PACKAGE):
            yield None, None
            return
        arguments = [bootstrap, TOPIC, dsn, ACTIONS.name, *map(str, SIZES)]
        with Worker(
            SOURCES,
            executable=made.executable,
            program="kafka.programs.quix",
            arguments=arguments,
        ) as worker:
            yield worker, made.version(PACKAGE)


def _turn_of(worker: Worker, to: Destination, size: int, count: int) -> Took:
    """Move all records of the topic in the process of Quix Streams."""
    asyncio.run(to.make_empty(ARRIVED, "CHECKPOINT"))
    took, _ = worker.turn(name_of(QUIX, size), min(1.0, count / ITEMS))
    asyncio.run(check_rows(to, count))
    return took


def _hot_turn(bootstrap: str, count: int, *, ours: bool) -> TimedTurn:
    async def consume() -> Took:
        run, to = Run(bootstrap, TOPIC, count), SlowDestination()
        if ours:
            await pipe(run, to, Limits(max_items=SIZE, workers=4), keyed=True)
        else:
            await fetch_and_write(run, to.take, SIZE)
        took = run.read()
        to.check(count)
        await run.check_positions()
        return took

    return lambda: asyncio.run(consume())


@contextlib.contextmanager
def prepare_hot(count: int) -> Iterator[Sequence[Contender]]:
    with a_broker() as broker:
        fill_with(broker, TOPIC, actions(count, 1), partitions=1)
        yield [
            Contender(LOOP, _hot_turn(broker.bootstrap, count, ours=False)),
            Contender(KEYED, _hot_turn(broker.bootstrap, count, ours=True), ours=True),
        ]


def _ratios(results: Results) -> list[str]:
    """Compare the pipe with each loop, by wall time."""
    found: list[str] = []
    peers = [peer for peer in (INSERT, COPY, QUIX) if peer in results.lines]
    for line in (PLAIN, KEYED):
        for peer in peers:
            ratios = [
                (size, results.ratio(name_of(line, size), name_of(peer, size))) for size in SIZES
            ]
            told = [
                f"{each.median:.2f} x ({each.least:.2f} to {each.most:.2f}) by {size:,} records"
                for size, each in ratios
            ]
            found.append(f"{line}, against {peer}: {', '.join(told)}.")
    return found


CASE = Case(
    name="kafka-postgres",
    title="From Kafka into PostgreSQL, by the records of a batch",
    prepare=prepare,
    items=ITEMS,
    quick_items=2_000,
    unit=US_PER_ITEM,
    peers=(),
    along="records in a batch",
    is_drawn=False,
    notes=_ratios,
)
HOT_CASE = Case(
    name="kafka-hot-key",
    title="From Kafka, one hot key, into a destination that takes 10 ms for each write",
    prepare=prepare_hot,
    items=50_000,
    quick_items=1_000,
    unit=US_PER_ITEM,
    peers=(LOOP,),
    is_drawn=False,
)
CASES = (CASE, HOT_CASE)
