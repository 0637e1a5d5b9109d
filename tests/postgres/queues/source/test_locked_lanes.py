"""A lane that another session keeps locked, such as an operator's, beside the others of a process.

White box: the question for ready jobs is counted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.postgres.queues.source.kills_help import WITHIN, queue
from tests.postgres.queues.source.outages_help import running

from sluicegate import Ack, Nak, Terminate
from sluicegate.postgres.queues.leasing import QueueLeases

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.consumer import Result

pytestmark = pytest.mark.usefixtures("real_clock")

LONG = 60.0
LOCK = "SELECT FROM {s}.{table} WHERE key IS NOT DISTINCT FROM $1 FOR UPDATE"


@pytest.mark.parametrize(
    ("key", "table", "answer"),
    [
        ("k", "lane", Ack()),
        ("k", "job", Ack()),
        pytest.param("k", "lane", Nak(delay=LONG), marks=pytest.mark.long),
        pytest.param("k", "lane", Terminate("no"), marks=pytest.mark.long),
        pytest.param("k", "job", Terminate("no"), marks=pytest.mark.long),
        pytest.param(None, "job", Ack(), marks=pytest.mark.long),
        pytest.param(None, "job", Nak(delay=LONG), marks=pytest.mark.long),
        pytest.param(None, "job", Terminate("no"), marks=pytest.mark.long),
    ],
)
async def test_jobs_of_other_keys_are_settled_and_those_of_the_locked_one_after_it(
    log: Log, key: str | None, table: str, answer: Result
) -> None:
    async with asyncio.timeout(WITHIN), queue(log, poison="skip") as made:
        await made.enqueue(key, 1)
        for other in "abc":
            await made.enqueue(other, 1, 2)
        async with running(log, lease=LONG) as here, log.connected() as operator:
            here.gate.clear()
            await here.until(lambda: len(here.began) == 4)
            async with operator.transaction():
                await operator.execute("SET LOCAL lock_timeout = '5s'")
                await operator.fetch(LOCK.format(s=log.sql, table=table), key)
                here.answer = answer
                here.gate.set()
                untouched = (
                    "SELECT count(*) - 1 FROM {schema}.job j WHERE due IS NULL AND NOT EXISTS"
                )
                waiting = (
                    "(SELECT FROM {schema}.lane l WHERE l.key = j.key AND due > now() + '9 s')"
                )
                await made.until(f"{untouched} {waiting}")
            left = "SELECT count(*) FROM {schema}.lane WHERE lease IS NOT NULL"
            await made.until(left)
            await made.until(left.replace("lane", "job"))
        assert {attempt for _, attempt in here.began} == {1}
        assert len(here.began) == (4 if isinstance(answer, Nak) else 7)


async def test_leases_of_other_keys_are_extended_and_the_locked_one_alone_is_lost(log: Log) -> None:
    live = "SELECT count(*) FROM {schema}.lane WHERE key = 'k' AND lease_until > clock_timestamp()"
    async with asyncio.timeout(WITHIN), queue(log) as made:
        (locked,) = await made.enqueue("k", 1)
        for other in "abc":
            await made.enqueue(other, 1)
        async with running(log, lease=1.0) as here, log.connected() as operator:
            here.gate.clear()
            await here.until(lambda: len(here.began) == 4)
            async with operator.transaction():
                await operator.fetch(LOCK.format(s=log.sql, table="lane"), "k")
                await made.until(live)
                assert await made.ask(live.replace("key = 'k'", "key <> 'k'")) == 3
            here.gate.set()
            await made.handled()
        again = [(place, attempt) for place, attempt in here.began if attempt > 1]
        assert again == [(locked, 2)]


@pytest.mark.parametrize("is_leased", [False, True])
async def test_a_source_that_ends_waits_for_jobs_that_are_locked(
    log: Log, monkeypatch: pytest.MonkeyPatch, is_leased: bool
) -> None:
    """Of a lane that an open transaction makes, or of one whose lease has expired."""
    asked = asyncio.Event()
    has_ready = QueueLeases.has_ready

    async def ask(leases: QueueLeases) -> bool:
        found = await has_ready(leases)
        asked.set()
        return found

    monkeypatch.setattr(QueueLeases, "has_ready", ask)
    async with asyncio.timeout(WITHIN), queue(log) as made, log.connected() as operator:
        await made.enqueue("k", 1)
        if is_leased:
            claim = f"SELECT FROM {log.sql}.claim_jobs('q', 'g', 'dead', 9, 9, 9, 0.0)"
            await made.con.fetch(claim)
        await operator.execute("BEGIN")
        await operator.fetchval(f"SELECT {log.sql}.park_lane('q', 'k', 'why')")
        async with running(log, ends=True) as here:
            await asked.wait()
            await operator.execute("ROLLBACK")
            await here.run
        assert len(here.ended) == 1
