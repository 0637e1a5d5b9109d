"""Tests with consumers: bounds, pauses, drains and readiness."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.conformance.source_consumers import ConsumingSource, Journal

from sluicegate.consumer import InFlight, Position, TopicPartition

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.batcher import Clock

OFTEN = 5.0
"""Seconds. The test does not wait for a source with a longer keep-alive interval."""


class BoundTests(ConsumingSource):
    """Tests of the bounds of a consumer, and of its end."""

    async def test_the_window_is_a_bound(self, clock: Clock) -> None:
        """O-T4, consumer/C:B1: a consumer with a full window fetches nothing and keeps its source
        alive.
        """
        async with self.in_time(clock):
            topic, journal = await self.filled([12], keys=12), Journal(clock)
            gate, most = asyncio.Event(), 0

            async def handle(message: Message) -> None:
                nonlocal most
                most = max(most, len(journal.running))
                await gate.wait()

            async with self.consuming(topic, journal, journal.handler(handle), in_flight=3) as run:
                await journal.news.wait_for(lambda: len(journal.running) == 3)
                assert not run.source.is_fetching
                every = run.source.capabilities.keep_alive_every
                if every is not None and every <= OFTEN:
                    await journal.news.wait_for(lambda: run.source.kept_alive >= 2)
                gate.set()
                await journal.wait_for(12)
            assert most == 3
            journal.check_order()

    async def test_a_full_window_is_refilled_below_its_threshold(self, clock: Clock) -> None:
        """consumer/C:B1: the default threshold is three quarters."""
        self.needs("partitions")
        async with self.in_time(clock):
            topic, journal = await self.filled([20], keys=20), Journal(clock)
            gates = [asyncio.Event() for _ in range(20)]

            async def handle(message: Message) -> None:
                await gates[message.offset].wait()

            async with self.consuming(topic, journal, journal.handler(handle), in_flight=8) as run:
                await journal.news.wait_for(lambda: len(journal.running) == 8)
                gates[0].set()
                await journal.wait_for(1)
                for _ in range(10):
                    await clock.sleep(0)
                assert not run.source.is_fetching
                assert run.source.delivered == 8
                for gate in gates[:3]:
                    gate.set()
                await journal.news.wait_for(lambda: run.source.delivered == 11)
                for gate in gates:
                    gate.set()
                await journal.wait_for(20)

    async def test_bytes_are_bounded(self, clock: Clock) -> None:
        """consumer/C:B1, consumer/C:N10: a record above the bound passes alone."""
        async with self.in_time(clock):
            topic, journal = await self.new_topic(1), Journal(clock)
            sizes = [40, 40, 40, 500, 40, 40]
            await self.append(topic, 0, [(b"%d" % at, b"x" * n) for at, n in enumerate(sizes)])
            inside: list[int] = []

            async def handle(message: Message) -> None:
                inside.append(sum(sizes[offset] for _, offset in journal.running))
                for _ in range(5):
                    await clock.sleep(0)

            async with self.consuming(
                topic, journal, journal.handler(handle), in_flight=InFlight(bytes=100)
            ):
                await journal.wait_for(6)
            assert {size for size in inside if size > 100} == {500}

    async def test_a_paused_partition_waits_and_the_others_go_on(self, clock: Clock) -> None:
        """consumer/C:B2."""
        async with self.in_time(clock):
            topic, journal = await self.new_topic(2), Journal(clock)
            async with self.consuming(topic, journal) as run:
                run.consumer.pause(TopicPartition(topic, 0))
                await self.add(topic, 0, 5)
                await self.add(topic, 1, 5)
                await journal.wait_for(5)
                assert {partition for partition, _ in journal.handled} == {1}
                run.consumer.resume(TopicPartition(topic, 0))
                await journal.wait_for(10)
            journal.check_order()

    async def test_a_pause_outlives_its_claim(self, clock: Clock) -> None:
        """consumer/C:B2: a partition that returns is still paused."""
        self.needs("loss")
        async with self.in_time(clock):
            topic, journal = await self.filled([3, 3]), Journal(clock)
            async with self.consuming(topic, journal) as run:
                await journal.wait_for(6)
                await run.consumer.commit()
                run.consumer.pause(TopicPartition(topic, 0))
                await self.lost(run, journal)
                await self.add(topic, 0, 2)
                await self.add(topic, 1, 2)
                await journal.wait_for(8)
                assert sorted(journal.handled[6:]) == [(1, 3), (1, 4)]
                run.consumer.resume(TopicPartition(topic, 0))
                await journal.wait_for(10)
            journal.check_order()

    async def test_a_drain_ends_what_runs_and_leaves_the_rest(self, clock: Clock) -> None:
        """O-T9, consumer/C:B3: running messages are committed; queued ones are handled after a
        restart.
        """
        async with self.in_time(clock):
            topic, journal = await self.filled([10], keys=2), Journal(clock)
            gate = asyncio.Event()

            async def handle(message: Message) -> None:
                await gate.wait()

            async with self.consuming(topic, journal, journal.handler(handle)) as run:
                await journal.news.wait_for(lambda: len(journal.running) == 2)
                clock.call_at(clock.now() + 0.01, gate.set)
                report = await run.stop()
                assert report.complete
            assert sorted(journal.handled) == [(0, 0), (0, 1)]
            assert (await self.position(topic)) == Position(2)
            after = Journal(clock, before=journal)
            async with self.consuming(topic, after):
                await after.wait_for(8)
            assert sorted(after.handled) == [(0, offset) for offset in range(2, 10)]

    async def test_a_drain_reports_what_it_has_cut(self, clock: Clock) -> None:
        """consumer/C:B3: partition, offset, key and attempt are reported; the message is handled
        again.
        """
        async with self.in_time(clock):
            topic, journal = await self.filled([3], keys=3), Journal(clock)
            never = asyncio.Event()

            async def handle(message: Message) -> None:
                if message.offset == 1:
                    await never.wait()

            async with self.consuming(topic, journal, journal.handler(handle), drain=0.05) as run:
                await journal.wait_for(2)
                report = await run.stop()
            assert [str(each) for each in report.unfinished] == [
                f"{topic}/0@1 (key b'k1', attempt 1)"
            ]

    async def test_readiness_follows_the_assignment(self, clock: Clock) -> None:
        """O-T10, consumer/C:B4: ready after the assignment, and no longer once the drain begins."""
        self.needs("partitions")
        async with self.in_time(clock):
            topic, journal = await self.filled([3]), Journal(clock)
            async with self.consuming(topic, journal) as run:
                await run.consumer.wait_ready()
                assert run.source.claims
                assert run.consumer.alive
                await journal.wait_for(3)
                run.consumer.stop()
                assert not run.consumer.ready
                await run.end()
                assert not run.consumer.ready
