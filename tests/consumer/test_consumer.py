"""The consumer from its source to its committed position.

White box: the map beside a committed position is decoded.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
from consumer_help import P0, P1, Recorder, finite, log_of, records

from sluicegate import ClosedError, ConfigError, Consumer, Nak, RetryPolicy, Terminate
from sluicegate.consumer import (
    Commits,
    InFlight,
    Keys,
    MemoryLog,
    MemoryParkStore,
    MemorySource,
    Poison,
    Position,
)
from sluicegate.consumer.progress import offset_map
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate import Message
    from sluicegate.consumer import Fetched, SourceClaim
    from sluicegate.testing import FakeClock


class Counting(MemorySource):
    """Records the largest number of records requested at once."""

    most = 0

    async def fetch(self, claims: Sequence[SourceClaim], most: int) -> Sequence[Fetched] | None:
        self.most = max(self.most, most)
        return await super().fetch(claims, most)


async def test_every_record_is_handled_and_committed(fake_clock: FakeClock) -> None:
    """O-T25: `run` opens, runs and closes a consumer that is not open."""
    log, handler = log_of(*"abcab"), Recorder()
    report = await finite(log, fake_clock).run(handler)
    assert handler.offsets == [0, 1, 2, 3, 4]
    assert report.complete
    assert report.counts.acked == 5
    assert log.positions[P0] == Position(5)


async def test_a_slow_key_does_not_delay_another(fake_clock: FakeClock) -> None:
    """consumer/O1, O-T2, O-T3: A1 is slow and A2 waits for it; B1 runs meanwhile."""
    log = log_of("a", "a", "b")
    events: list[str] = []

    async def handle(message: Message) -> None:
        events.append(f"begin {message.offset}")
        await fake_clock.sleep(1.0 if message.offset == 0 else 0.1)
        events.append(f"end {message.offset}")

    await finite(log, fake_clock, concurrency=2).run(handle)
    assert events == ["begin 0", "begin 2", "end 2", "end 0", "begin 1", "end 1"]


async def test_one_worker_means_one_handler(fake_clock: FakeClock) -> None:
    """consumer/O3, O-T2: with `concurrency=1` no two handlers overlap."""
    running = most = 0

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await fake_clock.sleep(0.1)
        running -= 1

    await finite(log_of(*"abcdef"), fake_clock, concurrency=1).run(handle)
    assert most == 1


async def test_the_position_stops_at_an_unfinished_message(fake_clock: FakeClock) -> None:
    """O-T5, consumer/C:C1: 5 is unfinished, 6 to 9 are settled: 5 is committed, with an
    offset map.
    """
    log = MemoryLog(records("abcdefghij"))
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.offset == 5:
            await gate.wait()

    source = MemorySource(log, ends=True, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock)
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await fake_clock.advance(2.0)
        offset, metadata = log.positions[P0]
        assert offset == 5
        assert offset_map.decode(offset, metadata) == [(6, 10)]
        gate.set()
        assert (await run).complete
    assert log.positions[P0] == Position(10)


async def test_a_restart_runs_only_what_was_unfinished(fake_clock: FakeClock) -> None:
    """Only the records in the map of an earlier consumer are skipped."""
    log = MemoryLog(records("abcdefghij"))
    log.store({P0: Position(5, offset_map.encode(5, [(6, 9)]).text)})
    handler = Recorder()
    await finite(log, fake_clock).run(handler)
    assert handler.offsets == [5, 9]
    assert log.positions[P0] == Position(10)


async def test_a_failed_message_stays_before_the_later_ones_of_its_key(
    fake_clock: FakeClock,
) -> None:
    """consumer/O1, consumer/C:O1: later messages of the key start after the failed one is
    settled.
    """
    handled: list[tuple[int, int]] = []

    async def handle(message: Message) -> Nak | None:
        handled.append((message.offset, message.attempt))
        return Nak(1.0) if message.offset == 0 and message.attempt < 3 else None

    report = await finite(log_of("a", "a", "b"), fake_clock).run(handle)
    assert handled == [(0, 1), (2, 1), (0, 2), (0, 3), (1, 1)]
    assert report.counts.naks == 2


async def test_the_window_bounds_what_is_inside(fake_clock: FakeClock) -> None:
    """consumer/O5, O-T4, consumer/C:B1: with `in_flight=3` nothing is fetched while three are
    unsettled.
    """
    log = log_of(*range(20))
    inside = most = 0

    async def handle(message: Message) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await fake_clock.sleep(0.1)
        inside -= 1

    source = Counting(log, ends=True, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, in_flight=3)
    await consumer.run(handle)
    assert most == 3
    assert source.most == 3


async def test_bytes_are_bounded_and_a_larger_record_passes_alone(fake_clock: FakeClock) -> None:
    """consumer/C:B1, consumer/C:N10."""
    log = MemoryLog(records("abcdef"))
    sizes = {0: 40, 1: 40, 2: 40, 3: 500, 4: 40, 5: 40}
    inside = 0
    seen: list[int] = []

    async def handle(message: Message) -> None:
        nonlocal inside
        inside += sizes[message.offset]
        seen.append(inside)
        await fake_clock.sleep(0.1)
        inside -= sizes[message.offset]

    consumer = finite(
        log, fake_clock, in_flight=InFlight(bytes=100, size_of=lambda record: sizes[record.offset])
    )
    report = await consumer.run(handle)
    assert report.counts.acked == 6
    assert max(seen) == 500
    assert sorted(set(seen))[-2] <= 100


async def test_settled_records_without_room_stall_nothing(fake_clock: FakeClock) -> None:
    """consumer/C:B1: a record that the map has settled takes no capacity and waits for none."""
    log = log_of("a", "b", "c")
    log.store({P0: Position(0, offset_map.encode(0, [(1, 2)]).text)})
    handler = Recorder()
    await finite(
        log, fake_clock, in_flight=InFlight(bytes=30, size_of=lambda record: 20 - record.offset)
    ).run(handler)
    assert handler.offsets == [0, 2]
    assert log.positions[P0] == Position(3)


async def test_a_revoke_lets_handlers_end_and_commits(fake_clock: FakeClock) -> None:
    """O-T7, G-T16: the partition's queue is dropped and its running handlers end; the other
    partition continues.
    """
    log = MemoryLog([*records("aab"), *records("xyz", 1)])
    source = MemorySource(log, clock=fake_clock)
    handled: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        await fake_clock.sleep(1.0)
        handled.append((message.partition, message.offset))

    consumer = Consumer(source, clock=fake_clock)
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await fake_clock.advance(0.5)
        await source.revoke([P0], 5.0)
        await fake_clock.advance(5.0)
        consumer.stop()
        await run
    assert sorted(handled) == [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert offset_map.decode(*log.positions[P0]) == [(2, 3)]
    assert log.positions[P0].offset == 1
    assert log.positions[P1] == Position(3)


async def test_a_lost_partition_commits_nothing_and_keeps_its_key_until_the_handler_ends(
    fake_clock: FakeClock,
) -> None:
    """O-T7, O-T8, consumer/C:O1, consumer/C:R2: the end of the old handler settles nothing."""
    log = log_of("a", "a")
    source = MemorySource(log, clock=fake_clock)
    running = most = 0
    handled: list[int] = []

    async def handle(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await fake_clock.sleep(1.0)
        running -= 1
        handled.append(message.offset)

    consumer = Consumer(source, clock=fake_clock)
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await fake_clock.advance(0.5)
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(10.0)
        consumer.stop()
        report = await run
    assert most == 1
    assert handled == [0, 0, 1]
    assert report.counts.stale == 1
    assert log.positions[P0] == Position(2)


async def test_a_cancelled_run_drains_and_commits(fake_clock: FakeClock) -> None:
    """consumer/O9, O-T9, consumer/C:B3: running handlers end and are committed; queued messages are
    left.
    """
    log = log_of("a", "a", "b")
    handled: list[int] = []

    async def handle(message: Message) -> None:
        await fake_clock.sleep(1.0)
        handled.append(message.offset)

    consumer = Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock)
    async with consumer:
        run = asyncio.create_task(consumer.run(handle))
        await fake_clock.advance(0.5)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert not consumer._open().schedule.active
    assert sorted(handled) == [0, 2]
    assert offset_map.decode(*log.positions[P0]) == [(2, 3)]


async def test_a_drain_cuts_at_its_deadline_and_tells_what_was_running(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:B3: the report names every message whose handler was cut."""

    async def handle(message: Message) -> None:
        await fake_clock.sleep(100.0 if message.offset == 1 else 0.1)

    log = log_of("a", "b", "c")
    consumer = Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock, drain=5.0)
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run(handle))
        await fake_clock.advance(1.0)
        consumer.stop()
        began = fake_clock.now()
        report = await run
        assert fake_clock.now() - began <= 5.0
    assert not report.complete
    (unfinished,) = report.unfinished
    assert str(unfinished) == "t/0@1 (key 'b', attempt 1)"
    assert unfinished.seconds == pytest.approx(5.0, abs=1.0)
    assert offset_map.decode(*log.positions[P0]) == [(2, 3)]


async def test_a_second_cancellation_ends_the_drain_at_once(fake_clock: FakeClock) -> None:
    """consumer/C:B3: the second cancellation means now."""

    async def handle(message: Message) -> None:
        await fake_clock.sleep(100.0)

    log = log_of("a")
    consumer = Consumer(MemorySource(log, clock=fake_clock), clock=fake_clock, drain=50.0)
    async with consumer:
        run = asyncio.create_task(consumer.run(handle))
        await fake_clock.advance(1.0)
        run.cancel()
        await fake_clock.advance(1.0)
        began = fake_clock.now()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert fake_clock.now() - began < 1.0


async def test_a_paused_partition_stays_paused_when_it_returns(fake_clock: FakeClock) -> None:
    """consumer/C:B2."""
    log = log_of("a", "b")
    source = MemorySource(log, clock=fake_clock)
    handler = Recorder()
    consumer = Consumer(source, clock=fake_clock)
    async with consumer, asyncio.TaskGroup() as tasks:
        consumer.pause(P0)
        run = tasks.create_task(consumer.run(handler))
        await fake_clock.advance(1.0)
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(1.0)
        assert handler.offsets == []
        consumer.resume(P0)
        await fake_clock.advance(1.0)
        assert handler.offsets == [0, 1]
        consumer.stop()
        await run


async def test_many_keys_leave_nothing_behind(fake_clock: FakeClock) -> None:
    """O-T21, consumer/C:O6: idle keys leave no lane and no task."""
    consumer = finite(log_of(*range(5000)), fake_clock)
    async with consumer:
        await consumer.run(Recorder())
        engine = consumer._open()
        assert engine.schedule.active == 0
        assert engine.schedule.window.messages == 0
        assert engine.schedule.window.bytes == 0


async def test_a_bad_key_is_poison_for_its_own_record(fake_clock: FakeClock) -> None:
    """consumer/C:O3: a list is no key; its neighbours are handled."""
    handler = Recorder()
    report = await finite(log_of("a", ["list"], "b"), fake_clock, poison="skip").run(handler)
    assert handler.offsets == [0, 2]
    assert report.counts.terminated == 1


async def test_a_terminated_message_is_poison(fake_clock: FakeClock) -> None:
    """The handler runs once, without further attempts."""
    tries: list[int] = []

    async def handle(message: Message) -> Terminate:
        tries.append(message.offset)
        return Terminate("no such customer")

    report = await finite(log_of("a"), fake_clock, poison="skip").run(handle)
    assert tries == [0]
    assert report.counts.terminated == 1


async def test_a_consumer_runs_once_and_only_while_it_is_open(fake_clock: FakeClock) -> None:
    """O-T22: a second run, and a use outside `async with`, are refused; closing is idempotent."""
    consumer = finite(log_of("a"), fake_clock)
    with pytest.raises(ClosedError, match="async with"):
        await consumer.commit()
    await consumer.run(Recorder())
    with pytest.raises(ConfigError, match="make a new consumer"):
        await consumer.run(Recorder())
    await consumer.__aexit__(None, None, None)


def policy(**settings: Any) -> RetryPolicy:
    """A policy with any settings: the consumer checks them."""
    return RetryPolicy(**settings)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"in_flight": -1}, "in_flight=-1"),
        ({"in_flight": "many"}, r"must be a number of messages, or InFlight"),
        ({"commits": 0.1}, r"commits=0.1: must be Commits"),
        ({"commits": Commits(bytes=5)}, "only flow.transaction limits the bytes"),
        ({"poison": "drop"}, "poison='drop': must be one of"),
        ({"key": 5}, r"key=5: must be a function of a record, or Keys"),
        ({"ordering": "keys"}, "ordering='keys'"),
        ({"ordering": "partition", "key": len}, "has no effect"),
        ({"poison": "park_key"}, r"needs Poison\(parked="),
        ({"poison": "block_and_dead_letter"}, r"needs Poison\(dead_letters="),
        ({"drain": -1}, "drain=-1"),
        ({"retry": 5}, "RetryPolicy"),
        ({"retry": policy(attempts=0)}, r"retry\.attempts=0"),
        ({"retry": policy(resend_unknown="no")}, r"retry\.resend_unknown='no': must be True"),
        ({"retry": policy(max_seconds=math.nan)}, r"retry\.max_seconds=nan"),
        ({"retry": policy(give_up_after=-1)}, r"retry\.give_up_after=-1"),
        ({"retry": policy(max_retry_after="5 s")}, r"retry\.max_retry_after='5 s'"),
        ({"retry": policy(backoff=5)}, r"retry\.backoff=5: must return the wait"),
        ({"retry": policy(final={"permanent"})}, r"retry\.final=.* set of ErrorClass"),
        ({"concurency": 5}, "concurrency"),
    ],
)
def test_a_bad_argument_is_refused(options: dict[str, object], text: str) -> None:
    """B-T30, batcher/B46, batcher/B47."""
    with pytest.raises(ConfigError, match=text):
        Consumer(MemorySource(MemoryLog()), **options)  # type: ignore[arg-type]


def test_the_bounds_have_finite_defaults() -> None:
    """O-T26, consumer/O4: 1,000 messages and 64 MiB."""
    settings = Consumer(MemorySource(MemoryLog()))._settings
    assert settings.in_flight.messages == 1000
    assert settings.in_flight.bytes == 64 << 20


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (InFlight, {"messages": 0}, "messages=0"),
        (InFlight, {"bytes": 0}, "bytes=0"),
        (InFlight, {"per_key": 0}, "per_key=0"),
        (InFlight, {"fetch_max": 0}, "fetch_max=0"),
        (InFlight, {"size_of": 5}, "size_of=5: must be a function of a record"),
        (InFlight, {"byte": 5}, "InFlight has no such argument"),
        (Commits, {"every": 0}, "every=0"),
        (Commits, {"after": 0}, "after=0"),
        (Commits, {"bytes": 0}, "bytes=0"),
        (Poison, {"strategy": "drop"}, "strategy='drop': must be one of"),
        (Poison, {"strategy": "park_key"}, r"needs Poison\(parked="),
        (Poison, {"strategy": "block_and_dead_letter"}, r"needs Poison\(dead_letters="),
        (Poison, {"dead_letters": "dead.jsonl"}, "must have `async def write"),
        (Poison, {"parked": 5}, "parked=5: must be a store of parked messages"),
        (Poison, {"max_dead_letter_ratio": 2}, "max_dead_letter_ratio=2"),
        (Poison, {"max_consecutive_dead_letters": 0}, "max_consecutive_dead_letters=0"),
        (Keys, {"by": 5}, "by=5: must be a function of a record"),
        (Keys, {"scope": "all"}, "scope='all': must be one of"),
        (Keys, {"keyless": "none"}, "keyless='none': must be one of"),
    ],
)
def test_a_bad_argument_of_a_value_is_refused(
    kind: Any, options: dict[str, object], text: str
) -> None:
    """B-T30: when the value is created, before there is a consumer."""
    with pytest.raises(ConfigError, match=text):
        kind(**options)


def test_the_strategy_follows_from_the_stores() -> None:
    """consumer/C:F2."""
    assert Poison().strategy == "block"
    assert Poison(dead_letters=MemorySink()).strategy == "block_and_dead_letter"
    assert Poison(parked=MemoryParkStore()).strategy == "park_key"
