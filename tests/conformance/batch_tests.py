"""Tests with consumers: batches, their results by position, and their seal reasons."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from tests.conformance.failure_tests import QUICK
from tests.conformance.source_consumers import ConsumingSource, Journal

from sluicegate import Ack, Nak, RetryPolicy, Terminate, ToDeadLetter, TransientError
from sluicegate.consumer import Poison, Position, decode
from sluicegate.testing import FakeSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message
    from sluicegate.batcher import Clock


class BatchTests(ConsumingSource):
    """Tests of batches of messages across keys and partitions."""

    async def test_results_of_a_batch_are_by_position(self, clock: Clock) -> None:
        """O-T11, O-T12, consumer/C:Ba1: a message without a result is terminated."""
        async with self.in_time(clock):
            topic, journal = await self.filled([5], keys=5), Journal(clock)
            letters: FakeSink[Any] = FakeSink()
            journal.settle_all((0, 2), (0, 3), (0, 4))

            async def handle(messages: Sequence[Message]) -> Sequence[object]:
                if len(messages) == 1:
                    journal.done(*messages)
                    return [Ack()]
                journal.done(messages[0])
                return [None, Nak(delay=0.01), ToDeadLetter("2"), Terminate("3")]

            async with self.consuming(
                topic,
                journal,
                run=lambda consumer: consumer.run_batch(handle, size=5, max_wait=1.0),
                poison=Poison("skip", dead_letters=letters),
            ) as run:
                await journal.wait_for(2)
                report = await run.stop()
            assert journal.handled == [(0, 0), (0, 1)]
            counts = report.counts
            assert (counts.acked, counts.naks, counts.dead_lettered) == (2, 1, 3)
            assert counts.miscounted_batches == 1
            assert sorted(letter.error_type for letter in letters.applied) == [
                "BatchResultCountError",
                "PoisonError",
                "PoisonError",
            ]
            assert await self.position(topic) == Position(5)

    async def test_a_batch_that_raises_is_split_until_its_poison_is_alone(
        self, clock: Clock
    ) -> None:
        """consumer/C:Ba2: the other messages are acknowledged, without a livelock."""
        async with self.in_time(clock):
            topic, journal = await self.filled([16], keys=16), Journal(clock)
            letters: FakeSink[Any] = FakeSink()
            journal.settle_all((0, 11))

            async def handle(messages: Sequence[Message]) -> None:
                with journal.handling(*messages):
                    if any(message.offset == 11 for message in messages):
                        raise TransientError("one of them")
                journal.done(*messages)

            async with self.consuming(
                topic,
                journal,
                run=lambda consumer: consumer.run_batch(handle, size=16, max_wait=0.01),
                poison=Poison("skip", dead_letters=letters),
                retry=RetryPolicy(attempts=2, backoff=QUICK),
            ) as run:
                await journal.wait_for(15)
                await letters.wait_for_call()
                await run.stop()
            assert sorted(journal.handled) == [(0, n) for n in range(16) if n != 11]
            assert len(letters.applied) == 1
            assert await self.position(topic) == Position(16)

    async def test_batches_mix_keys_and_partitions_and_never_share_one(self, clock: Clock) -> None:
        """O-T14, G-T8, consumer/C:Ba3: a key is in at most one running batch, in order."""
        async with self.in_time(clock):
            topic, journal = await self.filled([40, 40], keys=5), Journal(clock)
            sizes: list[int] = []

            async def handle(messages: Sequence[Message]) -> None:
                with journal.handling(*messages):
                    await clock.sleep(0.001)
                sizes.append(len(messages))
                journal.done(*messages)

            async with self.consuming(
                topic,
                journal,
                run=lambda consumer: consumer.run_batch(handle, size=8, max_wait=0.002),
                concurrency=3,
            ):
                await journal.wait_for(80)
            journal.check_order()
            assert max(sizes) <= 8

    async def test_behind_a_failed_message_its_key_is_handled_again(self, clock: Clock) -> None:
        """consumer/C:Ba4: an acknowledgement counts only before its key's first other result."""
        async with self.in_time(clock):
            topic, journal = await self.filled([6], keys=2), Journal(clock)
            batches: list[list[int]] = []

            async def handle(messages: Sequence[Message]) -> Sequence[object]:
                batches.append([message.offset for message in messages])
                results = [
                    Nak(delay=0.01) if (message.offset, message.attempt) == (2, 1) else None
                    for message in messages
                ]
                failed = any(result is not None for result in results)
                journal.done(
                    *[each for each in messages if not failed or each.offset % 2 or not each.offset]
                )
                return results

            async with self.consuming(
                topic,
                journal,
                run=lambda consumer: consumer.run_batch(handle, size=6, max_wait=0.3),
            ) as run:
                await journal.wait_for(6)
                report = await run.stop()
            assert sorted(batches[0]) == [0, 1, 2, 3, 4, 5]
            assert [offset for batch in batches[1:] for offset in batch] == [2, 4]
            assert (report.counts.acked, report.counts.naks) == (6, 1)

    async def test_a_batch_is_closed_by_size_age_and_drain(self, clock: Clock) -> None:
        """O-T13, consumer/C:Ba5: messages of busy keys are in no batch."""
        self.needs("partitions")
        async with self.in_time(clock):
            topic, journal = await self.new_topic(1), Journal(clock)
            batches: list[int] = []
            gate = asyncio.Event()

            async def handle(messages: Sequence[Message]) -> None:
                batches.append(len(messages))
                with journal.handling(*messages):
                    if any(message.key == b"slow" for message in messages):
                        await gate.wait()
                journal.done(*messages)

            async with self.consuming(
                topic,
                journal,
                run=lambda consumer: consumer.run_batch(handle, size=4, max_wait=0.3),
            ):
                await self.add(topic, 0, 4, keys=4)
                await journal.wait_for(4)
                await self.append(topic, 0, [(b"slow", b"")])
                await journal.news.wait_for(lambda: len(journal.begun) == 5)
                await self.append(topic, 0, [(b"slow", b"")] * 3)
                await self.add(topic, 0, 2)
                await journal.wait_for(6)
                assert batches == [4, 1, 2]
                gate.set()
                await journal.wait_for(10)
            journal.check_order()

            journal = Journal(clock, before=journal)
            async with self.consuming(
                topic,
                journal,
                run=lambda consumer: consumer.run_batch(handle, size=100, max_wait=3600.0),
            ) as run:
                await self.add(topic, 0, 3)
                await journal.news.wait_for(lambda: run.source.delivered >= 3)
                await run.stop()
            assert len(journal.handled) == 3

    async def test_what_cannot_be_decoded_is_not_in_the_batch(self, clock: Clock) -> None:
        """O-T18, consumer/C:F5: only that message is poison; the others are handled."""
        async with self.in_time(clock):
            topic, journal = await self.new_topic(1), Journal(clock)
            await self.append(topic, 0, [(b"k", value) for value in (b"1", b"{", b"3")])
            journal.settle_all((0, 1))
            letters: FakeSink[Any] = FakeSink()
            seen: list[object] = []

            async def handle(messages: Sequence[Message]) -> None:
                seen.extend(message.value for message in messages)
                journal.done(*messages)

            async with self.consuming(
                topic,
                journal,
                run=lambda consumer: consumer.run_batch(handle, size=3),
                steps=[decode(json.loads)],
                poison=Poison("skip", dead_letters=letters),
            ) as run:
                await journal.wait_for(2)
                await run.stop()
            assert seen == [1, 3]
            assert [letter.error_type for letter in letters.applied] == ["DecodeError"]

    async def test_what_the_source_cannot_decode_is_not_in_the_batch(self, clock: Clock) -> None:
        """O-T18: the others of its batch are handled, in order."""
        self.needs("undecodable")
        async with self.in_time(clock):
            topic, journal = await self.filled([3], keys=1), Journal(clock)
            await self.append_undecodable(topic, 0, b"k0")
            await self.add(topic, 0, 3, keys=1)
            journal.settle_all((0, 3))
            letters: FakeSink[Any] = FakeSink()

            async def handle(messages: Sequence[Message]) -> None:
                with journal.handling(*messages):
                    journal.done(*messages)

            async with self.consuming(
                topic,
                journal,
                run=lambda consumer: consumer.run_batch(handle, size=7, max_wait=0.01),
                poison=Poison("skip", dead_letters=letters),
            ) as run:
                await journal.wait_for(6)
                await letters.wait_for_call()
                await run.stop()
            journal.check_order()
            assert sorted(journal.handled) == [(0, at) for at in (0, 1, 2, 4, 5, 6)]
            assert [letter.error_type for letter in letters.applied] == ["UndecodableError"]
            assert await self.position(topic) == Position(7)
