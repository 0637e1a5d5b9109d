"""The harness reports the outcome of each message as the log of its source has it."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from sluicegate import ConfigError, Nak, Terminate
from sluicegate.consumer import Keys, Poison, TopicPartition
from sluicegate.testing import ConsumerHarness

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import FakeClock

P0 = TopicPartition("messages", 0)


async def test_settled_ids_are_in_order_per_key(fake_clock: FakeClock) -> None:
    """O-T11, consumer/O25, consumer/O35: with counts, positions and calls."""
    harness = ConsumerHarness()
    for number in range(6):
        harness.send(number, key="odd" if number % 2 else "even")

    async def handle(message: Message) -> Nak | None:
        return Nak(delay=30.0) if (message.value, message.attempt) == (0, 1) else None

    ran = await harness.run(handle)
    assert ran.settled == {"even": [0, 2, 4], "odd": [1, 3, 5]}
    assert ran.unsettled == []
    assert (ran.counts.acked, ran.counts.naks) == (6, 1)
    assert ran.positions == {P0: 6}
    tries = [(call.attempt, call.started) for call in ran.calls if call.ids == (0,)]
    assert tries == [(1, 0.0), (2, 30.0)]
    assert isinstance(ran.calls[0].result, Nak)


async def test_keys_of_several_partitions_are_listed_by_the_end_of_their_last_call(
    fake_clock: FakeClock,
) -> None:
    harness = ConsumerHarness(key=Keys(scope="partition"))
    for seconds, partition in ((3.0, 0), (1.0, 1), (2.0, 2)):
        harness.send(seconds, key="k", id=f"{seconds:g} s", partition=partition)
    ran = await harness.run(lambda message: fake_clock.sleep(message.value))
    assert ran.settled == {"k": ["1 s", "2 s", "3 s"]}


async def test_what_is_not_settled_comes_in_the_next_run(fake_clock: FakeClock) -> None:
    """After a restart the stored map contains the records settled beyond the position."""
    harness = ConsumerHarness(poison=Poison("block"))
    for number in range(4):
        harness.send(number, key=number % 2)

    async def handle(message: Message) -> Terminate | None:
        return Terminate("odd") if message.value == 1 else None

    first = await harness.run(handle)
    assert (first.settled, first.unsettled) == ({0: [0, 2]}, [1, 3])
    assert first.positions == {P0: 1}

    async def handle_all(message: Message) -> None:
        """Acknowledge the message."""

    second = await harness.run(handle_all)
    assert (second.settled, second.unsettled) == ({1: [1, 3]}, [])
    assert [call.ids for call in second.calls] == [(1,), (3,)]


async def test_a_run_does_not_end_while_something_can_move(fake_clock: FakeClock) -> None:
    """With a blocked message, a run does not end while another key backs off or is handled."""
    harness = ConsumerHarness(poison=Poison())
    for key in ("bad", "failing", "slow"):
        harness.send(key, key=key)

    async def handle(message: Message) -> Nak | Terminate | None:
        if message.value == "bad":
            return Terminate("no such customer")
        if message.value == "slow":
            await fake_clock.sleep(9.0)
        return Nak(delay=20.0) if (message.value, message.attempt) == ("failing", 1) else None

    ran = await harness.run(handle)
    assert (ran.settled, ran.blocked) == ({"failing": [1], "slow": [2]}, [0])
    assert fake_clock.now() < 22.0


async def test_a_batch_handler_is_run_in_batches(fake_clock: FakeClock) -> None:
    """O-T13: its calls contain the ids of their messages."""
    harness = ConsumerHarness()
    for number in range(5):
        harness.send(number, key=number)

    async def handle(messages: list[Message]) -> list[Nak | None]:
        return [
            Nak(delay=1.0) if (message.value, message.attempt) == (3, 1) else None
            for message in messages
        ]

    ran = await harness.run_batch(handle, size=4, max_wait=0.5)
    assert [call.ids for call in ran.calls] == [(0, 1, 2, 3), (4,), (3,)]
    assert (ran.counts.acked, ran.counts.batches, ran.unsettled) == (5, 3, [])


async def test_dead_letters_are_records_and_are_sent_again(fake_clock: FakeClock) -> None:
    """consumer/O25: their attempts start at 1, and the blocked message is named."""
    harness = ConsumerHarness()
    harness.send({"order": 1}, key="ada", id="first", headers=[("trace", b"t")])
    harness.send({"order": 2}, key="ada", id="second")

    async def refuse(message: Message) -> Terminate:
        return Terminate("no such customer")

    ran = await harness.run(refuse)
    assert (ran.settled, ran.unsettled, ran.blocked) == ({}, ["first", "second"], ["first"])
    assert fake_clock.now() < 1.0
    (letter,) = ran.dead_letters
    assert (letter.error_type, letter.message) == ("PoisonError", "no such customer")
    harness.resend(letter, id="again")

    async def handle(message: Message) -> None:
        """Acknowledge the message."""

    ran = await harness.run(handle)
    assert ran.settled == {"ada": ["first", "second", "again"]}
    assert {call.attempt for call in ran.calls} == {1}


async def test_a_plain_handler_runs_in_a_thread(fake_clock: FakeClock) -> None:
    harness = ConsumerHarness()
    harness.send("x")
    ran = await harness.run(lambda message: None)
    assert ran.settled == {None: [0]}
    with pytest.raises(ConfigError, match="must take one argument"):
        await harness.run(lambda: None)  # type: ignore[arg-type, misc]  # that is the mistake


async def test_a_handler_that_never_ends_is_an_error(fake_clock: FakeClock) -> None:
    """The error names the message."""
    harness = ConsumerHarness(run_timeout=10.0, drain=1.0)
    harness.send(None, key="k")
    never: Any = asyncio.Event()
    with pytest.raises(TimeoutError, match=r"after 10 s: messages/0@0 \(key 'k', attempt 1\)"):
        await harness.run(lambda message: never.wait())
    assert fake_clock.now() <= 11.0


async def test_an_error_of_the_handler_is_in_its_call(fake_clock: FakeClock) -> None:
    harness = ConsumerHarness()
    harness.send(b"x")

    async def handle(message: Message) -> None:
        if message.attempt == 1:
            raise KeyError("no")

    ran = await harness.run(handle)
    assert isinstance(ran.calls[0].error, KeyError)
    assert ran.calls[1].error is None


async def test_ids_are_injected_and_the_clock_stamps(fake_clock: FakeClock) -> None:
    harness = ConsumerHarness(ids=map(chr, itertools.count(97)).__next__, clock=fake_clock)
    record = harness.send(1, key="k")
    harness.send(2, key="k", id="mine", timestamp=5)
    harness.log.produce("messages", 3, key="k")

    async def handle(message: Message) -> None:
        """Acknowledge the message."""

    ran = await harness.run(handle)
    assert ran.settled == {"k": ["a", "mine", "b"]}
    assert record.timestamp == int(fake_clock.wall_time() * 1000)


async def test_a_run_repeats_exactly(fake_clock: FakeClock) -> None:
    """The jitter is seeded."""

    async def handle(message: Message) -> Nak | None:
        return Nak() if message.attempt < 3 else None

    waits: list[float] = []
    for _ in range(2):
        harness = ConsumerHarness()
        harness.send(None)
        ran = await harness.run(handle)
        waits.append(round(ran.calls[-1].started - ran.calls[0].started, 9))
    assert waits[0] == waits[1]


async def test_a_message_sent_by_the_handler_is_handled_in_the_same_run(
    fake_clock: FakeClock,
) -> None:
    harness = ConsumerHarness()
    harness.send("first")

    async def handle(message: Message) -> None:
        if message.value == "first":
            harness.send("second")

    assert (await harness.run(handle)).settled == {None: [0, 1]}


async def test_an_empty_run_ends_at_once(fake_clock: FakeClock) -> None:
    ran = await ConsumerHarness().run(lambda message: asyncio.sleep(0))
    assert (ran.settled, ran.calls, fake_clock.now()) == ({}, [], 0.0)


def test_a_bad_argument_is_refused() -> None:
    with pytest.raises(ConfigError, match="run_timeout=0"):
        ConsumerHarness(run_timeout=0)


async def test_the_consumers_own_arguments_are_checked_by_the_run(fake_clock: FakeClock) -> None:
    harness = ConsumerHarness(concurrency=0)
    with pytest.raises(ConfigError, match="concurrency=0"):
        await harness.run(lambda message: asyncio.sleep(0))
