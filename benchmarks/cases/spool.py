"""Items on this machine's disk: `deliver` of a batcher with a spool, compared with SQLite by hand and
with queues in a file, by the number of producers that wait for their items.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..destination import installed
from ..harness import MS, NS_PER_ITEM, US_PER_ITEM, Case, Contender, Target, name_of, placed
from ..peers.group_commit import GroupCommit
from ..stopwatch import Clock, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from ..stopwatch import Took

OURS = "Batcher with a spool"
STORED = "the spool alone"
WHEN_FULL = 'spill="when_full"'
MEMORY = "Batcher without a spool"
BY_HAND = "sqlite3 by hand"
PERSIST_QUEUE = "persist-queue"
LITEQUEUE = "litequeue"
PRODUCERS = (1, 10, 100, 1000)
SLOW = 5_000
"""The most items of a peer that commits each of them by itself."""
Put = Callable[[Any], Awaitable[object]]


def _item(at: int) -> dict[str, object]:
    return {"id": at, "user": f"user-{at % 1000}", "cents": at * 7 % 10_000, "note": "x" * 40}


async def _nothing(_: object) -> None:
    pass


@contextlib.asynccontextmanager
async def _batcher(folder: Path, **options: Any) -> Any:
    from sluicegate import Batcher
    from sluicegate.flow import Spool

    spool = Spool(folder / "spool", **options)
    batcher: Batcher[Any] = Batcher(_nothing, spool=spool)
    async with batcher:
        yield batcher.deliver


@contextlib.asynccontextmanager
async def _stored(folder: Path) -> Any:
    from sluicegate import Batcher, Limits
    from sluicegate.flow import Spool

    limits = Limits(max_items=2000, max_delay=0.005)
    batcher: Batcher[Any] = Batcher(Spool(folder / "spool").sink(), limits=limits)
    async with batcher:
        yield batcher.deliver


@contextlib.asynccontextmanager
async def _by_hand(folder: Path) -> Any:
    async with GroupCommit(folder / "items.db") as table:
        yield table.put


@contextlib.asynccontextmanager
async def _persist_queue(folder: Path) -> Any:
    from persistqueue import SQLiteQueue
    from persistqueue.serializers import json

    queue = SQLiteQueue(str(folder), multithreading=True, serializer=json)
    yield lambda item: asyncio.to_thread(queue.put, item)
    queue.close()


@contextlib.asynccontextmanager
async def _litequeue(folder: Path) -> Any:
    import json

    from litequeue import LiteQueue

    queue = LiteQueue(folder / "items.db")
    lock = threading.Lock()

    def put(item: object) -> None:
        with lock:
            queue.put(json.dumps(item))

    yield lambda item: asyncio.to_thread(put, item)
    queue.close()


WAYS: dict[str, Callable[[Path], AbstractAsyncContextManager[Put]]] = {
    OURS: _batcher,
    STORED: _stored,
    BY_HAND: _by_hand,
    PERSIST_QUEUE: _persist_queue,
    LITEQUEUE: _litequeue,
}


def _delivered(way: str, producers: int, count: int) -> tuple[Took, list[float]]:
    """Let each producer deliver its share, one item after the other."""
    seconds: list[float] = []

    async def produce(put: Put, first: int) -> None:
        for at in range(first, count, producers):
            began = time.perf_counter()
            await put(_item(at))
            seconds.append(time.perf_counter() - began)

    async def turn(folder: Path) -> Took:
        async with WAYS[way](folder) as put:
            watch = Stopwatch()
            await asyncio.gather(*[produce(put, first) for first in range(producers)])
            return watch.read()

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        return asyncio.run(turn(Path(folder))), seconds


def _p99(way: str, producers: int, count: int) -> float:
    _, seconds = _delivered(way, producers, count)
    return sorted(seconds)[int(len(seconds) * 0.99)]


def _ways() -> Iterator[str]:
    for way in WAYS:
        module = {PERSIST_QUEUE: "persistqueue", LITEQUEUE: "litequeue"}.get(way)
        if module is None or installed(module):
            yield way


def _contenders(count: int, turn: Callable[[str, int, int], Any]) -> Iterator[Contender]:
    for producers in PRODUCERS:
        share = max(producers, min(count, count * producers // PRODUCERS[-1] * 4))
        for way in _ways():
            items = min(share, SLOW) if way in {PERSIST_QUEUE, LITEQUEUE} else share
            library = f"{way} {version(way)}" if way in {PERSIST_QUEUE, LITEQUEUE} else None
            yield placed(
                way,
                producers,
                partial(turn, way, producers, items),
                ours=way in {OURS, STORED},
                items=items,
                library=library,
            )


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    yield [*_contenders(count, lambda *given: _delivered(*given)[0])]


@contextlib.contextmanager
def prepare_p99(count: int) -> Iterator[Sequence[Contender]]:
    yield [*_contenders(count, _p99)]


def _in_memory(count: int, *, spools: bool) -> Took:
    """Add items while the destination keeps up."""
    from sluicegate import Batcher
    from sluicegate.flow import Spool

    async def turn(folder: Path) -> Took:
        options: Any = {"spool": Spool(folder / "spool", spill="when_full")} if spools else {}
        async with Batcher(_nothing, **options) as batcher:
            watch = Stopwatch()
            for at in range(count):
                await batcher.add(at)
            await batcher.flush()
            took = watch.read()
        assert batcher.tally().delivered == count, batcher.tally()
        return took

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        return asyncio.run(turn(Path(folder)))


@contextlib.contextmanager
def prepare_when_full(count: int) -> Iterator[Sequence[Contender]]:
    yield [
        Contender(WHEN_FULL, partial(_in_memory, count, spools=True), ours=True),
        Contender(MEMORY, partial(_in_memory, count, spools=False), ours=True),
    ]


CASES = (
    Case(
        name="spool",
        title="Items stored on disk, by the number of producers that wait for them",
        prepare=prepare,
        items=20_000,
        quick_items=1_000,
        unit=US_PER_ITEM,
        peers=(BY_HAND,),
        along="producers",
        targets=tuple(
            Target(name_of(STORED, producers), name_of(BY_HAND, producers), 0.9)
            for producers in PRODUCERS
        ),
    ),
    Case(
        name="spool-p99",
        title="The 99th percentile of a wait for the disk, by the number of producers",
        prepare=prepare_p99,
        items=20_000,
        quick_items=1_000,
        unit=MS,
        peers=(BY_HAND,),
        along="producers",
    ),
    Case(
        name="spool-when-full",
        title="Items written from memory, with a spool behind them",
        prepare=prepare_when_full,
        items=200_000,
        quick_items=1_000,
        unit=NS_PER_ITEM,
        peers=(MEMORY,),
        by=Clock.PROCESSOR,
        targets=(Target(WHEN_FULL, MEMORY, 0.95),),
    ),
)
