"""Tests with consumers: rebalances lose nothing, repeat only unfinished work, and keep order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...._core.source import TopicPartition
from .consuming import ConsumingSource
from .journal import Journal

if TYPE_CHECKING:
    from ...._core.clock import Clock
    from ....consumer.lanes.message import Message


class RebalanceTests(ConsumingSource):
    """Tests of partitions that move and return while handlers run."""

    async def test_a_partition_moves_without_repeats(self, clock: Clock) -> None:
        """O-T7, G-T16, consumer/C:R1, consumer/C:N12: its running handlers end before the move. No
        message is handled by both members, or concurrently with another message of its key.
        """
        self.needs("members")
        async with self.in_time(clock):
            topic, journal = await self.filled([40, 40], keys=4), Journal(clock)

            async def handle(message: Message) -> None:
                await clock.sleep(0.001)

            async with self.consuming(
                topic, journal, journal.handler(handle), concurrency=4
            ) as giver:
                await journal.wait_for(10)
                async with self.consuming(
                    topic, journal, journal.handler(handle), concurrency=4
                ) as taker:
                    await self.rebalance(giver.source.inner, taker.source.inner)
                    await journal.news.wait_for(lambda: taker.source.claims)
                    for partition in (0, 1):
                        await self.add(topic, partition, 8, keys=4)
                    await journal.wait_for(96)
            journal.check_order()
            assert len(journal.handled) == 96

    async def test_the_other_partitions_go_on_while_one_drains(self, clock: Clock) -> None:
        """O-T7, consumer/C:R3: they are handled while a handler of the moving partition still runs."""
        self.needs("members", "cooperative")
        async with self.in_time(clock):
            topic, journal = await self.filled([1, 1]), Journal(clock)
            gate = asyncio.Event()

            async def handle(message: Message) -> None:
                if message.offset == 0:
                    await gate.wait()

            async with (
                self.consuming(topic, journal, journal.handler(handle), drain=30.0) as giver,
                asyncio.TaskGroup() as tasks,
            ):
                await journal.news.wait_for(lambda: len(journal.running) == 2)
                async with self.consuming(topic, journal, journal.handler(handle)) as taker:
                    tasks.create_task(self.rebalance(giver.source.inner, taker.source.inner))
                    await journal.news.wait_for(lambda: giver.source.revoking)
                    moved = {claim.partition.partition for claim in giver.source.revoking}
                    assert len(moved) == 1, "every partition is revoked"
                    kept = min({0, 1} - moved)
                    await self.append(topic, kept, [(b"another", b"1")])
                    await journal.news.wait_for(lambda: (kept, 1) in journal.handled)
                    assert len(journal.running) == 2
                    gate.set()
                    await journal.wait_for(3)
            journal.check_order()

    async def test_a_lost_partition_is_handled_again_and_its_key_is_never_in_two_handlers(
        self, clock: Clock
    ) -> None:
        """O-T7, O-T8, consumer/C:O1, consumer/C:R2: a message that ends after the loss is not
        committed.
        """
        self.needs("loss")
        async with self.in_time(clock):
            topic, journal = await self.filled([6], keys=2), Journal(clock)
            gate = asyncio.Event()

            async def handle(message: Message) -> None:
                if len(journal.begun) <= 2:
                    await gate.wait()

            async with self.consuming(
                topic, journal, journal.handler(handle), commit_every=0.01
            ) as run:
                await journal.news.wait_for(lambda: len(journal.running) == 2)
                await self.lost(run, journal)
                assert await self.stored(topic) == {}
                gate.set()
                await journal.wait_for(8)
                report = await run.stop()
            assert report.counts.stale == 2
            assert sorted(journal.handled) == [(0, offset) for offset in (0, 0, 1, 1, 2, 3, 4, 5)]

    async def test_partitions_that_come_and_go_lose_nothing(self, clock: Clock) -> None:
        """O-T23, consumer/C:R4: at least once; a message is handled again only after a loss."""
        self.needs("loss", "partitions")
        async with self.in_time(clock):
            topic, journal = await self.filled([30, 30], keys=3), Journal(clock)

            async def handle(message: Message) -> None:
                await clock.sleep(0.001)

            async with self.consuming(
                topic, journal, journal.handler(handle), commit_every=0.002
            ) as run:
                for count in (5, 15, 25):
                    await journal.wait_for(count)
                    await self.lost(run, journal)
                await journal.news.wait_for(
                    lambda: (
                        [run.source.committed(TopicPartition(topic, p)) for p in (0, 1)] == [30, 30]
                    )
                )
                await run.stop()
            assert {*journal.handled} == {(p, n) for p in (0, 1) for n in range(30)}
            assert {tp.partition: at.offset for tp, at in (await self.stored(topic)).items()} == {
                0: 30,
                1: 30,
            }
