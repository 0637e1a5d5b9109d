"""Payments from a Kafka topic into a PostgreSQL table: in order per account, with dead letters for
invalid payments.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import asyncpg
from aiokafka import AIOKafkaProducer

from sluicegate import Batcher, Limits, Retry, Timeout, flow, stack
from sluicegate.consumer import Poison
from sluicegate.kafka import KafkaSource
from sluicegate.postgres import PostgresSink
from sluicegate.testing import embedded_kafka, embedded_postgres

if TYPE_CHECKING:
    from sluicegate import Batch, Message
    from sluicegate.sinks import DeadLetterRecord

TABLE = """
CREATE TABLE payments (
    place text PRIMARY KEY,  -- topic, partition and offset: the same when a record comes again
    account text NOT NULL,
    amount integer NOT NULL CHECK (amount <> 0)
)
"""
PAYMENTS = [
    ("ann", b'{"amount": 30}'),
    ("ann", b"thirty"),
    ("bob", b'{"amount": 0}'),
    ("ann", b'{"amount": -10}'),
    ("bob", b'{"amount": 25}'),
]


def to_row(message: Message) -> dict[str, Any]:
    amount = json.loads(message.value)["amount"]
    return {"place": message.coordinates, "account": message.key.decode(), "amount": amount}


async def show(letters: Batch[DeadLetterRecord[Any]]) -> None:
    for letter in letters:
        print(f"dead letter of {letter.batch_id}: {letter.cause_type or letter.error_type}")


def make_pipe(bootstrap: str, dsn: str) -> flow.Pipe:
    rows = PostgresSink(
        dsn, table="payments", columns=("place", "account", "amount"), on_conflict="ignore"
    )
    batcher = Batcher(
        stack(rows, Timeout(5.0), Retry(attempts=5)),
        key=lambda row: row["account"],
        limits=Limits(max_items=500, max_delay=0.2, workers=4),
    )
    source = KafkaSource("payments", bootstrap=bootstrap, group="ledger")
    return flow.pipe(
        source, batcher, to_row, name="ledger", poison=Poison("skip", dead_letters=show), drain=5.0
    )


async def catch_up(pipe: flow.Pipe) -> None:
    """Wait until every record is settled."""
    while True:
        await asyncio.sleep(0.1)  # noqa: TID251  # a service has no end and needs no wait
        if pipe.ready and not any(lag.messages for lag in (await pipe.lag()).values()):
            return


async def main(bootstrap: str, dsn: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        for account, payment in PAYMENTS:
            await producer.send_and_wait("payments", payment, key=account.encode())
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)

    pipe = make_pipe(bootstrap, dsn)
    run = asyncio.create_task(pipe.run())
    await catch_up(pipe)
    pipe.stop()
    report = await run

    for row in await connection.fetch("SELECT * FROM payments ORDER BY place"):
        print(*row)
    await connection.close()
    print(report.source)
    print(report.batcher.tally)
    for partition, position in report.positions.items():
        print(f"{partition} is at {position}")


if __name__ == "__main__":
    with embedded_kafka() as broker, embedded_postgres() as server:
        broker.create_topic("payments")
        asyncio.run(main(broker.bootstrap, server.dsn))
