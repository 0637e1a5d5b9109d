"""Tests with consumers: messages that fail, hang, or cannot be decoded."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.source_consumers import ConsumingSource, Journal

from sluicegate import Backoff, PermanentError, RetryPolicy, Terminate, ToDeadLetter, TransientError
from sluicegate.consumer import Poison, Position, decode
from sluicegate.errors import DeadLetterLimit
from sluicegate.testing import BlockingSink, FakeSink, FlakySink

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.batcher import Clock

QUICK = Backoff(base=0.001, longest=0.01, jitter="none")


class FailureTests(ConsumingSource):
    """Tests of retries, poison, dead letters and timeouts."""

    async def test_attempts_are_counted_and_end_in_a_dead_letter(self, clock: Clock) -> None:
        """consumer/C:F1: transient errors use up attempts; a permanent one is final at once."""
        async with self.in_time(clock):
            topic, journal = await self.filled([3], keys=3), Journal(clock)
            letters: FakeSink[Any] = FakeSink()

            async def handle(message: Message) -> None:
                if message.offset == 0:
                    journal.settle(message)
                    raise TransientError("busy")
                if message.offset == 1:
                    journal.settle(message)
                    raise PermanentError("no such customer")

            async with self.consuming(
                topic,
                journal,
                journal.handler(handle),
                retry=RetryPolicy(attempts=3, backoff=QUICK),
                poison=Poison("skip", dead_letters=letters),
            ) as run:
                await letters.wait_for_call(2)
                report = await run.stop()
            tries = {letter.attempts: letter.error_type for letter in letters.applied}
            assert tries == {1: "PermanentError", 3: "TransientError"}
            assert report.counts.dead_lettered == 2
            assert sorted(journal.begun) == [(0, 0), (0, 0), (0, 0), (0, 1), (0, 2)]
            assert await self.position(topic) == Position(3)

    async def test_a_dead_letter_is_written_before_its_message_is_committed(
        self, clock: Clock
    ) -> None:
        """consumer/C:F2: the position waits for the dead letter; later keys do not."""
        async with self.in_time(clock):
            topic, journal = await self.filled([4], keys=4), Journal(clock)
            letters: BlockingSink[Any] = BlockingSink()

            async def handle(message: Message) -> object:
                return ToDeadLetter("bad") if message.offset == 0 else None

            async with self.consuming(
                topic, journal, journal.handler(handle), poison=Poison(dead_letters=letters)
            ) as run:
                await journal.wait_for(3)
                await letters.wait_for_call()
                await run.consumer.commit()
                position = await self.position(topic)
                assert position is None or position.offset == 0
                journal.settle_all((0, 0))
                letters.release()
                await run.stop()
            assert await self.position(topic) == Position(4)

    async def test_a_dead_letter_that_fails_is_written_again(self, clock: Clock) -> None:
        """consumer/C:F2: a failed dead letter never drops its message."""
        async with self.in_time(clock):
            topic, journal = await self.filled([2], keys=1), Journal(clock)
            letters: FlakySink[Any] = FlakySink(2)

            async def handle(message: Message) -> object:
                if message.offset == 0:
                    journal.settle(message)
                    return ToDeadLetter("bad")
                return None

            async with self.consuming(
                topic,
                journal,
                journal.handler(handle),
                poison=Poison(dead_letters=letters),
                retry=RetryPolicy(backoff=QUICK),
            ) as run:
                await journal.wait_for(1)
                report = await run.stop()
            assert (len(letters.calls), len(letters.applied)) == (3, 1)
            assert report.counts.dead_lettered == 1
            assert await self.position(topic) == Position(2)

    async def test_a_blocked_key_waits_for_unblock_and_the_others_go_on(self, clock: Clock) -> None:
        """consumer/C:F2, consumer/C:O2: no position beyond it is committed meanwhile."""
        async with self.in_time(clock):
            topic, journal = await self.filled([6], keys=2), Journal(clock)
            is_repaired = False

            async def handle(message: Message) -> object:
                return Terminate("bad") if message.offset == 0 and not is_repaired else None

            async with self.consuming(
                topic, journal, journal.handler(handle), poison="block"
            ) as run:
                await journal.wait_for(3)
                await run.consumer.commit()
                position = await self.position(topic)
                assert position is None or position.offset == 0
                assert [blocked.offset for blocked in run.consumer.blocked] == [0]
                is_repaired = True
                assert run.consumer.unblock(b"k0") == 1
                await journal.wait_for(6)
            assert [offset for _, offset in journal.handled if offset % 2 == 0] == [0, 2, 4]
            assert await self.position(topic) == Position(6)

    async def test_too_many_dead_letters_stop_the_consumer(self, clock: Clock) -> None:
        """consumer/C:F3: the rest of the partition stays unsettled."""
        async with self.in_time(clock):
            topic, journal = await self.filled([20], keys=1), Journal(clock)
            letters: FakeSink[Any] = FakeSink()

            async def handle(message: Message) -> object:
                journal.settle(message)
                return ToDeadLetter("everything is bad")

            with pytest.raises(DeadLetterLimit):
                async with self.consuming(
                    topic,
                    journal,
                    journal.handler(handle),
                    poison=Poison(dead_letters=letters, max_consecutive_dead_letters=5),
                ) as run:
                    await run.end()
            assert len(letters.applied) <= 6
            position = await self.position(topic)
            assert position is not None
            assert position.offset <= 6

    async def test_a_handler_that_ignores_its_timeout_keeps_its_key(self, clock: Clock) -> None:
        """consumer/C:F4: the next message of the key, or the next attempt, begins after its end."""
        async with self.in_time(clock):
            topic, journal = await self.filled([2], keys=1), Journal(clock)

            async def handle(message: Message) -> None:
                if message.offset == 0 and message.attempt == 1:
                    try:
                        await asyncio.get_running_loop().create_future()
                    except asyncio.CancelledError:
                        await clock.sleep(0.05)
                        raise

            async with self.consuming(
                topic,
                journal,
                journal.handler(handle),
                timeout=0.02,
                retry=RetryPolicy(attempts=3, backoff=QUICK),
            ):
                await journal.wait_for(2)
            assert journal.begun == [(0, 0), (0, 0), (0, 1)]
            assert await self.position(topic) == Position(2)

    async def test_what_cannot_be_decoded_is_poison_alone(self, clock: Clock) -> None:
        """O-T18, consumer/C:F5: other messages of the same key are handled."""
        async with self.in_time(clock):
            topic, journal = await self.new_topic(1), Journal(clock)
            await self.append(topic, 0, [(b"k", value) for value in (b"1", b"{", b"3")])
            journal.settle_all((0, 1))
            letters: FakeSink[Any] = FakeSink()
            seen: list[object] = []

            async def handle(message: Message) -> None:
                seen.append(message.value)

            async with self.consuming(
                topic,
                journal,
                journal.handler(handle),
                steps=[decode(json.loads)],
                poison=Poison("skip", dead_letters=letters),
            ) as run:
                await journal.wait_for(2)
                await run.stop()
            assert seen == [1, 3]
            assert [letter.error_type for letter in letters.applied] == ["DecodeError"]
            assert await self.position(topic) == Position(3)

    async def test_what_the_source_cannot_decode_is_poison_alone(self, clock: Clock) -> None:
        """O-T18: it is a dead letter after one attempt, and no handler gets it."""
        self.needs("undecodable")
        async with self.in_time(clock):
            topic, journal = await self.filled([3], keys=1), Journal(clock)
            await self.append_undecodable(topic, 0, b"k0")
            await self.add(topic, 0, 3, keys=1)
            journal.settle_all((0, 3))
            letters: FakeSink[Any] = FakeSink()
            async with self.consuming(
                topic, journal, poison=Poison("skip", dead_letters=letters)
            ) as run:
                await journal.wait_for(6)
                await letters.wait_for_call()
                report = await run.stop()
            assert sorted(journal.begun) == [(0, at) for at in (0, 1, 2, 4, 5, 6)]
            (letter,) = letters.applied
            assert (letter.error_type, letter.attempts) == ("UndecodableError", 1)
            assert letter.item["offset"] == 3
            assert (report.counts.acked, report.counts.naks) == (6, 0)
            assert await self.position(topic) == Position(7)
