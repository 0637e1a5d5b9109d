"""A pipe from the topic of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluicegate import Batcher, Limits, Retry, flow, stack
from sluicegate.kafka import KafkaSource
from sluicegate.postgres import PostgresSink

from .actions import account_of
from .runs import HELD_BACK

if TYPE_CHECKING:
    from sluicegate import Message, Sink

    from ...destination import Destination, Row
    from .runs import Run, Way

WORKERS = 2
"""Number of workers of a pipe with keys."""
WINDOW = 4
"""Maximum number of batches of records inside."""


async def pipe(run: Run, sink: Sink[Row], limits: Limits, *, keyed: bool) -> None:
    """Move all records into a sink, until the pipe is closed."""
    source = KafkaSource(
        run.topic, bootstrap=run.bootstrap, group=run.group, client={"fetch_max_wait_ms": HELD_BACK}
    )
    left = run.count

    def decode(message: Message) -> Row:
        nonlocal left
        left -= 1
        if not left:
            piped.stop()
        return run.decode(message)

    key = account_of if keyed else None
    batcher = Batcher(stack(sink, Retry()), key=key, limits=limits)
    piped = flow.pipe(source, batcher, transform=decode, in_flight=WINDOW * limits.max_items)
    await piped.run()
    run.store(batcher.tally().delivered)


def into_table(size: int, *, keyed: bool) -> Way:
    """Move all records into a table."""

    async def way(run: Run, to: Destination) -> None:
        table = to.table
        sink = PostgresSink(to.dsn, table=table.name, columns=table.columns)
        limits = Limits(max_items=size, workers=WORKERS if keyed else 1)
        await pipe(run, sink, limits, keyed=keyed)

    return way
