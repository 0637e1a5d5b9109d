"""A worker of the scene on the queue, in its own process: it writes a row per handled flight.

It handles batches. The table refuses a batch with a spoiled flight as a whole; the consumer then
tries smaller ones, until that flight is alone.

It reads its settings from a line of JSON on stdin, prints `ready` as soon as it consumes, and
drains on SIGTERM.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

from sluicegate import Consumer, PermanentError, run
from sluicegate.consumer import Commits
from sluicegate.postgres import PostgresQueueSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message

MODULE = "examples.demo.queue_worker"
QUEUE = "flights"
LEASE_SECONDS = 1.0
"""Seconds after which the aircraft of a killed worker pass to other workers."""
POLL_SECONDS = 0.1
DRAIN_SECONDS = 20.0
COMMIT_SECONDS = 0.5
CONCURRENCY = 2
BATCH = 50
MAX_IN_FLIGHT = 200
_HANDLED = """
INSERT INTO {schema}.handled (line, tailnum, number, worker)
SELECT line, tailnum, number, $4 FROM unnest($1::bigint[], $2::text[], $3::int[]) AS flight (line, tailnum, number)
"""


@dataclass(frozen=True, kw_only=True)
class QueuePlace:
    """The places that the workers read from and write to."""

    dsn: str
    queues: str
    """The schema of the queue."""
    schema: str
    """The schema of the table of handled flights."""


async def work(place: QueuePlace, name: str) -> None:
    """Handle flights until a signal."""
    insert = _HANDLED.format(schema=place.schema)

    async def handle(messages: Sequence[Message]) -> None:
        legs = [json.loads(message.value) for message in messages]
        columns = [[leg[each] for leg in legs] for each in ("line", "tailnum", "number")]
        try:
            await pool.execute(insert, *columns, name)
        except asyncpg.CheckViolationError as error:
            refused = "the table refuses the flight"
            raise PermanentError(refused) from error

    pool: asyncpg.Pool[Any]
    async with (
        asyncpg.create_pool(place.dsn, min_size=1, max_size=CONCURRENCY) as pool,
        _consumer(place, name) as consumer,
    ):
        print("ready", flush=True)
        await consumer.run_batch(handle, size=BATCH, max_wait=0.0)


def _consumer(place: QueuePlace, name: str) -> Consumer:
    source = PostgresQueueSource(
        place.dsn,
        queue=QUEUE,
        schema=place.queues,
        consumer=name,
        lease=LEASE_SECONDS,
        poll=POLL_SECONDS,
    )
    return Consumer(
        source,
        name=QUEUE,
        concurrency=CONCURRENCY,
        in_flight=MAX_IN_FLIGHT,
        commits=Commits(every=COMMIT_SECONDS),
        drain=DRAIN_SECONDS,
    )


def main() -> None:
    """Read the settings and work."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    settings = json.loads(sys.stdin.readline())
    run(work(QueuePlace(**settings["place"]), settings["name"]))


if __name__ == "__main__":
    main()
