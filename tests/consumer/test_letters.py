"""Dead letters of a consumer: when they are written, and what waits for them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import pytest
from consumer_help import P0, Poisoned, Recorder, finite, log_of, records, running

from sluicegate import Consumer, Nak, Terminate, ToDeadLetter, TransientError
from sluicegate.consumer import MemoryLog, MemorySource, Poison, Position
from sluicegate.errors import DeadLetterLimit
from sluicegate.testing import BlockingSink, FakeSink, FlakySink, ScriptedSink, SlowSink

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from sluicegate import Batch, Message
    from sluicegate.consumer import ClaimHost
    from sluicegate.testing import FakeClock


def offsets(letters: ScriptedSink[Any]) -> list[int]:
    return [letter.item["offset"] for letter in letters.applied]


async def test_a_letter_is_confirmed_before_its_position_is_passed(fake_clock: FakeClock) -> None:
    """consumer/C:F2: until then the key waits, other keys continue, and no worker is occupied."""
    log, handler, letters = log_of(*"aabc"), Poisoned(0), BlockingSink[Any]()
    options = {"poison": Poison("skip", dead_letters=letters), "concurrency": 1}
    async with running(log, fake_clock, handler, **options):
        assert handler.offsets == [0, 2, 3]
        assert len(letters.calls) == 1
        assert log.positions[P0].offset == 0
        letters.release()
        await fake_clock.advance(2.0)
        assert handler.offsets == [0, 2, 3, 1]
        assert log.positions[P0] == Position(4)


async def test_while_letters_fail_the_message_is_neither_settled_nor_handled_again(
    fake_clock: FakeClock,
) -> None:
    """O-T20, consumer/C:F2: the write of the letter is retried without limit."""
    log, handler = log_of(*"aab"), Poisoned(0)
    letters = FlakySink[Any](failures=12)
    options = {"poison": Poison("skip", dead_letters=letters)}
    async with running(log, fake_clock, handler, **options) as consumer:
        log.produce("t", b"", key="c")
        await fake_clock.advance(1.0)
        assert handler.offsets == [0, 2, 3]
        assert log.positions[P0].offset == 0
        await fake_clock.advance(600.0)
        assert len(letters.calls) == 13
        assert offsets(letters) == [0]
        assert handler.offsets == [0, 2, 3, 1]
        assert log.positions[P0] == Position(4)
        assert consumer.stats().counts.dead_lettered == 1


async def test_a_letter_that_a_drain_cuts_leaves_its_message_to_the_next_run(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:F2: the message is redelivered, and reported as unfinished."""
    log, handler, letters = log_of(*"ab"), Poisoned(0), BlockingSink[Any]()
    options = {"poison": Poison("skip", dead_letters=letters)}
    consumer = Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock, **options)  # type: ignore[arg-type]
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.advance(1.0)
        consumer.stop()
        report = await run
    assert [each.offset for each in report.unfinished] == [0]
    assert not report.complete
    assert log.positions[P0].offset == 0
    again = await finite(log, fake_clock).run(taken := Recorder())
    assert taken.offsets == [0]
    assert again.complete


async def test_a_lost_claim_cuts_its_letters(fake_clock: FakeClock) -> None:
    """consumer/C:R2: the next owner handles the message, and writes its letter."""
    log, handler, letters = log_of("a"), Poisoned(0), BlockingSink[Any]()
    source = MemorySource(log, clock=fake_clock)
    options: Any = {"poison": Poison("skip", dead_letters=letters)}
    consumer = Consumer(source, clock=fake_clock, **options)
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.advance(1.0)
        source.lose([P0])
        await fake_clock.advance(0.0)
        assert letters.running == 0
        letters.release()
        source.assign([P0])
        await fake_clock.advance(1.0)
        assert handler.offsets == [0, 0]
        assert len(letters.applied) == 1
        consumer.stop()
        assert (await run).complete
    assert log.positions[P0] == Position(1)


async def test_the_letter_of_used_up_attempts_counts_them(fake_clock: FakeClock) -> None:
    """O-T19: the attempts equal the maximum, and the class is that of the last error."""
    letters = FakeSink[Any]()

    async def handle(message: Message) -> Nak:
        return Nak(0.1, TransientError("the shop is closed"))

    options = {"poison": Poison("skip", dead_letters=letters)}
    report = await finite(log_of("a"), fake_clock, **options).run(handle)
    (letter,) = letters.applied
    assert (letter.attempts, letter.error_class) == (5, "transient")
    assert letter.message == "the shop is closed"
    assert report.counts.dead_lettered == 1


@pytest.mark.parametrize("poison", ["skip", "block", "block_and_dead_letter"])
async def test_a_dead_letter_by_result_is_of_that_record_only(
    fake_clock: FakeClock, poison: Any
) -> None:
    """consumer/O20: its key continues, whatever the poison strategy is."""
    log, letters, handled = log_of(*"aaa"), FakeSink[Any](), []

    async def handle(message: Message) -> ToDeadLetter | None:
        handled.append(message.offset)
        return ToDeadLetter("too old") if message.offset == 1 else None

    options = {"poison": Poison(poison, dead_letters=letters)}
    report = await finite(log, fake_clock, **options).run(handle)
    assert handled == [0, 1, 2]
    assert offsets(letters) == [1]
    assert report.blocked == ()
    assert log.positions[P0] == Position(3)


async def test_a_dead_letter_by_result_is_poison_without_dead_letters(
    fake_clock: FakeClock,
) -> None:
    async def handle(message: Message) -> ToDeadLetter:
        return ToDeadLetter("too old")

    report = await finite(log_of("a"), fake_clock).run(handle)
    assert len(report.blocked) == 1


async def test_block_and_dead_letter_writes_one_letter_and_keeps_the_key(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:F2: the default with dead letters."""
    log, handler, letters = log_of(*"aab"), Poisoned(0), FakeSink[Any]()
    async with running(log, fake_clock, handler, poison=Poison(dead_letters=letters)) as consumer:
        assert handler.offsets == [0, 2]
        assert offsets(letters) == [0]
        assert len(consumer.blocked) == 1
        assert log.positions[P0].offset == 0
        handler.bad = set()
        consumer.unblock("a")
        await fake_clock.advance(2.0)
        assert handler.offsets == [0, 2, 0, 1]
        assert offsets(letters) == [0]
        assert log.positions[P0] == Position(3)


@pytest.mark.parametrize("strategy", ["block", "block_and_dead_letter"])
async def test_skip_leaves_one_dead_letter(fake_clock: FakeClock, strategy: Any) -> None:
    """consumer/C:F2: written once, when the key blocks or when the message is skipped."""
    log, handler, letters = log_of(*"aa"), Poisoned(0), FakeSink[Any]()
    options = {"poison": Poison(strategy, dead_letters=letters)}
    async with running(log, fake_clock, handler, **options) as consumer:
        assert len(letters.applied) == (strategy == "block_and_dead_letter")
        consumer.unblock("a", action="skip")
        await fake_clock.advance(2.0)
        assert len(letters.applied) == 1
        assert handler.offsets == [0, 1]
        assert log.positions[P0] == Position(2)
        assert consumer.stats().counts.dead_lettered == 1


async def test_a_message_that_blocks_again_has_another_letter_and_may_still_be_skipped(
    fake_clock: FakeClock,
) -> None:
    log, handler, letters = log_of(*"aa"), Poisoned(0), FakeSink[Any]()
    async with running(log, fake_clock, handler, poison=Poison(dead_letters=letters)) as consumer:
        consumer.unblock("a")
        await fake_clock.advance(1.0)
        assert {letter.key for letter in letters.applied} == {letters.applied[0].key}
        consumer.unblock("a", action="skip")
        await fake_clock.advance(2.0)
        counts = consumer.stats().counts
        assert (counts.letters, counts.dead_lettered) == (2, 1)
        assert log.positions[P0] == Position(2)


async def test_a_letter_that_is_written_last_ends_a_run_with_its_key_blocked(
    fake_clock: FakeClock,
) -> None:
    """When the source ends, the run waits for the letter, but not for an operator."""
    letters = SlowSink[Any](3.0)
    consumer = finite(log_of(*"aab"), fake_clock, poison=Poison(dead_letters=letters))
    report = await consumer.run(Poisoned(0))
    assert fake_clock.now() == pytest.approx(3.0)
    assert len(report.blocked) == 1
    assert (report.counts.letters, report.counts.dead_lettered) == (1, 0)


async def test_the_circuit_opens_before_the_letter_is_written(fake_clock: FakeClock) -> None:
    """consumer/C:F3: the message that opens it has no letter and is redelivered."""
    log, letters = MemoryLog(records("abcd")), FakeSink[Any]()
    options: Any = {
        "poison": Poison("skip", dead_letters=letters, max_consecutive_dead_letters=3),
        "concurrency": 1,
    }

    async def handle(message: Message) -> Terminate:
        return Terminate("a bad deployment")

    with pytest.raises(DeadLetterLimit, match="t/0: 3 messages in a row"):
        await finite(log, fake_clock, **options).run(handle)
    assert offsets(letters) == [0, 1]
    assert log.positions[P0] == Position(2)


async def test_a_message_that_opened_the_circuit_is_not_skipped_without_a_letter(
    fake_clock: FakeClock,
) -> None:
    """It has no letter yet, although the strategy writes one before it blocks."""
    log, letters = log_of("a", "b"), FakeSink[Any]()
    options: Any = {
        "poison": Poison(dead_letters=letters, max_consecutive_dead_letters=1),
        "concurrency": 1,
    }
    consumer = finite(log, fake_clock, **options)

    async def handle(message: Message) -> Terminate | None:
        if message.key == "a":
            return Terminate()
        consumer.unblock("a", action="skip")  # before the drain begins
        return None

    with pytest.raises(DeadLetterLimit):
        await consumer.run(handle)
    assert offsets(letters) == [0]
    assert log.positions[P0] == Position(2)


class Watched(FakeSink[Any]):
    """Records whether it is open."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    async def __aenter__(self) -> Self:
        self.events.append("letters open")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.events.append("letters closed")

    async def write(self, batch: Batch[Any]) -> None:
        await super().write(batch)
        self.events.append("letter")


class WatchedSource(MemorySource):
    """Records whether it is open."""

    events: list[str]

    @asynccontextmanager
    async def open(self, host: ClaimHost) -> AsyncGenerator[None]:
        self.events.append("source open")
        async with super().open(host):
            yield
        self.events.append("source closed")


async def test_dead_letters_are_open_while_the_source_is(fake_clock: FakeClock) -> None:
    events: list[str] = []
    source = WatchedSource(log_of("a"), ends=True, clock=fake_clock)
    source.events = events
    consumer = Consumer(
        source, clock=fake_clock, poison=Poison("skip", dead_letters=Watched(events))
    )
    await consumer.run(Poisoned(0))
    assert events == ["letters open", "source open", "letter", "source closed", "letters closed"]
