"""O-T18: a record that its source could not decode is poison without a handler, in its place.

White box: a letter and its record.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, log_of, running
from park_help import DurableParkStore, parking

from sluicegate import Consumer
from sluicegate.consumer import (
    InFlight,
    Keys,
    MemoryLog,
    MemorySource,
    Poison,
    Position,
    UndecodableRecord,
)
from sluicegate.consumer.failures.parking import Unparked
from sluicegate.consumer.jobs import JobScheduler
from sluicegate.letters.items import NoSourceRecordError, record_of_item
from sluicegate.testing import FakeSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate import Message
    from sluicegate.testing import FakeClock

BAD = {2, 5, 7}
"""The offsets of undecodable records: of the key a, without a key, and of an unknown key."""


def mixed() -> MemoryLog:
    """A log of the keys a, b and no key, with undecodable records among them."""
    log = MemoryLog()
    error = ValueError("too many digits")
    for key in ("a", "a"):
        log.produce("t", b"1", key=key)
    log.produce("t", b"raw", key="a", undecodable=error)
    for key in ("a", "b"):
        log.produce("t", b"1", key=key)
    log.produce("t", b"raw", undecodable=error)
    log.produce("t", b"1")
    log.append(UndecodableRecord("t", 0, 7, error=error, has_key=False))
    later: tuple[str | None, ...] = ("b", None, "a")
    for each in later:
        log.produce("t", b"1", key=each)
    return log


class Seen:
    """The records that steps and handlers have seen."""

    def __init__(self) -> None:
        self.stepped: list[int] = []
        self.handled: dict[object, list[int]] = defaultdict(list)

    def step(self, message: Message) -> None:
        self.stepped.append(message.offset)

    def take(self, message: Message) -> None:
        self.handled[message.key].append(message.offset)


async def singly(consumer: Consumer, seen: Seen) -> Any:
    async def handle(message: Message) -> None:
        seen.take(message)

    return await consumer.run(handle)


async def in_threads(consumer: Consumer, seen: Seen) -> Any:
    return await consumer.run(seen.take)


async def in_batches(consumer: Consumer, seen: Seen) -> Any:
    async def handle(messages: list[Message]) -> None:
        for message in messages:
            seen.take(message)

    return await consumer.run_batch(handle, size=4, max_wait=0.0)


async def as_events(consumer: Consumer, seen: Seen) -> Any:
    async def handle(context: Any) -> None:
        seen.take(context.message)

    return await consumer.run_events(handle)


async def as_jobs(consumer: Consumer, seen: Seen) -> Any:
    async def process(key: object, message: Message) -> None:
        seen.take(message)

    jobs: JobScheduler[Any, Any] = JobScheduler(process)

    async def handle(context: Any) -> Any:
        return jobs.schedule(context, context.message.key, context.message)

    return await consumer.run_events(handle, jobs=[jobs])


WORKS = [singly, in_threads, in_batches, as_events, as_jobs]


@pytest.mark.parametrize("ordering", ["key", "partition", "unordered"])
@pytest.mark.parametrize("work", WORKS)
async def test_it_is_a_dead_letter_and_the_others_are_handled_in_order(
    fake_clock: FakeClock, work: Callable[..., Any], ordering: Any
) -> None:
    log, seen = mixed(), Seen()
    letters: FakeSink[Any] = FakeSink()
    consumer = Consumer(
        MemorySource(log, ends=True, clock=fake_clock),
        clock=fake_clock,
        ordering=ordering,
        poison=Poison("skip", dead_letters=letters),
        steps=[seen.step],
        concurrency=1 if ordering == "unordered" else 10,
        key=Keys(scope="topic") if ordering == "key" else None,
    )
    async with consumer:
        report = await work(consumer, seen)
    assert seen.handled == {"a": [0, 1, 3, 10], "b": [4, 8], None: [6, 9]}
    assert BAD.isdisjoint(seen.stepped)
    assert {
        (letter.item["offset"], letter.error_type, letter.cause_type, letter.attempts)
        for letter in letters.applied
    } == {(offset, "UndecodableError", "ValueError", 1) for offset in BAD}
    assert (report.counts.acked, report.counts.naks, report.counts.dead_lettered) == (8, 0, 3)
    assert log.positions[P0] == Position(11)
    for letter in letters.applied:
        assert letter.item["value"] in {b"raw", None}
        with pytest.raises(NoSourceRecordError, match="could not be decoded"):
            record_of_item(letter.item)


@pytest.mark.parametrize("work", WORKS)
async def test_a_blocked_one_holds_its_key_only_and_can_be_skipped(
    fake_clock: FakeClock, work: Callable[..., Any]
) -> None:
    """consumer/C:O2: a record whose key is unknown holds no other record."""
    log, seen = mixed(), Seen()
    async with Consumer(
        MemorySource(log, clock=fake_clock),
        clock=fake_clock,
        ordering="key",
        poison="block",
        steps=[seen.step],
    ) as consumer:
        run = asyncio.ensure_future(work(consumer, seen))
        await fake_clock.advance(1.0)
        assert seen.handled == {"a": [0, 1], "b": [4, 8]}
        assert {message.offset for message in consumer.blocked} == BAD
        for blocked in consumer.blocked:
            consumer.unblock(blocked.key, action="skip")
        await fake_clock.advance(1.0)
        assert seen.handled == {"a": [0, 1, 3, 10], "b": [4, 8], None: [6, 9]}
        assert BAD.isdisjoint(seen.stepped)
        consumer.stop()
        await run
    assert log.positions[P0] == Position(11)


async def test_a_key_function_sees_it_only_for_its_lane(fake_clock: FakeClock) -> None:
    """Neither a failing function of the key nor one of the size hides why it is poison."""
    log, seen = mixed(), Seen()
    letters: FakeSink[Any] = FakeSink()

    def refuses(record: Any) -> Any:
        if record.value == b"raw":
            raise LookupError
        return 1 if record.value else 0

    consumer = Consumer(
        MemorySource(log, ends=True, clock=fake_clock),
        clock=fake_clock,
        key=refuses,
        in_flight=InFlight(size_of=refuses),
        poison=Poison("skip", dead_letters=letters),
    )
    async with consumer:
        await singly(consumer, seen)
    assert sorted(at for handled in seen.handled.values() for at in handled) == [
        0,
        1,
        3,
        4,
        6,
        8,
        9,
        10,
    ]
    assert [letter.error_type for letter in letters.applied] == ["UndecodableError"] * 3


@pytest.mark.parametrize("has_letters", [False, True])
async def test_a_parked_one_never_reaches_the_handler(
    fake_clock: FakeClock, *, has_letters: bool
) -> None:
    """consumer/C:N4: also if it was parked behind another one; dead letters are the way out."""
    log, store, seen = log_of("a"), DurableParkStore(), Seen()
    letters: FakeSink[Any] = FakeSink()
    for _ in range(2):
        log.produce("t", b"raw", key="a", undecodable=ValueError())
        log.produce("t", b"1", key="a")

    async def handle(message: Message) -> None:
        seen.take(message)

    options = parking(store, dead_letters=letters if has_letters else None)
    async with running(log, fake_clock, handle, **options) as consumer:
        await fake_clock.advance(1.0)
        assert seen.handled == {"a": [0]}
        assert store.offsets() == [1, 2, 3, 4]
        unparked = await consumer.unpark("a")
        if has_letters:
            assert unparked == Unparked(4, is_done=True)
            assert seen.handled == {"a": [0, 2, 4]}
            assert [letter.item["offset"] for letter in letters.applied] == [1, 3]
        else:
            assert (unparked.handled, type(unparked.error).__name__) == (0, "UndecodableError")
            assert seen.handled == {"a": [0]}
            assert store.offsets() == [1, 2, 3, 4]
