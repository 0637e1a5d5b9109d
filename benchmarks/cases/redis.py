"""Redis as a destination: the cost of a stream entry, compared with redis-py's own ways to add it.

One connection, entries of four fields, a server on the same machine with its log off. The pipeline
written by hand has the same number of commands as that of the sink.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from sluicegate import RowBatch, send

from ..destination import installed
from ..events import ROWS, sizes
from ..harness import US_PER_ITEM, Case, CaseUnavailableError, Contender, Target, name_of, placed
from ..stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence

    from ..stopwatch import TimedTurn, Took

    Entry = Mapping[str, Any]
    Write = Callable[[Sequence[Entry]], Awaitable[None]]

SINK, PIPELINE = "RedisSink", "redis-py, a pipeline of XADD"
ONE_BY_ONE = "redis-py, XADD for each entry"
MOST = 1_000
STREAM = "events"


@asynccontextmanager
async def by_sink(url: str) -> AsyncGenerator[Write]:
    """Write with one connection of the sink."""
    from sluicegate.redis import RedisSink

    async with RedisSink(url, stream=STREAM, pool_size=1) as sink:

        async def write(batch: Sequence[Entry]) -> None:
            if errors := await send(sink, RowBatch(batch)):
                raise AssertionError(f"an entry was refused: {errors}")

        yield write


def _asyncio() -> Any:
    import redis.asyncio

    return redis.asyncio


@asynccontextmanager
async def by_pipeline(url: str) -> AsyncGenerator[Write]:
    """Send all commands of a batch together, without a transaction."""
    client: Any = _asyncio().Redis.from_url(url)
    async with client:

        async def write(batch: Sequence[Entry]) -> None:
            async with client.pipeline(transaction=False) as pipeline:
                for entry in batch:
                    pipeline.xadd(STREAM, entry)
                await pipeline.execute()

        yield write


@asynccontextmanager
async def one_by_one(url: str) -> AsyncGenerator[Write]:
    """Use a round trip for each entry."""
    client: Any = _asyncio().Redis.from_url(url)
    async with client:

        async def write(batch: Sequence[Entry]) -> None:
            for entry in batch:
                await client.xadd(STREAM, entry)

        yield write


def _turn(url: str, size: int, count: int, way: Any) -> TimedTurn:
    import redis

    entries = [
        {"event_id": n, "user_id": n % 977, "action": f"action {n % 31}", "note": "x" * 60}
        for n in range(count + size)
    ]
    batches = [entries[at : at + size] for at in range(0, count + size, size)]
    look: Any = cast("Any", redis).Redis.from_url(url)

    async def turn() -> Took:
        async with way(url) as write:
            await write(batches[0])
            watch = Stopwatch()
            for batch in batches[1:]:
                await write(batch)
            return watch.read()

    def run() -> Took:
        look.delete(STREAM)
        took = asyncio.run(turn())
        found = look.xlen(STREAM)
        assert found == len(entries), f"{found} of {len(entries)} entries arrived"
        return took

    return run


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    if not installed("redis"):
        raise CaseUnavailableError("redis-py is not installed")
    from tests.redis_server import redis_server

    from sluicegate.testing import EmbeddedUnavailable

    ways = {SINK: by_sink, PIPELINE: by_pipeline, ONE_BY_ONE: one_by_one}
    with contextlib.ExitStack() as opened:
        try:
            server = opened.enter_context(redis_server(appendonly="no"))
        except EmbeddedUnavailable as reason:
            raise CaseUnavailableError(str(reason)) from None
        found: list[Contender] = []
        for size in sizes(count, MOST):
            entries = size * max(1, min(count // size, 500))
            found += [
                placed(
                    line,
                    size,
                    _turn(server.url, size, entries, way),
                    ours=line == SINK,
                    items=entries,
                )
                for line, way in ways.items()
            ]
        yield found


CASE = Case(
    name="redis",
    title="Entries into a stream of Redis",
    prepare=prepare,
    items=ROWS,
    quick_items=100,
    along="entries in a batch",
    unit=US_PER_ITEM,
    peers=(PIPELINE,),
    targets=(
        Target(name_of(SINK, 100), name_of(PIPELINE, 100), 1.0),
        Target(name_of(SINK, 100), name_of(ONE_BY_ONE, 100), 5.0),
    ),
)
