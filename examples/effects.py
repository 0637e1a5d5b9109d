"""A handler whose effects in PostgreSQL commit together with the position of the stream: each
message takes effect once, whatever fails in between.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import asyncpg

from sluicegate import flow
from sluicegate.postgres import (
    NewMessage,
    PostgresEffects,
    PostgresStreamSource,
    StreamLog,
    install_streams,
)
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from sluicegate import Message

LOG = StreamLog()
crashes = ["in the middle of deposit 2"]


async def book(message: Message) -> None:
    amount = json.loads(message.value)["amount"]
    await message.connection.execute(
        "INSERT INTO accounts VALUES ($1, $2) "
        "ON CONFLICT (name) DO UPDATE SET balance = accounts.balance + $2",
        message.key,
        amount,
    )
    if amount == 2 and crashes:
        raise ConnectionError(crashes.pop())
    try:
        async with message.connection.transaction():  # a savepoint: the statement may fail
            await message.connection.execute("INSERT INTO first_deposits VALUES ($1)", message.key)
    except asyncpg.UniqueViolationError:
        pass


async def fill(con: asyncpg.Connection) -> None:
    await con.execute("CREATE TABLE accounts (name text PRIMARY KEY, balance int)")
    await con.execute("CREATE TABLE first_deposits (name text PRIMARY KEY)")
    for amount in (1, 2, 3, 4):
        await LOG.append(con, "account-7", NewMessage("Deposited", {"amount": amount}))


async def main(dsn: str) -> None:
    await install_streams(dsn)
    con = await asyncpg.connect(dsn)
    await fill(con)
    source = PostgresStreamSource(dsn, subscription="balances", category="account", ends=True)
    report = await flow.transaction(source, PostgresEffects(dsn), book, name="balances").run()
    for row in await con.fetch("SELECT * FROM accounts"):
        print(row["name"], "has", row["balance"])
    print("complete:", report.complete)
    await con.close()


if __name__ == "__main__":
    with embedded_postgres() as server:
        asyncio.run(main(server.dsn))
