"""Each reason for which a consumer may stall is produced, and `explain` names it.

White box: each reason and its remedy, as values.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from consumer_help import P0, P1, Recorder, log_of, records
from watch_help import Gate, causes_of, running

from sluicegate import Ack, Consumer, Nak, Terminate, ToDeadLetter, TransientError
from sluicegate.consumer import (
    Commits,
    Keys,
    Manual,
    MemoryLog,
    MemoryParkStore,
    MemorySource,
    Poison,
    Record,
    TopicPartition,
)
from sluicegate.consumer.operating.report import REMEDIES, WaitReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sluicegate import Batch, Message
    from sluicegate.consumer import ParkedRecord
    from sluicegate.consumer.operating.explain import Explanation
    from sluicegate.sinks import DeadLetterRecord
    from sluicegate.testing import FakeClock

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "troubleshooting.md"


RUNNING, READY = WaitReason.RUNNING, WaitReason.READY


def told(consumer: Consumer) -> list[str]:
    """The reasons for which the first partition waits, as text."""
    return [str(cause) for cause in causes_of(consumer)]


async def test_a_running_handler_is_named_with_its_time(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    async with running(fake_clock, log_of("a", "b"), Gate()) as consumer:
        consumer.explain()  # samples, as the sampler does once per second
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


async def test_the_oldest_record_is_the_oldest_since_the_position_has_moved(
    fake_clock: FakeClock,
) -> None:
    """consumer/C:N5: not since it began to run."""

    async def handle(message: Message) -> None:
        await fake_clock.sleep(10.0 if message.offset == 0 else 100.0)

    async with running(fake_clock, log_of("a", "b"), handle) as consumer:
        await fake_clock.advance(30.0)
        partition = consumer.explain().partitions[0]
        assert partition.oldest is not None
        assert partition.oldest.offset == 1
        assert partition.oldest.seconds == pytest.approx(20.0, abs=1.0)
        assert partition.causes[0].seconds == pytest.approx(30.0, abs=1.0)


async def test_a_backoff_is_named_with_its_end_and_its_error(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    gate = Gate(a=Nak(30.0, TransientError("busy")))
    async with running(fake_clock, log_of("a"), gate) as consumer:
        await fake_clock.advance(10.0)
        assert told(consumer) == [
            "backing off for 20.0 s after TransientError: busy, until the backoff ends"
        ]


async def test_a_message_without_a_free_worker_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5: the only worker is busy with the other partition."""
    log = MemoryLog([*records("a"), *records("b", 1)])
    async with running(fake_clock, log, Gate(), concurrency=1) as consumer:
        assert [causes_of(consumer, p)[0].reason for p in (P1, P0)] == [RUNNING, READY]


async def test_the_message_in_front_is_named_with_its_own_reason(fake_clock: FakeClock) -> None:
    """consumer/C:N5: a key of two partitions is held by a message of the other partition."""
    log = MemoryLog([*records("a"), *records("a", 1)])
    gate = Gate(a=Nak(30.0))
    async with running(fake_clock, log, gate, key=Keys(scope="topic")) as consumer:
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
    async with running(fake_clock, log_of(*"abcd"), Gate(), in_flight=3) as consumer:
        (cause,) = consumer.explain().causes
        assert cause.reason is WaitReason.WINDOW_FULL
        assert "3 of 3 messages, 3 of 67108864 bytes" in str(cause)


async def test_a_cut_map_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5: every second record is unfinished, and a map of that many does not fit."""
    log, coin = log_of(*range(30_000)), Random(1)

    async def handle(message: Message) -> Nak | None:
        return Nak(1e5) if coin.random() < 0.5 or message.offset == 0 else None

    async with running(fake_clock, log, handle, in_flight=40_000) as consumer:
        await consumer.commit()
        reasons = [cause.reason for cause in causes_of(consumer)]
        assert reasons == [WaitReason.BACKING_OFF, WaitReason.MAP_CUT]
        stats = consumer.stats().partitions[P0]
        assert stats.is_map_cut
        assert 1000 < stats.map_bytes <= 4096


async def test_a_deaf_handler_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5, consumer/C:F4: a handler that still runs 10 s after its timeout."""

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
    """consumer/C:N5: queued messages are redelivered to the next owner."""
    log = MemoryLog([*records("aa"), *records("b", 1)])
    source = MemorySource(log, clock=fake_clock, commit_seconds=1.0)
    gate = Gate()
    async with running(
        fake_clock, source, gate, drain=60.0, commits=Commits(every=100.0)
    ) as consumer:
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
    """consumer/C:N5: observed from the key function, which runs during the admission."""
    seen: list[Explanation] = []
    consumers: list[Consumer] = []

    def key(record: object) -> None:
        seen.append(consumers[0].explain())

    source = MemorySource(log_of("a", "b"), ends=True, chunk=1, clock=fake_clock)
    consumer = Consumer(source, clock=fake_clock, key=key)
    consumers.append(consumer)
    await consumer.run(Recorder())
    assert seen[-1].reasons == {WaitReason.ARRIVING}


class GatedSink:
    """Dead letters that are written while the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def write(self, batch: Batch[DeadLetterRecord[Message]]) -> None:
        await self.gate.wait()


async def test_a_dead_letter_on_its_way_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5."""
    sink, gate = GatedSink(), Gate(a=ToDeadLetter("old"))
    async with running(fake_clock, log_of("a"), gate, poison=Poison(dead_letters=sink)) as consumer:
        consumer.explain()
        await fake_clock.advance(2.0)
        (cause,) = causes_of(consumer)
        assert cause.reason is WaitReason.DEAD_LETTER
        assert cause.seconds == pytest.approx(2.0)
        sink.gate.set()
        await fake_clock.run_until_idle()
        assert causes_of(consumer)[0].reason is WaitReason.NOTHING_TO_DO


class GatedParkStore(MemoryParkStore):
    """A park store that answers while its gate is open."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def keys(self, group: str) -> frozenset[str]:
        await self.gate.wait()
        return await super().keys(group)

    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        await self.gate.wait()
        return await super().first(group, key, most)

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        await self.gate.wait()
        await super().park(group, key, records)


async def test_the_stages_of_parking_are_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5, consumer/C:N4: before the store is read, during the write, and parked."""
    store, gate = GatedParkStore(), Gate(a=Terminate("bad"), b=None)

    def seen() -> list[WaitReason]:
        return [cause.reason for cause in causes_of(consumer)]

    log = log_of("a", "a", "b")
    async with running(fake_clock, log, gate, name="x", poison=Poison(parked=store)) as consumer:
        assert seen() == [WaitReason.READING_PARKED]
        store.gate.set()
        await fake_clock.wait_for(lambda: consumer.stats().in_flight.messages)
        store.gate.clear()
        await fake_clock.run_until_idle()
        assert seen() == [WaitReason.PARKING, WaitReason.PARKED]
        assert consumer.explain().partitions[0].position == 0
        store.gate.set()
        await fake_clock.run_until_idle()
        assert seen() == [WaitReason.NOTHING_TO_DO, WaitReason.PARKED]
        assert "parked (1 keys: 'a'), until unpark()" in str(consumer.explain())
        assert consumer.explain().partitions[0].position == 3


async def test_a_record_behind_its_replayed_key_is_named(fake_clock: FakeClock) -> None:
    """consumer/C:N5, consumer/C:N4: while the store is read and while a record is handled."""
    store, gate, slow = GatedParkStore(), Gate(a=Terminate("bad")), Gate()
    store.gate.set()

    async def handle(message: Message) -> object:
        return await (slow if message.is_unparked else gate)(message)

    log = log_of("a")
    async with running(fake_clock, log, handle, name="x", poison=Poison(parked=store)) as consumer:
        store.gate.clear()
        replay = asyncio.create_task(consumer.unpark("a"))
        await fake_clock.run_until_idle()
        log.append(Record("t", 0, 1, "a"))
        await fake_clock.run_until_idle()
        assert told(consumer)[0].startswith("queued behind earlier records of its key")
        store.gate.set()
        await fake_clock.run_until_idle()
        behind, parked = causes_of(consumer)
        assert behind.reason is WaitReason.QUEUED_BEHIND
        assert "t/0@0 (running" in str(behind)
        assert parked.reason is WaitReason.PARKED
        gate.open()
        slow.open()
        assert (await replay).is_done
        await fake_clock.run_until_idle()
        assert [cause.reason for cause in causes_of(consumer)] == [WaitReason.NOTHING_TO_DO]


# -- the explanation as a whole --------------------------------------------------------------------


async def test_a_batch_that_is_being_formed_is_named_with_its_time(fake_clock: FakeClock) -> None:
    """consumer/C:N5: a full batch waits for a worker."""
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
    async with running(fake_clock, log, gate, name="billing", in_flight=2) as consumer:
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


def check_places(consumer: Consumer) -> None:
    """Check that each message inside is in one place, and that the statistics count all of them."""
    engine = consumer._open()
    places = [standing.message for standing in engine.places.standings()]
    assert len(set(places)) == len(places) == engine.schedule.window.messages
    inside = consumer.stats().in_flight
    assert inside.messages == len(places)
    busy = inside.running + inside.writing + inside.manual + inside.blocked
    queued = inside.ready + inside.batched + inside.waiting + inside.backing_off
    assert busy + queued == inside.messages


@pytest.mark.parametrize("poison", ["block", "park_key", "batches"])
async def test_every_message_inside_is_in_exactly_one_place(
    fake_clock: FakeClock, poison: str
) -> None:
    """The places add up to the window after every kind of turn."""
    results: dict[int, Callable[[], object]] = {
        0: Ack,
        1: lambda: Nak(0.3),
        2: lambda: Terminate("bad"),
        3: Manual,
    }

    def result_of(message: Message) -> object:
        return results[message.offset % 4]() if message.attempt == 1 else None

    async def handle(message: Message) -> object:
        check_places(consumer)
        await fake_clock.sleep(0.1)
        check_places(consumer)
        return result_of(message)

    async def handle_many(messages: list[Message]) -> list[object]:
        check_places(consumer)
        await fake_clock.sleep(0.1)
        check_places(consumer)
        return list(map(result_of, messages))

    store = GatedParkStore() if poison == "park_key" else None
    source = MemorySource(log_of(*[n * 7 % 30 for n in range(100)]), clock=fake_clock)
    consumer = Consumer(
        source, clock=fake_clock, name="x", poison=Poison(parked=store), concurrency=4, drain=1.0
    )
    async with consumer:
        run = asyncio.create_task(
            consumer.run_batch(handle_many, size=7) if poison == "batches" else consumer.run(handle)
        )
        for _ in range(100):
            if store is not None:
                store.gate.set() if fake_clock.now() % 1.0 < 0.5 else store.gate.clear()
            await fake_clock.advance(0.05)
            check_places(consumer)
        inside = consumer.stats().in_flight
        assert inside.manual > 1
        assert inside.waiting > 1
        assert (inside.blocked > 1) == (poison != "park_key")
        assert (consumer.stats().counts.parked > 1) == (poison == "park_key")
        consumer.stop()
        await run
        check_places(consumer)


# -- the page --------------------------------------------------------------------------------------


def test_the_page_explains_each_reason_with_its_remedy() -> None:
    """consumer/C:N5."""
    page = PAGE.read_text().partition("| reason |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert rows == [reason.value for reason in WaitReason]
    assert set(REMEDIES) == set(WaitReason)
