"""Notifications that arrive while something else is going on: none of them is missed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.sources.postgres_queue.kills_help import WITHIN, queue

from penstock._clients.postgres.queues.leasing import QueueLeases
from penstock.sources.postgres_queue import PostgresQueueSource
from penstock.testing.conformance.source.host import RecordingHost

if TYPE_CHECKING:
    from tests.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")

LONG = 60.0
"""Seconds that no test waits."""


async def test_a_job_that_comes_during_a_claim_whose_fetch_is_cancelled(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That claim has not seen it; the next fetch, which waits for the same claim, claims again."""
    claim, seen, goes_on = QueueLeases.claim, asyncio.Event(), asyncio.Event()

    async def slow(leases: QueueLeases, *arguments: Any) -> Any:
        found = await claim(leases, *arguments)
        seen.set()
        await goes_on.wait()
        return found

    monkeypatch.setattr(QueueLeases, "claim", slow)
    host = RecordingHost()
    source = PostgresQueueSource(
        log.dsn, queue="q", schema=log.schema, poll=LONG, lease=LONG, close_timeout=2.0
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
