"""A queue and its consumer: mails in order per customer. A mail that cannot be sent stops only the
mails of its customer, until the cause is repaired and an operator continues the key.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import asyncpg

from sluicegate import Consumer, RetryPolicy
from sluicegate.postgres import PostgresQueueSource, QueueAdmin, install_streams
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.consumer import DrainReport

JOB = "INSERT INTO sluicegate.job (queue, key, payload) VALUES ('mails', $1, $2)"
addresses = {"ann": "ann@example.org"}
sent: dict[str, list[str]] = {}


async def send(message: Message) -> None:
    customer, mail = message.key, json.loads(message.value)["mail"]
    if customer not in addresses:
        raise LookupError(f"no address of {customer}")
    sent.setdefault(customer, []).append(mail)


async def consume(dsn: str) -> DrainReport:
    source = PostgresQueueSource(dsn, queue="mails", ends=True)
    return await Consumer(source, name="mails", retry=RetryPolicy(attempts=3)).run(send)


async def main(dsn: str) -> None:
    await install_streams(dsn)  # once per database, as `sluicegate pg install` does
    async with QueueAdmin(dsn) as admin:
        await admin.create("mails")  # as `sluicegate queue create` does
        con = await asyncpg.connect(dsn)
        for customer in ("ann", "bob"):
            for mail in ("placed", "paid", "sent"):
                await con.execute(JOB, customer, json.dumps({"mail": mail}))
        await con.close()

        print(await consume(dsn))
        print(sent)
        keys = await admin.keys("mails")
        for lane in await keys.lanes("parked"):
            print(lane.key, "is parked:", lane.reason)

        addresses["bob"] = "bob@example.org"
        await keys.unpark("bob")
        print(await consume(dsn))
        print(sent)


if __name__ == "__main__":
    with embedded_postgres() as server:
        asyncio.run(main(server.dsn))
