"""Consumers of queues in PostgreSQL: a service, batches, a cron job, sticky routing, effects that
occur once, and effects that are fenced by the lease.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sluicegate import Consumer, flow
from sluicegate.postgres import PostgresEffects, PostgresQueueSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import asyncpg

    from sluicegate import Message
    from sluicegate.consumer import DrainReport


# --8<-- [start:service]
async def serve(dsn: str, send: Callable[[Message], Awaitable[None]]) -> None:
    source = PostgresQueueSource(dsn, queue="mails")
    await Consumer(source, name="mails", concurrency=50, drain=20.0).run(send)


# --8<-- [end:service]
# --8<-- [start:batches]
async def in_batches(
    dsn: str, send_all: Callable[[Sequence[Message]], Awaitable[None]]
) -> DrainReport:
    source = PostgresQueueSource(dsn, queue="mails", per_key=100, ends=True)
    return await Consumer(source, name="mails").run_batch(send_all, size=500, max_wait=0.2)


# --8<-- [end:batches]
# --8<-- [start:budget]
async def for_a_minute(dsn: str, send: Callable[[Message], Awaitable[None]]) -> DrainReport:
    source = PostgresQueueSource(dsn, queue="mails", ends=True)
    report = await Consumer(source, name="mails", budget=60.0).run(send)
    if report.work_remaining:
        print("more to do: run me again soon")
    return report


# --8<-- [end:budget]
# --8<-- [start:sticky]
def sticky(dsn: str) -> PostgresQueueSource:
    return PostgresQueueSource(dsn, queue="routed", group="mailers", consumer=os.environ["POD"])


# --8<-- [end:sticky]
# --8<-- [start:effects]
async def charge_once(dsn: str) -> DrainReport:
    source = PostgresQueueSource(dsn, queue="charges", ends=True)

    async def charge(message: Message) -> None:
        update = "UPDATE account SET cents = cents - $2 WHERE name = $1"
        await message.connection.execute(update, message.key, int(message.value))

    return await flow.transaction(source, PostgresEffects(dsn), charge, name="charges").run()


# --8<-- [end:effects]
# --8<-- [start:fence]
CHARGE = """
UPDATE account a SET cents = a.cents - $4, lease = l.lease
FROM sluicegate.lane l JOIN sluicegate.job j ON j.queue = l.queue AND j.key = l.key
WHERE a.name = l.key AND a.lease <= l.lease
  AND l.queue = 'charges' AND l.key = $1 AND l.owner = $2 AND l.lease_until > clock_timestamp()
  AND j.place = $3
"""


def charges(dsn: str, pool: asyncpg.Pool[Any], process: str) -> tuple[PostgresQueueSource, Any]:
    source = PostgresQueueSource(dsn, queue="charges", consumer=process)

    async def charge(message: Message) -> None:
        cents = int(message.value)
        done = await pool.execute(CHARGE, message.key, process, message.offset, cents)
        if done == "UPDATE 0":
            raise RuntimeError("the lease was lost: another process has the key by now")

    return source, charge


# --8<-- [end:fence]
