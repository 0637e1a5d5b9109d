"""Workloads with a destination or a source, compared with another revision: rows into PostgreSQL,
records through the consumer, and through a pipe.

The server is another process, so only the time of the library and its client counts.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import sluicegate
from sluicegate import Batcher, Limits, RowBatch, flow
from sluicegate.postgres import PostgresSink

from .consuming import check as check_position
from .consuming import nothing, ours, ours_in_batches, records, source_of
from .destination import NO_WAIT, Destination, Table
from .feeds import DEPTH, LINGER, SIZE, NullSink, check
from .stopwatch import Stopwatch, TimedTurn, Took
from .workloads import WORKLOADS, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Message

ROWS_OF = {1: 800, 10: 6_000, 100: 40_000, 1_000: 160_000}
"""Rows of a full turn, by the rows of a batch."""
TYPES = {"id": "bigint", "account": "int", "label": "text", "amount": "double precision"}


def row(number: int) -> tuple[Any, ...]:
    return (number, number % 1_000, f"label {number % 100}", number / 8)


def _into_postgres(size: int, mode: Literal["error", "update"]) -> Callable[[range], TimedTurn]:
    """Write batches of `size` rows; with `update`, all of them to the same keys."""

    def prepare(items: range) -> TimedTurn:
        # of this process alone: its neighbour's statements are for its own table
        table = Table(f"rows_{os.getpid()}", TYPES, key="id")
        to = Destination(os.environ[DSN], table)
        groups = [items[start : start + size] for start in range(0, len(items), size)]
        first = range(-size, 0)
        batches = [
            tuple(row(n % size if mode == "update" else n) for n in group)
            for group in (first, *groups)
        ]

        async def turn() -> Took:
            await to.make_empty()
            sink = PostgresSink(to.dsn, table=table.name, columns=table.columns, on_conflict=mode)
            async with sink:
                await _send(sink, batches[0])  # prepares the statement
                watch = Stopwatch()
                for batch in batches[1:]:
                    await _send(sink, batch)
                took = watch.read()
            await to.check(size if mode == "update" else size + len(items))
            return took

        return lambda: asyncio.run(turn())

    return prepare


async def _send(sink: PostgresSink, batch: tuple[Any, ...]) -> None:
    if errors := await sluicegate.send(sink, RowBatch(batch)):
        raise AssertionError(f"rows failed: {errors}")


def _piped(items: range, *, keyed: bool) -> TimedTurn:
    """Move records from a memory source into a sink that does nothing, until the last commit."""
    from sluicegate.consumer import MemoryLog

    given = records(len(items))

    def key_of(message: Message) -> object:
        return message.key

    def same(message: Message) -> Message:
        return message

    async def turn() -> Took:
        log, sink = MemoryLog(given), NullSink()
        limits = Limits(
            max_items=SIZE, max_delay=LINGER, max_pending_items=DEPTH, workers=2 if keyed else 1
        )
        batcher: Batcher[Any] = Batcher(sink, limits=limits, key=key_of if keyed else None)
        piped = flow.pipe(source_of(log), batcher, transform=same, in_flight=4 * SIZE)
        watch = Stopwatch()
        await piped.run()
        took = watch.read()
        check(sink.count, items)
        check_position(log, len(given))
        return took

    return lambda: asyncio.run(turn())


def _postgres(size: int, mode: Literal["error", "update"]) -> Workload:
    kind = "upserts" if mode == "update" else "inserts"
    name = f"PostgreSQL, {kind} of {size:,} rows" if size > 1 else f"PostgreSQL, {kind} of 1 row"
    return Workload(name, ROWS_OF[size], _into_postgres(size, mode))


DSN = "SLUICEGATE_BENCH_DSN"
"""The environment variable with the DSN of the server."""
WITH_POSTGRES = {
    workload.name: workload
    for workload in (
        *(_postgres(size, "error") for size in ROWS_OF),
        *(_postgres(size, "update") for size in ROWS_OF),
    )
}
COMPARED = {
    **{name: workload for name, workload in WORKLOADS.items() if workload.ours},
    **WITH_POSTGRES,
    **{
        workload.name: workload
        for workload in (
            Workload("consumer", 12_000, lambda items: ours(records(len(items)), nothing)),
            Workload(
                f"consumer, batches of {SIZE}",
                40_000,
                lambda items: ours_in_batches(records(len(items)), SIZE),
            ),
            Workload("pipe", 40_000, partial(_piped, keyed=False)),
            Workload("pipe, 1,000 keys", 24_000, partial(_piped, keyed=True)),
        )
    },
}
"""All workloads of a comparison."""


def with_server(dsn: str) -> dict[str, str]:
    """Return the environment of a worker that uses the server."""
    return {DSN: dsn + NO_WAIT}
