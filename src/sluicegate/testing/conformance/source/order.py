"""Tests with consumers: every message is handled, in order per key, and again only if it must be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...._core.retry_policy import RetryPolicy
from ...._core.source import Position
from ....consumer.handling.results import Nak
from .consuming import ConsumingSource
from .journal import Journal

if TYPE_CHECKING:
    from ...._core.clock import Clock
    from ....consumer.lanes.message import Message


class OrderTests(ConsumingSource):
    """Tests of order and exclusivity per key, and of restarts."""

    async def test_every_message_is_handled_once_in_order_per_key(self, clock: Clock) -> None:
        """O-T1, O-T23: this holds with several keys, partitions and workers."""
        async with self.in_time(clock):
            topic, journal = await self.filled([60, 40], keys=7), Journal(clock)
            async with self.consuming(
                topic, journal, concurrency=8, fetch_max=10, commit_after=9
            ) as run:
                await journal.wait_for(100)
                report = await run.stop()
            journal.check_order()
            assert report.complete
            assert report.counts.acked == 100
            assert {tp.partition: at.offset for tp, at in (await self.stored(topic)).items()} == {
                0: 60,
                1: 40,
            }

    async def test_a_restart_handles_only_what_was_unfinished(self, clock: Clock) -> None:
        """consumer/C:C1, consumer/C:C4, consumer/C:N1: without offset maps, all messages from the
        position.
        """
        async with self.in_time(clock):
            topic, journal = await self.filled([20], keys=20), Journal(clock)
            never = asyncio.Event()

            async def handle(message: Message) -> None:
                if message.offset == 5:
                    await never.wait()

            async with self.consuming(topic, journal, journal.handler(handle), drain=0.0) as run:
                await journal.wait_for(19)
                await run.consumer.commit()
                position = await self.position(topic)
                assert position is not None
                assert position.offset == 5
                report = await run.stop()
            assert [each.offset for each in report.unfinished] == [5]
            journal = Journal(clock, before=journal)
            left = range(5, 20) if self.repeats else [5]
            async with self.consuming(topic, journal):
                await journal.wait_for(len(left))
            assert sorted(offset for _, offset in journal.handled) == [*left]
            assert await self.position(topic) == Position(20)

    async def test_what_is_only_queued_is_not_committed(self, clock: Clock) -> None:
        """consumer/C:C5: the position does not pass a queued message."""
        async with self.in_time(clock):
            topic, journal = await self.filled([10]), Journal(clock)
            gate = asyncio.Event()

            async def handle(message: Message) -> None:
                if message.offset == 2:
                    await gate.wait()

            async with self.consuming(
                topic, journal, journal.handler(handle), concurrency=1
            ) as run:
                await journal.news.wait_for(lambda: (0, 2) in journal.running)
                await run.consumer.commit()
                assert await self.position(topic) == Position(2)
                gate.set()
                await journal.wait_for(10)

    async def test_a_message_that_is_tried_again_holds_the_position(self, clock: Clock) -> None:
        """O-T5, consumer/C:C1, consumer/C:F1: 5 fails, 6 to 9 are handled, and position 5 is
        committed.
        """
        async with self.in_time(clock):
            topic, journal = await self.filled([10], keys=10), Journal(clock)
            attempts: list[int] = []
            positions: list[Position | None] = []

            async def handle(message: Message) -> object:
                if message.offset != 5:
                    return None
                attempts.append(message.attempt)
                if message.attempt < 3:
                    return Nak(delay=0.01)
                await journal.wait_for(9)
                await run.consumer.commit()
                positions.append(await self.position(topic))
                return None

            async with self.consuming(
                topic, journal, journal.handler(handle), retry=RetryPolicy(attempts=3)
            ) as run:
                await journal.wait_for(10)
                report = await run.stop()
            assert attempts == [1, 2, 3]
            assert (report.counts.acked, report.counts.naks) == (10, 2)
            assert [position and position.offset for position in positions] == [5]
            assert await self.position(topic) == Position(10)

    async def test_positions_pass_holes(self, clock: Clock) -> None:
        """O-T6, consumer/C:C2: also at the end of a partition, where no record follows."""
        self.needs("holes")
        async with self.in_time(clock):
            topic, journal = await self.new_topic(1), Journal(clock)
            for _ in range(2):
                await self.leave_hole(topic, 0)
                await self.add(topic, 0, 3)
            await self.leave_hole(topic, 0)
            async with self.consuming(topic, journal, commit_every=0.01) as run:
                await journal.wait_for(6)
                (claim,) = run.source.claims
                end = (await run.source.ends([claim]))[claim]
                await journal.news.wait_for(lambda: run.source.committed(claim.partition) == end)
            journal.check_order()
