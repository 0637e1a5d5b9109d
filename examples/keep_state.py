"""Totals per customer, kept in PostgreSQL together with the position of the orders that made them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg

from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.postgres import PostgresState
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from sluicegate.consumer.jobs import EventContext


async def handle(context: EventContext) -> None:
    total = context.store.get(context.key, {"orders": 0, "amount": 0})
    total["orders"] += 1
    total["amount"] += context.value
    context.store.put(context.key, total)
    if context.value < 0:
        raise ValueError(f"{context.key} ordered for {context.value}")


async def run(dsn: str, log: MemoryLog) -> None:
    async with (
        PostgresState(dsn, table="totals") as state,
        Consumer(
            state.attach(MemorySource(log, ends=True)), ordering="partition", poison="skip"
        ) as consumer,
    ):
        report = await consumer.run_events(handle, state=state)
    print(f"{report.counts.acked} orders handled")


async def main(dsn: str) -> None:
    log = MemoryLog()
    for customer, amount in (("ann", 30), ("bob", 5), ("ann", -1), ("ann", 12)):
        log.produce("orders", amount, key=customer)
    await run(dsn, log)
    log.produce("orders", 7, key="bob")
    await run(dsn, log)
    con = await asyncpg.connect(dsn)
    entries = "SELECT key, value FROM totals WHERE partition >= 0 ORDER BY key"
    for key, value in await con.fetch(entries):
        print(key, value)
    print("position", await con.fetchval("SELECT position FROM sluicegate_positions"))
    await con.close()


if __name__ == "__main__":
    with embedded_postgres() as server:
        asyncio.run(main(server.dsn))
