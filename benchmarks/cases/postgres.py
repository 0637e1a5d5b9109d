"""Flights into a PostgreSQL of our own, with its default durability: a batcher with a COPY sink
beside a loop written by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from penstock import Batcher, Limits

from ..flights import COLUMNS, TABLE, load
from ..harness import NS_PER_ITEM, Case, CaseUnavailableError, Contender, Target
from ..peers.asyncpg_loop import copy_rows
from ..stopwatch import Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SIZE = 500
BY_HAND = "asyncpg COPY loop by hand"
OURS = "Batcher + PostgresSink"

row: Callable[[dict[str, Any]], tuple[Any, ...]] = itemgetter(*COLUMNS)
"""The same conversion for both."""


def _ours(dsn: str, items: Sequence[dict[str, Any]]) -> Took:
    from penstock.sinks.postgres import PostgresSink

    async def turn() -> Took:
        await _empty(dsn)
        sink = PostgresSink(dsn, table="flights", columns=COLUMNS, row=row)
        async with Batcher(sink, limits=Limits(max_items=SIZE, workers=1)) as batcher:
            watch = Stopwatch()
            for item in items:
                await batcher.add(item)
            await batcher.flush()
            took = watch.read()
        await _check(dsn, len(items))
        return took

    return asyncio.run(turn())


def _by_hand(dsn: str, items: Sequence[dict[str, Any]]) -> Took:
    import asyncpg

    async def turn() -> Took:
        await _empty(dsn)
        connection = await asyncpg.connect(dsn)
        try:
            watch = Stopwatch()
            await copy_rows(connection, items, table="flights", columns=COLUMNS, row=row, size=SIZE)
            took = watch.read()
        finally:
            await connection.close()
        await _check(dsn, len(items))
        return took

    return asyncio.run(turn())


async def _empty(dsn: str) -> None:
    """An empty table, and no writing left over from the turn before."""
    await _execute(dsn, "DROP TABLE IF EXISTS flights", TABLE, "CHECKPOINT")


async def _check(dsn: str, count: int) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetchval("SELECT count(*) FROM flights")
    finally:
        await connection.close()
    if found != count:
        raise AssertionError(f"{found} of {count} rows arrived")


async def _execute(dsn: str, *statements: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    try:
        import asyncpg  # noqa: F401

        from penstock.sinks.postgres import PostgresSink  # noqa: F401
        from penstock.testing import EmbeddedUnavailable, embedded_postgres
    except ImportError as missing:
        raise CaseUnavailableError(str(missing)) from missing
    items, _ = load(count)
    with contextlib.ExitStack() as opened:
        try:
            server = opened.enter_context(embedded_postgres())
        except EmbeddedUnavailable as missing:
            raise CaseUnavailableError(str(missing)) from missing
        dsn = server.dsn
        yield (
            Contender(OURS, lambda: _ours(dsn, items), ours=True),
            Contender(BY_HAND, lambda: _by_hand(dsn, items)),
        )


CASE = Case(
    name="postgres",
    title="Flights into PostgreSQL by COPY, batches of 500, one connection",
    prepare=prepare,
    items=100_000,
    quick_items=2_000,
    unit=NS_PER_ITEM,
    peers=(BY_HAND,),
    targets=(Target(OURS, BY_HAND, 0.9),),
)
