"""A subscription to a stream: a shop places orders in its own transactions, and a consumer handles
their messages by type, in order per stream. Another subscription updates a table, exactly once.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import asyncpg

from sluicegate import Consumer, flow
from sluicegate.consumer import Envelope, HandlerRegister
from sluicegate.postgres import (
    NO_STREAM,
    NewMessage,
    PostgresEffects,
    PostgresStreamSource,
    StreamLog,
    install_streams,
)
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from sluicegate.consumer import DrainReport

TABLES = """
CREATE TABLE orders (number int PRIMARY KEY, cents int CHECK (cents > 0));
CREATE TABLE revenue (order_number int, cents int);
"""
LOG = StreamLog()


@dataclass(frozen=True)
class Placed:
    order: int
    cents: int


@dataclass(frozen=True)
class Paid:
    order: int


async def place(con: asyncpg.Connection, event: Placed) -> None:
    async with con.transaction():
        await con.execute("INSERT INTO orders VALUES ($1, $2)", event.order, event.cents)
        message = NewMessage("Placed", asdict(event))
        await LOG.append(con, f"order-{event.order}", message, expected=NO_STREAM)


async def pay(con: asyncpg.Connection, event: Paid) -> None:
    await LOG.append(con, f"order-{event.order}", NewMessage("Paid", asdict(event)))


mails = HandlerRegister()


@mails.register
async def confirm(event: Placed) -> None:
    print(f"order {event.order}: placed, {event.cents / 100:.2f}")


@mails.register
async def thank(event: Envelope[Paid]) -> None:
    message = event.message
    print(f"order {event.value.order}: paid, version {message.header('version')} of {message.key}")


async def send_mails(dsn: str) -> DrainReport:
    source = PostgresStreamSource(dsn, subscription="mails", category="order", ends=True)
    return await Consumer(source, name="mails").run(mails)


books = HandlerRegister(unhandled="skip")


@books.register
async def book(event: Envelope[Placed]) -> None:
    placed, connection = event.value, event.message.connection
    await connection.execute("INSERT INTO revenue VALUES ($1, $2)", placed.order, placed.cents)


async def keep_books(dsn: str) -> DrainReport:
    source = PostgresStreamSource(dsn, subscription="books", category="order", ends=True)
    return await flow.transaction(source, PostgresEffects(dsn), books, name="books").run()


async def main(dsn: str) -> None:
    await install_streams(dsn)  # once per database, as `sluicegate pg install` does
    con = await asyncpg.connect(dsn)
    await con.execute(TABLES)

    await place(con, Placed(17, 1250))
    try:
        await place(con, Placed(18, -1))
    except asyncpg.CheckViolationError:
        print("order 18: refused by the table")
    await pay(con, Paid(17))
    print(await send_mails(dsn))

    await place(con, Placed(19, 300))
    print(await send_mails(dsn))

    print(await keep_books(dsn))
    for row in await con.fetch("SELECT * FROM revenue ORDER BY order_number"):
        print("revenue:", *row)
    await con.close()


if __name__ == "__main__":
    with embedded_postgres() as server:
        asyncio.run(main(server.dsn))
