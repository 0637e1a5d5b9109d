"""The records repeated after a crash: exactly those unknown to the last commit.

White box: the map beside a committed position is decoded.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from consumer_help import P0, Recorder, finite, records

from sluicegate import Consumer
from sluicegate.consumer import Commits, MemoryLog, MemorySource
from sluicegate.consumer.memory.source import Crashed
from sluicegate.consumer.progress import offset_map

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import FakeClock

BEHIND = 50_000
AFTER_THE_COMMIT = 7


async def test_a_crash_replays_what_is_unfinished_and_what_the_last_commit_did_not_know(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:N1, consumer/C:N6, O-T5: one message is unfinished, the 50,000 after it are
    settled and committed, and a few more are settled when the process dies.
    """
    log = MemoryLog(records(range(1 + BEHIND)))
    source = MemorySource(log, clock=fake_clock)
    done: set[int] = set()

    async def handle(message: Message) -> None:
        if message.offset == 0:
            await asyncio.get_running_loop().create_future()
        done.add(message.offset)

    first = Consumer(source, clock=fake_clock, commits=Commits(every=10.0), drain=0.0)
    async with first, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(_until_the_crash(first, handle))
        await fake_clock.advance(11.0)
        assert len(done) == BEHIND
        offset, metadata = log.positions[P0]
        assert offset == 0
        assert offset_map.decode(offset, metadata) == [(1, 1 + BEHIND)]
        for record in records([f"new {n}" for n in range(AFTER_THE_COMMIT)], first=1 + BEHIND):
            log.append(record)
        await fake_clock.advance(1.0)
        assert len(done) == BEHIND + AFTER_THE_COMMIT
        source.crash()
        await run

    handler = Recorder()
    second = finite(log, fake_clock)
    async with second:
        await second.run(handler)
        deliveries = second.stats().deliveries
    assert handler.offsets == [0, *range(1 + BEHIND, 1 + BEHIND + AFTER_THE_COMMIT)]
    assert deliveries.skipped == BEHIND
    assert log.positions[P0].offset == 1 + BEHIND + AFTER_THE_COMMIT


async def _until_the_crash(consumer: Consumer, handle: object) -> None:
    with suppress(Crashed):
        await consumer.run(handle)  # type: ignore[arg-type]
