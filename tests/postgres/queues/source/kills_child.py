"""A consumer of a queue in a process that tests kill, freeze or stop.

`kills_child.py '{"dsn": ..., "schema": ..., "consumer": ...}'` handles the jobs of the queue `q`.
For each it writes a row of `effect`, and then, if it still has the lease of the key, one of
`fenced`. The payload determines what else it does: see `Worker.handle`. It prints a JSON line to
its parent each time.

White box: the classifier, which tells the server's errors from others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

import sluicegate
from sluicegate import Consumer, UnavailableError
from sluicegate.consumer import ConsumerObserver
from sluicegate.postgres import PostgresQueueSource
from sluicegate.postgres.client.errors import classify_postgres

if TYPE_CHECKING:
    from sluicegate import Message

FENCED = """
WITH held AS (
  SELECT l.lease FROM {schema}.lane l
  WHERE l.queue = 'q' AND l.key = $2 AND l.owner = $1 AND l.lease_until > clock_timestamp()
  FOR NO KEY UPDATE)
INSERT INTO {schema}.fenced (worker, key, place, lease) SELECT $1, $2, $3, h.lease FROM held h
"""
"""An effect under the lease: the lock prevents a claim from replacing the lease before the effect
exists.
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the consumer."""

    dsn: str
    schema: str
    consumer: str
    lease: float = 0.5
    drain: float = 4.0
    per_key: int = 5
    concurrency: int = 4
    effects: str = ""
    """The server of the effects, if they do not use the same connections."""
    durable: bool = False
    """Whether a committed effect survives a kill of the server."""


class Worker:
    """The handler of one process."""

    def __init__(self, pool: asyncpg.Pool, options: Options) -> None:
        self._pool = pool
        self._options = options

    async def handle(self, message: Message) -> None:
        """Do what the payload says before the effects: `"hold"` the job until the parent sends a
        line, `"block"` the loop until then, or `"exit"`; and `"hang"` after the first of them.
        """
        action = json.loads(message.value)
        if action == "exit":
            os._exit(3)
        if action in ("hold", "block"):
            await self._wait(message, blocks=action == "block")
        await self._insert(
            "INSERT INTO {schema}.effect (worker, key, place) VALUES ($1, $2, $3)", message
        )
        if action == "hang":
            tell(hangs=message.offset)
            await asyncio.Event().wait()
        if message.key is None:
            return
        tag = await self._insert(FENCED, message)
        if action in ("hold", "block"):
            tell(fenced=tag == "INSERT 0 1")

    async def _wait(self, message: Message, *, blocks: bool) -> None:
        tell(holds=message.offset, attempt=message.attempt)
        if blocks:
            sys.stdin.readline()
        else:
            await asyncio.to_thread(sys.stdin.readline)

    async def _insert(self, query: str, message: Message) -> Any:
        options = self._options
        text = query.format(schema=options.schema)
        try:
            return await self._pool.execute(text, options.consumer, message.key, message.offset)
        except Exception as error:
            if classify_postgres(error) is None:
                raise
            raise UnavailableError("the server of the effects is away") from error


class Watch(ConsumerObserver):
    """Reports the consumer's states."""

    def on_state(self, name: str, state: str) -> None:
        tell(state=state)


def tell(**line: object) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201  # the parent reads it


async def consume(options: Options) -> None:
    """Consume until a signal arrives."""
    source = PostgresQueueSource(
        options.dsn,
        queue="q",
        schema=options.schema,
        consumer=options.consumer,
        lease=options.lease,
        per_key=options.per_key,
        poll=0.02,
    )
    settings = {} if options.durable else {"synchronous_commit": "off"}
    pool = await asyncpg.create_pool(
        options.effects or options.dsn,
        min_size=1,
        max_size=options.concurrency,
        server_settings=settings,
    )
    worker = Worker(pool, options)
    consumer = Consumer(
        source,
        name="child",
        concurrency=options.concurrency,
        drain=options.drain,
        observers=[Watch()],
    )
    async with consumer:
        tell(ready=True)
        await consumer.run(worker.handle)


if __name__ == "__main__":
    given = Options(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    sluicegate.run(consume(given))
