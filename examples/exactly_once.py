"""Bookings from a Kafka topic into a PostgreSQL table, each exactly once, although the writing
process is killed in the middle.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import asyncpg
from aiokafka import AIOKafkaProducer

import sluicegate
from sluicegate import flow
from sluicegate.consumer import Commits
from sluicegate.kafka import KafkaSource
from sluicegate.postgres import PostgresSink
from sluicegate.testing import embedded_kafka, embedded_postgres

if TYPE_CHECKING:
    from sluicegate import Message

COUNT = 20_000
TABLE = "CREATE TABLE bookings (number bigserial, account text, amount integer, at bigint)"


def to_row(message: Message) -> dict[str, Any]:
    booking = json.loads(message.value)
    return {"account": message.key.decode(), "amount": booking["amount"], "at": message.offset}


def make_flow(bootstrap: str, dsn: str) -> flow.TransactionalPipe:
    source = KafkaSource("bookings", bootstrap=bootstrap, group="books", session_timeout=6.0)
    rows = PostgresSink(dsn, table="bookings", columns=("account", "amount", "at"))
    return flow.transaction(source, rows, to_row, name="books", commits=Commits(after=100))


async def kill_one_on_the_way(bootstrap: str, dsn: str, connection: Any) -> None:
    """Start this program as a separate service, and kill it in the middle."""
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, bootstrap, dsn)
    while await connection.fetchval("SELECT count(*) FROM bookings") < COUNT // 10:
        pass
    process.kill()
    await process.wait()


async def catch_up(books: flow.TransactionalPipe) -> None:
    """Wait until every record is settled."""
    while True:
        await asyncio.sleep(0.1)  # noqa: TID251  # a service has no end and needs no wait
        if books.ready and not any(lag.messages for lag in (await books.lag()).values()):
            return


async def main(bootstrap: str, dsn: str) -> None:
    client: Any = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    async with client as producer:
        for number in range(COUNT):
            await producer.send("bookings", b'{"amount": 1}', key=b"account %d" % (number % 10))
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)

    await kill_one_on_the_way(bootstrap, dsn, connection)
    agree = "SELECT (SELECT count(*) FROM bookings) = position FROM sluicegate_positions"
    print(f"killed: the table and the position agree: {await connection.fetchval(agree)}")

    books = make_flow(bootstrap, dsn)
    run = asyncio.create_task(books.run())
    await catch_up(books)
    books.stop()
    report = await run

    rows = await connection.fetch("SELECT at, amount FROM bookings ORDER BY number")
    print(f"{len(rows)} bookings, {sum(row['amount'] for row in rows)} in all")
    print(f"each once, and in order: {[row['at'] for row in rows] == list(range(COUNT))}")
    print(f"complete: {report.complete}")
    await connection.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sluicegate.run(make_flow(*sys.argv[1:]).run())
    else:
        with embedded_kafka() as broker, embedded_postgres() as server:
            broker.create_topic("bookings")
            asyncio.run(main(broker.bootstrap, server.dsn))
