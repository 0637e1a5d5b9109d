"""Handlers with effects for the messages of a log of streams, in a process that tests kill or
freeze.

`stream_effects_child.py '{"dsn": ..., "schema": ..., "table": ..., "positions": ..., "log": ...}'`
writes one row per message, with its process, slot, position, stream and version: in the transaction
of the message's position, or with `"leases": true` in its own, before the position is stored.

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
from sluicegate import Consumer, UnavailableError, flow
from sluicegate.consumer import Commits
from sluicegate.postgres import PostgresEffects, PostgresStreamSource
from sluicegate.postgres.client.errors import classify_postgres

if TYPE_CHECKING:
    from sluicegate import Message

ANSWER = 1.0
"""Seconds for the effects of a message: the library does not bound a handler's statements."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is read, and where the effects are written."""

    dsn: str
    schema: str
    table: str
    positions: str
    log: str
    effects: str = ""
    """The server of the effects in leases, if they do not use the same connections."""
    leases: bool = False
    ends: bool = False
    lease: float = 0.5

    @property
    def source(self) -> PostgresStreamSource:
        """All streams of the log."""
        return PostgresStreamSource(
            self.dsn,
            subscription="effects",
            schema=self.schema,
            lease=self.lease,
            poll=0.02,
            slots_at_once=256,
            ends=self.ends,
        )

    async def insert(self, con: Any, message: Message) -> None:
        """The effect of a message."""
        await con.execute(
            f"INSERT INTO {self.table} (process, slot, at, stream, version) "
            "VALUES ($1, $2, $3, $4, $5)",
            os.getpid(),
            message.partition,
            message.offset,
            message.key,
            int(message.header("version") or -1),
        )


async def transact(options: Options) -> None:
    """Commit effects together with the position."""

    async def handle(message: Message) -> None:
        async with asyncio.timeout(ANSWER):
            await options.insert(message.connection, message)

    effects = PostgresEffects(options.dsn, positions=options.positions, idle_timeout=1.0)
    await flow.transaction(
        options.source,
        effects,
        handle,
        name="child",
        commits=Commits(every=0.02, after=10),
        drain=4.0,
    ).run()


async def consume(options: Options) -> None:
    """Store the position after the effects."""

    async def handle(message: Message) -> None:
        try:
            await options.insert(pool, message)
        except Exception as error:
            if classify_postgres(error) is None:
                raise
            raise UnavailableError("the server of the effects is away") from error

    pool = await asyncpg.create_pool(options.effects or options.dsn, min_size=1, max_size=4)
    async with Consumer(
        options.source, name="child", ordering="partition", commits=Commits(every=0.02), drain=4.0
    ) as consumer:
        await consumer.run(handle)
    pool.terminate()


if __name__ == "__main__":
    given = Options(**json.loads(sys.argv[1]))
    logging.basicConfig(
        filename=given.log, level=logging.INFO, format="%(asctime)s %(process)d %(message)s"
    )
    sluicegate.run(consume(given) if given.leases else transact(given))
