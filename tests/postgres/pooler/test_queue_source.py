"""The source of queues through a PgBouncer in transaction mode: without prepared statements, by
polling only.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tests.postgres.streams.log_help import Log, fresh_name, install_log

from sluicegate import Consumer, Nak, flow
from sluicegate.postgres import PostgresEffects, PostgresQueueSource, QueueAdmin

if TYPE_CHECKING:
    import pytest
    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate import Message
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


async def queue(dsn: str) -> Log:
    """A new queue `jobs` with 40 jobs of 4 keys."""
    log = Log(dsn, fresh_name())
    await install_log(log)
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create("jobs", sticky=True)
    async with log.connected() as con:
        await con.execute(
            f"INSERT INTO {log.sql}.job (queue, key, payload) "
            "SELECT 'jobs', 'k' || (n % 4), to_jsonb(n) FROM generate_series(1, 40) AS n"
        )
    return log


def source(bouncer: PgBouncer, log: Log) -> PostgresQueueSource:
    return PostgresQueueSource(
        bouncer.dsn, queue="jobs", schema=log.schema, poll=0.05, lease=10.0, per_key=3, ends=True
    )


async def test_jobs_are_handled_in_order_and_settled(
    embedded_postgres: EmbeddedPostgres,
    bouncer: PgBouncer,
    real_clock: LoopClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a nak that is left to the queue, and membership of a sticky queue."""
    caplog.set_level(logging.INFO)
    log = await queue(embedded_postgres.dsn)
    seen: dict[object, list[int]] = {}

    async def handle(message: Message) -> object:
        number = int(message.value)
        if number == 40 and message.attempt == 1:
            return Nak(delay=60.0)
        seen.setdefault(message.key, []).append(number)
        return None

    await Consumer(source(bouncer, log), name="test").run(handle)
    assert seen == {f"k{k}": [n for n in range(1, 40) if n % 4 == k] for k in range(4)}
    async with log.connected() as con:
        assert await con.fetchval(f"SELECT count(*) FROM {log.sql}.job") == 1
        assert await con.fetchval(f"SELECT attempts FROM {log.sql}.lane") == 1
    assert "the source polls only, since it is behind a pooler" in caplog.text


async def test_effects_commit_with_the_settle(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    log = await queue(embedded_postgres.dsn)
    async with log.connected() as con:
        await con.execute(f"CREATE TABLE {log.sql}.effect (n int)")

    async def handle(message: Message) -> None:
        insert = f"INSERT INTO {log.sql}.effect VALUES ($1)"
        await message.connection.execute(insert, int(message.value))

    await flow.transaction(source(bouncer, log), PostgresEffects(bouncer.dsn), handle).run()
    async with log.connected() as con:
        counts = await con.fetchrow(
            f"SELECT count(*), count(DISTINCT n), (SELECT count(*) FROM {log.sql}.job) "
            f"FROM {log.sql}.effect"
        )
    assert tuple(counts) == (40, 40, 0)


async def test_schedules_fire_also_if_the_server_is_slow(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    """All missed ticks take 2 s, and the time for an answer is half of the lease."""
    log = await queue(embedded_postgres.dsn)
    async with log.connected() as con, QueueAdmin(bouncer.dsn, schema=log.schema) as admin:
        schedules = await admin.schedules("jobs")
        await schedules.put("hourly", every=3600, catch_up="all")
        await con.execute(
            f"UPDATE {log.sql}.schedule SET next_at = date_trunc('hour', now(), 'UTC') - interval '39 h';"
            f"CREATE FUNCTION {log.sql}.slow() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END';"
            f"CREATE TRIGGER slow BEFORE INSERT ON {log.sql}.job FOR EACH ROW "
            f"EXECUTE FUNCTION {log.sql}.slow()"
        )
        places: set[int] = set()

        async def handle(message: Message) -> None:
            places.add(message.offset)
            if len(places) == 40:
                consumer.stop()

        jobs = PostgresQueueSource(bouncer.dsn, queue="jobs", schema=log.schema, lease=2.0)
        consumer = Consumer(jobs, name="test")
        async with asyncio.timeout(60):
            await consumer.run(handle)
