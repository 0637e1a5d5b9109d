"""A flow from a queue into a table beside it, in a process that tests kill, freeze or stop.

`queue_child.py '{"dsn": ..., "schema": ..., "consumer": ..., "kind": "rows"}'` moves the jobs of
the queue `q`: as `rows`, as `effects` of a handler, or through a `pipe`.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sluicegate
from sluicegate import Batcher, Limits, Retry, flow, stack
from sluicegate.postgres import PostgresEffects, PostgresQueueSource, PostgresSink

if TYPE_CHECKING:
    from sluicegate import Message

COLUMNS = ("worker", "key", "place", "word")
IDLE = 1.5
"""Seconds for which a frozen process may hold its locks."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The kind and the options of the flow."""

    dsn: str
    schema: str
    consumer: str
    kind: str
    lease: float
    drain: float = 4.0
    per_key: int = 5

    def row_of(self, message: Message) -> tuple[str, object, int, str]:
        """The row of a job."""
        assert isinstance(message.value, bytes)
        return self.consumer, message.key, message.offset, str(json.loads(message.value))

    @property
    def source(self) -> PostgresQueueSource:
        """The source of the jobs."""
        return PostgresQueueSource(
            self.dsn,
            queue="q",
            schema=self.schema,
            consumer=self.consumer,
            lease=self.lease,
            per_key=self.per_key,
            poll=0.02,
        )

    @property
    def sink(self) -> PostgresSink:
        """The sink of the rows."""
        return PostgresSink(self.dsn, table="effect", schema=self.schema, columns=COLUMNS)


def flow_of(options: Options) -> flow.TransactionalPipe | flow.Pipe:
    """The flow."""
    more: dict[str, Any] = {"name": "child", "drain": options.drain}
    if options.kind == "rows":
        return flow.transaction(options.source, options.sink, options.row_of, **more)
    if options.kind == "effects":
        insert = (
            f"INSERT INTO {options.schema}.effect (worker, key, place, word) "
            "VALUES ($1, $2, $3, $4)"
        )

        async def handle(message: Message) -> None:
            await message.connection.execute(insert, *options.row_of(message))

        effects = PostgresEffects(options.dsn, idle_timeout=IDLE)
        return flow.transaction(options.source, effects, handle, **more)
    batcher = Batcher(
        stack(options.sink, Retry()),
        key=lambda row: row[1] or row[2],
        limits=Limits(max_items=20, max_delay=0.01),
    )
    return flow.pipe(options.source, batcher, transform=options.row_of, **more)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    sluicegate.run(flow_of(Options(**json.loads(sys.argv[1]))).run())
