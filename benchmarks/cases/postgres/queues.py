"""A queue in PostgreSQL, compared with queues without order per key and with those of peers.

Every server has its default durability: a commit waits for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from ...destination import installed, postgres_server
from ...harness import US_PER_ITEM, Case, Contender, Target, Unit, name_of, placed
from ...postgres.queues.lanes import Lanes, LanesWithBells, LanesWithoutBells, consumed, insert
from ...postgres.queues.pgmq import Pgmq, send
from ...postgres.queues.pgqueuer import PgQueuer, enqueue, run_worker
from ...postgres.queues.procrastinate import Procrastinate, defer, worked
from ...postgres.queues.unordered import Unordered, UnorderedAsynchronous, insert_unordered
from ...postgres.queues.ways import WRITERS, Jobs, drained, enqueued, fetched, looped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ...postgres.queues.ways import Way

OURS = "claim_jobs, settle_jobs"
UNORDERED = "unordered, SKIP LOCKED"
ASYNCHRONOUS = "the same, reads asynchronous"
PGMQ = "pgmq.read"
GROUPED = "pgmq.read_grouped_rr"
HEADS = "pgmq.read_grouped_head"
PROCRASTINATE = "procrastinate"
PGQUEUER = "PgQueuer"

MANY, ONE, PAIRS, HOT = "50 keys x 10", "1 key x 1", "two jobs a key", "one hot key"
LEASES = {MANY: (50, 10), ONE: (1, 1), PAIRS: (250, 10), HOT: (1, 100)}
"""The maximum number of keys leased at once, and of jobs per key."""

RUNG = "INSERT"
SILENT = "INSERT, trigger disabled"
SEND = "pgmq.send"

CONSUMER = "Consumer"
LOOP, LOOP_PGMQ, LOOP_GROUPED = f"loop, {UNORDERED}", f"loop, {PGMQ}", f"loop, {GROUPED}"
WORKER = "procrastinate's worker"
MANAGER = "PgQueuer's worker"
TENS, TWOS = "10 jobs a key", "2 jobs a key"
BATCH = 500

CLAIM = "claim_jobs"
BEHIND = 1_000
"""Number of jobs of other keys behind the hot one."""
MS_PER_FETCH = Unit("ms per fetch", 1e3)


@contextlib.contextmanager
def _server(ways: Iterable[Way]) -> Iterator[str]:
    """Start a server with the tables of these ways."""

    async def install(dsn: str) -> None:
        for way in ways:
            await way.install(dsn)

    with postgres_server() as dsn:
        asyncio.run(install(dsn))
        yield dsn


def _peers() -> list[Way]:
    """Return one of each installed peer."""
    found: dict[Way, bool] = {
        Pgmq(): installed("pgmq"),
        Procrastinate(): _has_procrastinate(),
        PgQueuer(): installed("pgqueuer"),
    }
    return [way for way, is_installed in found.items() if is_installed]


def _has_procrastinate() -> bool:
    return installed("procrastinate", "psycopg", "psycopg_pool")


@contextlib.contextmanager
def prepare_sql(count: int) -> Iterator[Sequence[Contender]]:
    some, few = min(count, 2_000), max(1, count // 50)
    jobs = {
        MANY: Jobs(count, keys=count // 20),
        ONE: Jobs(count, keys=count // 4),
        PAIRS: Jobs(count, keys=count // 2),
        HOT: Jobs(count, keys=1),
    }
    ours: dict[str, Way] = {
        OURS: Lanes(),
        UNORDERED: Unordered(),
        ASYNCHRONOUS: UnorderedAsynchronous(),
    }
    with _server([*ours.values(), *_peers()]) as dsn:

        def of(line: str, at: str, way: Way, items: int) -> Contender:
            turn = partial(drained, dsn, way, jobs[at], LEASES[at], items)
            return placed(line, at, turn, ours=line == OURS, items=items)

        contenders: list[Contender] = []
        for at in jobs:
            size = few if at == ONE else count
            contenders += [of(line, at, way, size) for line, way in ours.items()]
            if installed("pgmq"):
                contenders.append(of(PGMQ, at, Pgmq(), size))
                slow = max(5, few // 10) if at == ONE else some
                contenders.append(of(GROUPED, at, Pgmq("read_grouped_rr"), slow))
            if installed("pgqueuer"):
                contenders.append(of(PGQUEUER, at, PgQueuer(), size))
            if at == ONE and _has_procrastinate():
                contenders.append(of(PROCRASTINATE, at, Procrastinate(), few))
        yield contenders


@contextlib.contextmanager
def prepare_enqueue(count: int) -> Iterator[Sequence[Contender]]:
    few = max(count // 5, WRITERS)
    with _server([Lanes(), Unordered(), *_peers()]) as dsn:
        by = partial(enqueued, dsn)
        contenders = [
            Contender(RUNG, lambda: by(LanesWithBells(), insert, count), ours=True),
            Contender(SILENT, lambda: by(LanesWithoutBells(), insert, count)),
            Contender(UNORDERED, lambda: by(Unordered(), insert_unordered, count)),
        ]
        if installed("pgmq"):
            contenders.append(Contender(SEND, lambda: by(Pgmq(), send, count)))
        if installed("pgqueuer"):
            contenders.append(Contender(PGQUEUER, lambda: by(PgQueuer(), enqueue, count)))
        if _has_procrastinate():
            contenders.append(
                Contender(PROCRASTINATE, lambda: by(Procrastinate(), defer, few), items=few)
            )
        yield contenders


@contextlib.contextmanager
def prepare_consumed(count: int) -> Iterator[Sequence[Contender]]:
    some, few = max(200, count // 10), max(200, count // 100)
    with _server([Lanes(), Unordered(), *_peers()]) as dsn:
        contenders: list[Contender] = []
        for at, each in ((TENS, 10), (TWOS, 2)):
            jobs, fewer, fewest = (Jobs(n, keys=n // each) for n in (count, some, few))
            by = partial(looped, dsn, most=BATCH)
            contenders += [
                placed(CONSUMER, at, partial(consumed, dsn, jobs), ours=True),
                placed(LOOP, at, partial(by, Unordered(), jobs)),
            ]
            if installed("pgmq"):
                grouped = partial(by, Pgmq("read_grouped_rr"), fewer)
                contenders += [
                    placed(LOOP_PGMQ, at, partial(by, Pgmq(), jobs)),
                    placed(LOOP_GROUPED, at, grouped, items=fewer.count),
                ]
            if installed("pgqueuer"):
                contenders.append(
                    placed(MANAGER, at, partial(run_worker, dsn, fewer, BATCH), items=fewer.count)
                )
            if _has_procrastinate():
                contenders.append(
                    placed(WORKER, at, partial(worked, dsn, fewest), items=fewest.count)
                )
        yield contenders


@contextlib.contextmanager
def prepare_hot_key(count: int) -> Iterator[Sequence[Contender]]:
    ways: list[tuple[str, Way, int]] = [(CLAIM, Lanes(), 50)]
    if installed("pgmq"):
        ways += [(HEADS, Pgmq("read_grouped_head"), 5), (GROUPED, Pgmq("read_grouped_rr"), 5)]
    if _has_procrastinate():
        ways.append((PROCRASTINATE, Procrastinate(), 1))
    with _server([Lanes(), *_peers()]) as dsn:
        yield [
            Contender(
                name,
                partial(fetched, dsn, way, count, BEHIND, fetches),
                ours=name == CLAIM,
                items=fetches,
            )
            for name, way, fetches in ways
        ]


CASES = (
    Case(
        name="queue",
        title="Jobs taken and settled by SQL, one worker",
        prepare=prepare_sql,
        items=20_000,
        quick_items=400,
        unit=US_PER_ITEM,
        peers=(UNORDERED, ASYNCHRONOUS, GROUPED, PGQUEUER, PROCRASTINATE),
        targets=tuple(
            Target(name_of(OURS, at), name_of(UNORDERED, at), goal)
            for at, goal in ((MANY, 0.9), (ONE, 0.8), (PAIRS, 0.25))
        ),
        along="leases",
    ),
    Case(
        name="queue-enqueued",
        title="Jobs enqueued, one in a transaction, 32 writers",
        prepare=prepare_enqueue,
        items=6_400,
        quick_items=320,
        unit=US_PER_ITEM,
        peers=(SILENT, UNORDERED, SEND, PGQUEUER, PROCRASTINATE),
    ),
    Case(
        name="queue-consumed",
        title="Jobs of a queue handled by a handler that does nothing",
        prepare=prepare_consumed,
        items=50_000,
        quick_items=1_000,
        unit=US_PER_ITEM,
        peers=(LOOP, LOOP_PGMQ, LOOP_GROUPED, MANAGER, WORKER),
        along="jobs",
    ),
    Case(
        name="queue-hot-key",
        title="A fetch behind 100,000 jobs of a held key",
        prepare=prepare_hot_key,
        items=100_000,
        quick_items=2_000,
        unit=MS_PER_FETCH,
        peers=(HEADS, GROUPED, PROCRASTINATE),
    ),
)
