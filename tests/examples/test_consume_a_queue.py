"""The page on consuming a queue: its program prints the output on the page, and its sources
work.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
from tests.examples.example import load, printed_on

from sluicegate import Consumer, RetryPolicy
from sluicegate.postgres import QueueAdmin, install_streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import pytest

    from sluicegate import Message

INSERT = (
    "INSERT INTO sluicegate.job (queue, key, payload) "
    "SELECT $1, u.key, u.payload::jsonb FROM unnest($2::text[], $3::text[]) AS u (key, payload)"
)
ACCOUNTS = """
CREATE TABLE account (name text PRIMARY KEY, cents int, lease bigint NOT NULL DEFAULT 0);
INSERT INTO account (name, cents) VALUES ('ann', 1000), ('bob', 1000);
"""
TAKE_OVER = """
UPDATE sluicegate.lane SET lease = lease + 1, owner = 'another' WHERE queue = 'charges' AND key = 'ann'
"""


@asynccontextmanager
async def queue(
    dsn: str, name: str, jobs: Sequence[tuple[str, Any]], **options: Any
) -> AsyncIterator[asyncpg.Pool]:
    """A queue with jobs, and a pool to inspect it."""
    await install_streams(dsn)
    async with QueueAdmin(dsn) as admin, asyncpg.create_pool(dsn, min_size=1) as pool:
        await admin.create(name, **options)
        keys, payloads = zip(*[(key, json.dumps(value)) for key, value in jobs], strict=True)
        await pool.execute(INSERT, name, keys, payloads)
        yield pool


def test_a_key_stops_at_a_job_that_fails_and_continues_in_order(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Q9, Q-T11."""
    asyncio.run(load("consume_a_queue").main(database))
    assert [capsys.readouterr().out] == printed_on("how-to/consume-a-queue.md")


def test_batches_have_the_jobs_of_a_key_in_order(database: str) -> None:
    found: dict[str, list[int]] = {}

    async def send_all(messages: Sequence[Message]) -> None:
        for message in messages:
            found.setdefault(message.key, []).append(int(message.value))

    async def run() -> None:
        jobs = [(f"k{n % 3}", n) for n in range(30)]
        async with queue(database, "mails", jobs):
            await load("queue_sources").in_batches(database, send_all)

    asyncio.run(run())
    assert found == {f"k{key}": list(range(key, 30, 3)) for key in range(3)}


def test_a_run_for_a_limited_time_says_whether_work_remains(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[object] = []

    async def send(message: Message) -> None:
        found.append(message.key)

    async def run() -> None:
        async with queue(database, "mails", [("ann", 1), ("bob", 2)]):
            report = await load("queue_sources").for_a_minute(database, send)
            assert not report.work_remaining

    asyncio.run(run())
    assert sorted(map(str, found)) == ["ann", "bob"]
    assert capsys.readouterr().out == ""


def test_a_sticky_consumer_has_the_name_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD", "mailer-0")
    made = load("queue_sources").sticky("postgresql://shop:hunter2@db/shop")
    assert "consumer='mailer-0'" in repr(made)
    assert "hunter2" not in repr(made)


def test_effects_in_the_transaction_of_the_settle_are_there_once(database: str) -> None:
    """Q-T11: nothing of the jobs remains."""

    async def run() -> tuple[list[int], int]:
        jobs = [("ann", 300), ("bob", 200), ("ann", 50)]
        async with queue(database, "charges", jobs) as pool:
            await pool.execute(ACCOUNTS)
            await load("queue_sources").charge_once(database)
            rows = await pool.fetch("SELECT cents FROM account ORDER BY name")
            left = await pool.fetchval("SELECT count(*) FROM sluicegate.job")
            return [row["cents"] for row in rows], left

    assert asyncio.run(run()) == ([650, 800], 0)


def test_an_effect_under_a_lease_that_was_lost_is_none(database: str) -> None:
    """Q-T13, R6: another process has taken the key when the first handler writes."""
    module = load("queue_sources")
    failed: list[object] = []

    async def run() -> list[int]:
        jobs = [("ann", 300), ("bob", 200)]
        async with queue(database, "charges", jobs, max_attempts=1) as pool:
            await pool.execute(ACCOUNTS)
            source, charge = module.charges(database, pool, "one")
            consumer = Consumer(source, name="charges", retry=RetryPolicy(attempts=1))

            async def handle(message: Message) -> None:
                if message.key == "ann":
                    await pool.execute(TAKE_OVER)
                try:
                    await charge(message)
                except RuntimeError as error:
                    failed.append(str(error))
                    raise
                finally:
                    if message.key == "ann":
                        consumer.stop()

            await consumer.run(handle)
            return [row["cents"] for row in await pool.fetch("SELECT * FROM account ORDER BY name")]

    assert asyncio.run(run()) == [1000, 800]
    assert failed == ["the lease was lost: another process has the key by now"]
