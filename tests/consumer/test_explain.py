"""Each reason for which a consumer may stand still is produced, and `explain` names it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, P1, Recorder, log_of, records
from watch_help import Gate, causes_of, running

from penstock import TransientError
from penstock._core.source import Record, TopicPartition
from penstock.consumer.consumer import Consumer
from penstock.consumer.engine import Engine
from penstock.consumer.results import Ack, Manual, Nak, Terminate, ToDeadLetter
from penstock.consumer.settings import checked_settings
from penstock.consumer.single_messages import SingleMessages
from penstock.consumer.standing import standings
from penstock.consumer.wait_reason import REMEDIES, WaitReason
from penstock.letters.parked import MemoryParkStore
from penstock.sources.memory import MemoryLog, MemorySource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock._core.park_store import ParkedRecord
    from penstock.consumer.explain import Explanation
    from penstock.consumer.message import Message
    from penstock.testing import FakeClock

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "why-is-it-stuck.md"


RUNNING, READY = WaitReason.RUNNING, WaitReason.READY


def told(consumer: Consumer) -> list[str]:
    """Why the first partition waits, in words."""
    return [str(cause) for cause in causes_of(consumer)]


async def test_a_running_handler_is_named_with_its_time(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    async with running(fake_clock, log_of("a", "b"), Gate()) as consumer:
        consumer.explain()  # looks, as the sampler does once per second
        await fake_clock.advance(12.3)
        explanation = consumer.explain()
        partition = explanation.partitions[0]
        assert partition.position == 0
        assert partition.unfinished == 2
        assert partition.oldest is not None
        assert (partition.oldest.offset, partition.oldest.key) == (0, "a")
        assert partition.oldest.seconds == pytest.approx(12.3)
        assert told(consumer) == [
            "running for at least 12.3 s, until the handler returns, or is cancelled by its timeout"
        ]


async def test_the_time_begins_again_with_each_try(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""

    async def handle(message: Message) -> Nak:
        await fake_clock.sleep(10.0)
        return Nak(0.0)

    async with running(fake_clock, log_of("a"), handle) as consumer:
        await fake_clock.advance(15.0)
        (cause,) = causes_of(consumer)
        assert cause.reason is WaitReason.RUNNING
        assert cause.seconds == pytest.approx(5.0, abs=1.0)
        oldest = consumer.explain().partitions[0].oldest
        assert oldest is not None
        assert oldest.attempt == 2
        assert oldest.seconds == pytest.approx(15.0)


async def test_a_backoff_is_named_with_its_end_and_its_error(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    gate = Gate(a=Nak(30.0, TransientError("busy")))
    async with running(fake_clock, log_of("a"), gate) as consumer:
        await fake_clock.advance(10.0)
        assert told(consumer) == [
            "backing off for 20.0 s after TransientError: busy, until the backoff ends"
        ]


async def test_a_message_without_a_free_worker_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5: one worker, and the other partition has it."""
    log = MemoryLog([*records("a"), *records("b", 1)])
    async with running(fake_clock, log, Gate(), concurrency=1) as consumer:
        assert [causes_of(consumer, p)[0].reason for p in (P1, P0)] == [RUNNING, READY]


async def test_the_message_in_front_is_named_with_its_own_reason(fake_clock: FakeClock) -> None:
    """consumer/C:N5: a key of two partitions is held by a message of the other one."""
    log = MemoryLog([*records("a"), *records("a", 1)])
    gate = Gate(a=Nak(30.0))
    async with running(fake_clock, log, gate, key_scope="topic") as consumer:
        (cause,) = causes_of(consumer, P0)
        assert cause.reason is WaitReason.QUEUED_BEHIND
        assert "t/1@0 (backing off for 30.0 s" in str(cause)


async def test_a_handler_of_an_earlier_claim_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5, consumer/C:O1."""
    source = MemorySource(log_of("a"), clock=fake_clock)
    gate = Gate()
    async with running(fake_clock, source, gate) as consumer:
        source.lose([P0])
        assert consumer.explain().reasons == {WaitReason.NOT_ASSIGNED}
        source.assign([P0])
        await fake_clock.run_until_idle()
        (cause,) = causes_of(consumer)
        assert cause.reason is WaitReason.QUEUED_BEHIND
        assert "t/0@0 of an earlier claim (running" in str(cause)
        gate.open()
        await fake_clock.run_until_idle()
        assert causes_of(consumer)[0].reason is WaitReason.NOTHING_TO_DO


async def test_a_blocked_message_is_named_with_its_error(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    gate = Gate(a=Terminate("no such account"))
    async with running(fake_clock, log_of("a", "a"), gate, poison="block") as consumer:
        consumer.explain()
        await fake_clock.advance(3.0)
        (cause,) = causes_of(consumer)
        assert cause.reason is WaitReason.BLOCKED
        assert str(cause) == (
            "blocked for at least 3.0 s (PoisonError: no such account), until unblock()"
        )


async def test_a_message_that_waits_for_its_settlement_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    waiting: list[Message] = []

    async def handle(message: Message) -> Manual:
        waiting.append(message)
        return Manual()

    async with running(fake_clock, log_of("a"), handle) as consumer:
        assert causes_of(consumer)[0].reason is WaitReason.MANUAL
        waiting[0].settle(Ack())
        assert causes_of(consumer)[0].reason is WaitReason.NOTHING_TO_DO


async def test_paused_partitions_are_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5, consumer/C:B2."""
    async with running(fake_clock, log_of("a"), Recorder()) as consumer:
        consumer.pause(P0)
        assert [cause.reason for cause in causes_of(consumer)] == [WaitReason.PAUSED]
        consumer.resume(P0)
        assert [cause.reason for cause in causes_of(consumer)] == [WaitReason.NOTHING_TO_DO]
        consumer.pause()
        assert [cause.reason for cause in causes_of(consumer)] == [WaitReason.PAUSED]


async def test_a_full_window_is_named_with_its_bounds(fake_clock: FakeClock) -> None:
    """consumer/C:N5, consumer/C:B1."""
    async with running(fake_clock, log_of(*"abcd"), Gate(), max_in_flight=3) as consumer:
        (cause,) = consumer.explain().causes
        assert cause.reason is WaitReason.WINDOW_FULL
        assert "3 of 3 messages, 3 of 67108864 bytes" in str(cause)


async def test_a_cut_map_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5: every second record is unfinished, and a map of so many does not fit."""
    log, coin = log_of(*range(30_000)), Random(1)

    async def handle(message: Message) -> Nak | None:
        return Nak(1e5) if coin.random() < 0.5 or message.offset == 0 else None

    async with running(fake_clock, log, handle, max_in_flight=40_000) as consumer:
        await consumer.commit()
        reasons = [cause.reason for cause in causes_of(consumer)]
        assert reasons == [WaitReason.BACKING_OFF, WaitReason.MAP_CUT]
        stats = consumer.stats().partitions[P0]
        assert stats.is_map_cut
        assert 1000 < stats.map_bytes <= 4096


async def test_a_deaf_handler_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5, consumer/C:F4: one that goes on 10 s after its timeout."""

    async def handle(message: Message) -> None:
        if message.attempt > 1:
            return
        try:
            await fake_clock.sleep(100.0)
        except asyncio.CancelledError:
            await fake_clock.sleep(10.0)

    async with running(fake_clock, log_of("a"), handle, timeout=5.0) as consumer:
        await fake_clock.advance(12.0)
        (cause,) = causes_of(consumer)
        assert cause.reason is WaitReason.DEAF
        assert cause.seconds is not None
        assert 5.0 < cause.seconds <= 7.0
        await fake_clock.advance(10.0)
        assert causes_of(consumer)[0].reason is WaitReason.NOTHING_TO_DO


async def test_a_drain_and_a_revoke_are_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5: what was queued is delivered again to the next owner."""
    log = MemoryLog([*records("aa"), *records("b", 1)])
    source = MemorySource(log, clock=fake_clock, commit_seconds=1.0)
    gate = Gate()
    async with running(fake_clock, source, gate, drain=60.0, commit_every=100.0) as consumer:
        revoke = asyncio.create_task(source.revoke([P0]))
        await fake_clock.run_until_idle()
        reasons = [cause.reason for cause in causes_of(consumer)]
        assert reasons == [WaitReason.RUNNING, WaitReason.DRAINING]
        gate.open()
        await fake_clock.run_until_idle()
        assert [cause.reason for cause in causes_of(consumer)] == [WaitReason.DRAINING] * 2
        await revoke
        consumer.stop()
        await fake_clock.run_until_idle()
        assert consumer.explain().causes[0].reason is WaitReason.DRAINING


async def test_a_trouble_of_the_source_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    source = MemorySource(log_of(), clock=fake_clock)
    async with running(fake_clock, source, Recorder()) as consumer:
        source.report("no coordinator since 12:00")
        (cause,) = [c for c in consumer.explain().causes if c.reason is WaitReason.SOURCE_TROUBLE]
        assert "no coordinator since 12:00" in str(cause)
        source.report(None)
        assert WaitReason.SOURCE_TROUBLE not in consumer.explain().reasons


async def test_a_consumer_without_partitions_and_one_that_does_not_run_are_named(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:N5."""
    consumer = Consumer(MemorySource(MemoryLog(), clock=fake_clock), clock=fake_clock)
    async with consumer:
        assert consumer.explain().reasons == {WaitReason.NOT_RUNNING, WaitReason.NOT_ASSIGNED}


async def test_a_record_on_its_way_in_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5: seen from the key function, which is called on the way."""
    seen: list[Explanation] = []
    consumers: list[Consumer] = []

    def key(record: object) -> None:
        seen.append(consumers[0].explain())

    source = MemorySource(log_of("a", "b"), ends=True, chunk=1, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, key=key)
    consumers.append(consumer)
    await consumer.receive(Recorder())
    assert seen[-1].reasons == {WaitReason.ARRIVING}


class Stuck(MemoryParkStore):
    """Dead letters and a park store that answer when they are released."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def bury(self, message: Message, error: BaseException) -> None:
        await self.gate.wait()

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await self.gate.wait()
        await super().park(group, key, records)


@pytest.mark.parametrize(
    ("result", "reason"),
    [(ToDeadLetter("old"), WaitReason.DEAD_LETTER), (Terminate("bad"), WaitReason.PARKED)],
)
async def test_a_dead_letter_and_a_parked_record_on_their_way_are_named(
    fake_clock: FakeClock, result: object, reason: WaitReason
) -> None:
    """consumer/C:N5."""
    source, stuck = MemorySource(log_of("a"), ends=True, clock=fake_clock), Stuck()
    settings = checked_settings(source, clock=fake_clock, name="x", parked=stuck)
    engine = Engine(source, settings, stuck)
    work = SingleMessages(
        engine.schedule, engine.settler, engine.workers, engine.commons, Gate(a=result)
    )
    async with source.open(engine.claims):
        run = asyncio.create_task(engine.run(work))
        await fake_clock.run_until_idle()
        engine.views.explain()
        await fake_clock.advance(2.0)
        (cause,) = engine.views.explain().partitions[0].causes
        assert cause.reason is reason
        assert cause.seconds == pytest.approx(2.0)
        stuck.gate.set()
        assert (await run).complete


# -- the explanation as a whole --------------------------------------------------------------------


async def test_a_batch_that_is_being_formed_is_named_with_its_time(fake_clock: FakeClock) -> None:
    """consumer/C:N5: and one that is full waits for a worker."""
    gate = asyncio.Event()

    async def handle(messages: list[Message]) -> None:
        await gate.wait()

    log = MemoryLog([*records("abc"), *records("xyz", 1), *records("uvw", 2)])
    source = MemorySource(log, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, concurrency=1, ordering="partition", drain=0.1)
    async with consumer:
        run = asyncio.create_task(consumer.run_batch(handle, size=3, max_wait=20.0))
        await fake_clock.run_until_idle()
        source.log.append(Record("t", 3, 0))
        await fake_clock.advance(5.0)
        explanation = consumer.explain()
        reasons = sorted(cause.reason for each in explanation.partitions for cause in each.causes)
        assert reasons == [WaitReason.FORMING, WaitReason.RUNNING, READY, READY]
        (forming,) = causes_of(consumer, TopicPartition("t", 3))
        assert forming.seconds == pytest.approx(15.0)
        assert "(for 15.0 s at most), until the batch is full" in str(forming)
        inside = consumer.stats().in_flight
        assert (inside.running, inside.batched, inside.messages) == (3, 7, 10)
        gate.set()
        consumer.stop()
        await run


async def test_a_batch_without_a_timer_says_so(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""

    async def handle(messages: list[Message]) -> None: ...

    consumer = Consumer(MemorySource(log_of("a"), clock=fake_clock), clock=fake_clock)
    async with consumer:
        run = asyncio.create_task(consumer.run_batch(handle, size=3, max_wait=None))
        await fake_clock.run_until_idle()
        assert "batch being formed (without max_wait)" in told(consumer)[0]
        consumer.stop()
        assert (await run).counts.acked == 1


async def test_operators_read_it_as_text(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    log = MemoryLog([*records("aab"), *records("", 1)])
    log.add_partition(P1)
    gate = Gate(b=None)
    async with running(fake_clock, log, gate, name="billing", max_in_flight=2) as consumer:
        consumer.explain()
        await fake_clock.advance(5.0)
        assert str(consumer.explain()).splitlines() == [
            "billing: 2 messages inside",
            "  window full (2 of 2 messages, 2 of 67108864 bytes), until messages are settled",
            "  t/0: position 0, 2 unfinished",
            "    oldest: offset 0, key 'a', attempt 1, the oldest for at least 5.0 s",
            "    running for at least 5.0 s, until the handler returns, or is cancelled by its "
            "timeout",
            "  t/1: position 0, 0 unfinished",
        ]


async def test_every_message_inside_is_in_exactly_one_place(fake_clock: FakeClock) -> None:
    """The places add up to the window, at every end of a turn of whatever kind."""
    results: dict[int, Callable[[], object]] = {
        0: Ack,
        1: lambda: Nak(0.3),
        2: lambda: Terminate("bad"),
        3: Manual,
    }

    def check(consumer: Consumer) -> None:
        engine = consumer._open()
        places = [standing.message for standing in standings(engine.views._parts)]
        assert len(set(places)) == len(places) == engine.schedule.window.messages
        inside = consumer.stats().in_flight
        assert inside.messages == len(places)
        busy = inside.running + inside.errands + inside.manual + inside.blocked
        queued = inside.ready + inside.batched + inside.waiting + inside.backing_off
        assert busy + queued == inside.messages

    async def handle(message: Message) -> object:
        check(consumers[0])
        await fake_clock.sleep(0.1)
        check(consumers[0])
        return results[message.offset % 4]() if message.attempt == 1 else None

    consumers: list[Consumer] = []
    source = MemorySource(log_of(*[n * 7 % 30 for n in range(100)]), clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, poison="block", concurrency=8, drain=1.0)
    consumers.append(consumer)
    async with consumer:
        run = asyncio.create_task(consumer.run(handle))
        await fake_clock.advance(10.0)
        assert consumer.stats().in_flight.blocked > 1
        assert consumer.stats().in_flight.manual > 1
        check(consumer)
        consumer.stop()
        await run
        check(consumer)


# -- the page --------------------------------------------------------------------------------------


def test_the_page_explains_each_reason_with_its_remedy() -> None:
    """consumer/C:N5."""
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [reason.value for reason in WaitReason]
    assert set(REMEDIES) == set(WaitReason)
