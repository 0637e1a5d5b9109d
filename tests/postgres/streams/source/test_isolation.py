"""Sessions whose `default_transaction_isolation` is above READ COMMITTED."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest

from sluicegate import Consumer, flow
from sluicegate.postgres import (
    PostgresAccess,
    PostgresEffects,
    PostgresQueueSource,
    PostgresSink,
    PostgresStreamSource,
    QueueAdmin,
    StreamMonitor,
)

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log


def _number(message: Any) -> tuple[int]:
    return (json.loads(message.value)["n"],)


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        pytest.param(kind, level, marks=pytest.mark.long if (number + turn) % 2 else ())
        for number, kind in enumerate(("dsn", "prepared", "pool"))
        for turn, level in enumerate(("repeatable read", "serializable"))
    ],
)
@pytest.mark.usefixtures("real_clock")
async def test_the_default_isolation_level_of_sessions_does_not_matter(
    log: Log, level: str, kind: str
) -> None:
    """S-T1, S-T7: streams, transactions, queues and monitors begin at READ COMMITTED."""
    dsn = f"{log.dsn}?options=-c%20default_transaction_isolation%3D{level.replace(' ', '%5C%20')}"
    table = f"t{uuid4().hex}"
    options: dict[str, Any] = {"schema": log.schema}
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        con = await stack.enter_async_context(log.connected())
        access: str | PostgresAccess = dsn
        if kind == "pool":
            pool = await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=0))
            access = PostgresAccess(pool=pool)
        if kind == "prepared":
            access = PostgresAccess(dsn, prepared_statements=True)
        await con.execute(f"CREATE TABLE {table} (n int)")
        stack.push_async_callback(con.execute, f"DROP TABLE {table}")
        sent = [await log.append(con, f"a-{n}", n) for n in range(5)]

        def source(name: str) -> PostgresStreamSource:
            return PostgresStreamSource(access, subscription=name, ends=True, **options)

        seen: list[int] = []

        async def handle(message: Any) -> None:
            seen.append(message.offset)

        async def execute(message: Any) -> None:
            await message.connection.execute(f"INSERT INTO {table} VALUES ($1)", *_number(message))

        async with Consumer(source("read"), name="read") as consumer:
            await consumer.run(handle)
        assert sorted(seen) == [each for (each,) in sent]
        sink = PostgresSink(access, table=table, columns=("n",))
        await flow.transaction(source(table), sink, _number, name="rows").run()
        effects = PostgresEffects(access)
        await flow.transaction(source(f"e{table}"), effects, execute, name="effects").run()
        stored = await con.fetch(f"SELECT n FROM {table} ORDER BY n")
        assert [row["n"] for row in stored] == [n for n in range(5) for _ in range(2)]

        async with QueueAdmin(access, **options) as admin:
            await admin.create("q")
            await con.execute(
                f"INSERT INTO {log.sql}.job (queue, key, payload) "
                "SELECT 'q', 'k' || n % 3, '1' FROM generate_series(1, 9) n"
            )
            seen.clear()
            queue = PostgresQueueSource(access, queue="q", ends=True, **options)
            async with Consumer(queue, name="q") as consumer:
                await consumer.run(handle)
            assert len(seen) == 9
        async with StreamMonitor(access, **options) as monitor:
            assert (await monitor.poll()).horizon.position >= len(sent)
