"""Jobs enqueued in PostgreSQL: one in the transaction of an order, and many behind a batcher."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import asyncpg

from sluicegate import Batcher, Retry, stack
from sluicegate.postgres import PostgresQueueSink, QueueAdmin, install_streams
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from collections.abc import Iterable

TABLE = "CREATE TABLE orders (number int PRIMARY KEY, customer text, cents int CHECK (cents > 0))"
JOB = "INSERT INTO sluicegate.job (queue, key, payload) VALUES ('mails', $1, $2)"


async def place(con: asyncpg.Connection, number: int, customer: str, cents: int) -> None:
    async with con.transaction():
        await con.execute("INSERT INTO orders VALUES ($1, $2, $3)", number, customer, cents)
        await con.execute(JOB, customer, json.dumps({"mail": "placed", "order": number}))


async def remind(dsn: str, reminders: Iterable[dict[str, Any]]) -> None:
    sink = PostgresQueueSink(dsn, queue="mails", key="customer", payload="job", id="id")
    batcher = Batcher(stack(sink, Retry(attempts=5)), key=lambda each: each["customer"])
    async with batcher:
        receipts = [await batcher.submit(each) for each in reminders]
    for receipt in receipts:
        print("reminder:", receipt.result().value)


async def main(dsn: str) -> None:
    await install_streams(dsn)  # once per database, as `sluicegate pg install` does
    async with QueueAdmin(dsn) as admin:
        await admin.create("mails")  # as `sluicegate queue create` does
    con = await asyncpg.connect(dsn)
    await con.execute(TABLE)

    await place(con, 17, "ann", 1250)
    try:
        await place(con, 18, "bob", -1)
    except asyncpg.CheckViolationError:
        print("order 18: refused by the table")

    reminder = {
        "id": "0192f2a4-9b7e-7c3d-8a51-2f6a3f0c1d17",
        "customer": "ann",
        "job": {"mail": "reminder", "order": 17},
    }
    await remind(dsn, [reminder])
    await remind(dsn, [reminder])  # by another process, or after a crash

    for row in await con.fetch("SELECT key, payload FROM sluicegate.job ORDER BY place"):
        print("job:", *row)
    await con.close()


if __name__ == "__main__":
    with embedded_postgres() as server:
        asyncio.run(main(server.dsn))
