"""Notifications that arrive during other work: none of them is missed.

White box: a claim that a notification overtakes, and the signal's count.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.source.kills_help import WITHIN, queue

from sluicegate._core.clock import wait_until
from sluicegate.batcher import LoopClock
from sluicegate.postgres import PostgresAccess, PostgresQueueSource
from sluicegate.postgres.queues.leasing import QueueLeases
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate._core.clock import CountedSignal

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()

LONG = 60.0
"""Seconds that no test waits for."""


async def test_a_job_that_comes_during_a_claim_whose_fetch_is_cancelled(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That claim has not seen it; the next fetch waits for the same claim and then claims again."""
    claim, seen, goes_on = QueueLeases.claim, asyncio.Event(), asyncio.Event()

    async def slow(leases: QueueLeases, *arguments: Any) -> Any:
        found = await claim(leases, *arguments)
        seen.set()
        await goes_on.wait()
        return found

    monkeypatch.setattr(QueueLeases, "claim", slow)
    host = RecordingHost()
    source = PostgresQueueSource(
        PostgresAccess(log.dsn, close_timeout=2.0),
        queue="q",
        schema=log.schema,
        poll=LONG,
        lease=LONG,
    )
    async with asyncio.timeout(WITHIN), queue(log) as made, source.open(host):
        first = asyncio.create_task(source.fetch([], 10))
        await seen.wait()
        await made.enqueue("k", 1)
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(source.fetch([], 10))
        goes_on.set()
        assert await second == []
        assert len(host.open) == 1


async def test_a_job_that_comes_while_the_queue_is_looked_at_after_an_empty_claim(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No claim has seen it, and the following wait begins after its notification."""
    state, looked, goes_on = QueueLeases.state, asyncio.Event(), asyncio.Event()

    async def slow(leases: QueueLeases) -> tuple[bool, float | None]:
        found = await state(leases)
        looked.set()
        await goes_on.wait()
        return found

    host = RecordingHost()
    source = PostgresQueueSource(
        PostgresAccess(log.dsn, close_timeout=2.0),
        queue="q",
        schema=log.schema,
        poll=LONG,
        lease=LONG,
    )
    async with asyncio.timeout(WITHIN), queue(log) as made, source.open(host):
        assert source._serving is not None
        news = source._serving.news
        await counted(news, 1)  # it listens
        monkeypatch.setattr(QueueLeases, "state", slow)
        fetching = asyncio.create_task(source.fetch([], 10))
        await looked.wait()
        await made.enqueue("k", 1)
        heard = news.count
        await made.notify()
        await counted(news, heard + 1)
        goes_on.set()
        assert await fetching == []
        assert len(host.open) == 1


async def counted(news: CountedSignal, least: int) -> None:
    """Wait until it has been called this often."""
    while news.count < least:
        await wait_until(CLOCK, math.inf, news)
