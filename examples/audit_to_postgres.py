"""Audit events into PostgreSQL: retried, bounded, drained on SIGTERM. Usage: python
audit_to_postgres.py postgresql://...
"""

import sys

import asyncpg

import sluicegate
from sluicegate.postgres import PostgresSink

TABLE = "CREATE TABLE IF NOT EXISTS audit_events (id bigint PRIMARY KEY, action text NOT NULL)"


async def main(
    dsn: str, events: int
) -> sluicegate.batcher.ShutdownReport[dict[str, object]] | None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)
    await connection.close()
    sink = sluicegate.stack(
        PostgresSink(dsn, table="audit_events", columns=("id", "action"), on_conflict="ignore"),
        sluicegate.Timeout(5.0),
        sluicegate.Retry(attempts=5),
    )
    async with sluicegate.Batcher(sink, name="audit") as batcher:
        for number in range(events):
            await batcher.add({"id": number, "action": "login"})
        receipt = await batcher.submit({"id": events, "action": "logout"})
        print("the last one:", (await receipt).value)
        try:
            await batcher.deliver({"id": events + 1, "action": None})
        except sluicegate.ItemFailed as failure:
            print("refused alone:", failure.outcome.value)
    print(batcher.report)
    return batcher.report


if __name__ == "__main__":
    sluicegate.run(main(sys.argv[1], 10_000), accept=("rejected",))
