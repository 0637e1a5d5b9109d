"""Tests with consumers: every message is handled, in order per key, and again only if it must be.

White box: the policy of retries, and positions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.conformance.source_consumers import NO_COMMITS, ConsumingSource, Journal

from sluicegate._core.errors import TransientError
from sluicegate._core.retry_policy import RetryPolicy
from sluicegate._core.source import Position, TopicPartition
from sluicegate.consumer import Commits, InFlight
from sluicegate.consumer.handling.results import Nak

if TYPE_CHECKING:
    from sluicegate._core.clock import Clock
    from sluicegate.consumer.lanes.message import Message


class OrderTests(ConsumingSource):
    """Tests of order and exclusivity per key, of commits, and of restarts."""

    async def test_every_message_is_handled_once_in_order_per_key(self, clock: Clock) -> None:
        """O-T1, O-T23: this holds with several keys, partitions and workers."""
        async with self.in_time(clock):
            topic, journal = await self.filled([60, 40], keys=7), Journal(clock)
            async with self.consuming(
                topic,
                journal,
                concurrency=8,
                in_flight=InFlight(fetch_max=10),
                commits=Commits(every=NO_COMMITS, after=9),
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
            async with self.consuming(topic, journal, commits=Commits(every=0.01)) as run:
                await journal.wait_for(6)
                (claim,) = run.source.claims
                end = (await run.source.ends([claim]))[claim]
                await journal.news.wait_for(lambda: run.source.committed(claim.partition) == end)
            journal.check_order()

    async def test_positions_are_stored_by_count(self, clock: Clock) -> None:
        """consumer/C:C6: or immediately, if the source settles each record separately."""
        self.needs("partitions")
        async with self.in_time(clock):
            topic, journal = await self.filled([20], keys=1), Journal(clock)
            async with self.consuming(
                topic, journal, commits=Commits(every=NO_COMMITS, after=7)
            ) as run:
                await journal.news.wait_for(lambda: run.source.commits)
                least = 1 if run.source.capabilities.settles_each else 7
                assert run.source.committed(TopicPartition(topic, 0)) >= least
                await journal.wait_for(20)

    async def test_positions_are_stored_by_time(self, clock: Clock) -> None:
        """consumer/C:C6: a position is stored only if it is new."""
        async with self.in_time(clock):
            topic, journal = await self.filled([5]), Journal(clock)
            async with self.consuming(topic, journal, commits=Commits(every=0.01)) as run:
                await journal.news.wait_for(
                    lambda: run.source.committed(TopicPartition(topic, 0)) == 5
                )
                count = len(run.source.commits)
                await run.consumer.commit()
                assert len(run.source.commits) == count

    async def test_a_failed_commit_is_followed_by_a_newer_one(self, clock: Clock) -> None:
        """O-T22, consumer/C:C6: the run continues."""
        async with self.in_time(clock):
            topic, journal = await self.filled([5]), Journal(clock)
            async with self.consuming(topic, journal, commits=Commits(every=0.01)) as run:
                run.source.fail_next_commit(TransientError("no coordinator"))
                await journal.wait_for(5)
                await self.add(topic, 0, 3)
                await journal.news.wait_for(
                    lambda: run.source.committed(TopicPartition(topic, 0)) == 8
                )
            assert (await self.position(topic)) == Position(8)


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
                topic, journal, journal.handler(handle), commits=Commits(every=0.01)
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
                topic, journal, journal.handler(handle), commits=Commits(every=0.002)
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
