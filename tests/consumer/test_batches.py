"""Messages handled in batches, from the source to the positions."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from batch_help import Batches
from consumer_help import P0, P1, Recorder, finite, log_of, records

from sluicegate import ConfigError, Consumer, Nak
from sluicegate.consumer import (
    InFlight,
    MemoryLog,
    MemorySource,
    Position,
    Skip,
    decode,
    with_steps,
)

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import FakeClock


def endless(log: MemoryLog, clock: FakeClock, **options: Any) -> Consumer:
    """A consumer of a source that waits for more records."""
    return Consumer(MemorySource(log, clock=clock), clock=clock, **options)


async def test_all_messages_are_handled_in_batches(fake_clock: FakeClock) -> None:
    """consumer/O10, O-T25: `run_batch` opens, runs and closes a consumer that is not open."""
    log, handler = log_of(*"abcde"), Batches()
    report = await finite(log, fake_clock).run_batch(handler, size=2)
    assert handler.offsets == [[0, 1], [2, 3], [4]]
    assert (report.counts.acked, report.counts.batches) == (5, 3)
    assert log.positions[P0] == Position(5)


async def test_run_batch_leaves_the_source_open(fake_clock: FakeClock) -> None:
    """O-T25."""
    log, handler = log_of(*"abc"), Batches()
    async with finite(log, fake_clock) as consumer:
        await consumer.run_batch(handler)
        await consumer.commit()  # still open
    assert handler.offsets == [[0, 1, 2]]


async def test_a_batch_is_handled_when_its_first_message_is_max_wait_old(
    fake_clock: FakeClock,
) -> None:
    """O-T13, consumer/O15: not earlier."""
    handler = Batches()
    consumer = endless(log_of(*"ab"), fake_clock)
    running = asyncio.create_task(consumer.run_batch(handler, max_wait=timedelta(seconds=2)))
    await fake_clock.advance(1.999)
    assert handler.offsets == []
    await fake_clock.advance(0.001)
    assert handler.offsets == [[0, 1]]
    consumer.stop()
    await running


async def test_the_time_of_a_batch_counts_from_its_own_first_message(
    fake_clock: FakeClock,
) -> None:
    """O-T13: for messages that arrive while the consumer is idle, and after another batch."""
    log, handler = log_of("a"), Batches()
    consumer = endless(log, fake_clock)
    running = asyncio.create_task(consumer.run_batch(handler, max_wait=2.0))
    await fake_clock.advance(10.0)
    log.produce("t", b"")
    await fake_clock.advance(1.0)
    log.produce("t", b"")
    await fake_clock.advance(0.999)
    assert handler.offsets == [[0]]
    await fake_clock.advance(0.001)
    assert handler.offsets == [[0], [1, 2]]
    consumer.stop()
    await running


async def test_each_open_batch_has_its_own_time(fake_clock: FakeClock) -> None:
    """O-T13: a batch also becomes due after another was taken, without a new arrival."""
    log, handler = MemoryLog([*records("a"), *records("a", partition=1)]), Batches()
    consumer = endless(log, fake_clock, ordering="partition")
    running = asyncio.create_task(consumer.run_batch(handler, max_wait=2.0))
    await fake_clock.advance(2.0)
    handler.batches.clear()
    log.produce("t", b"")
    await fake_clock.advance(0.5)
    log.produce("t", b"", partition=1)
    await fake_clock.advance(1.5)
    assert [batch[0].partition for batch in handler.batches] == [0]
    await fake_clock.advance(0.5)
    assert [batch[0].partition for batch in handler.batches] == [0, 1]
    consumer.stop()
    await running


async def test_max_wait_zero_waits_for_nothing(fake_clock: FakeClock) -> None:
    """A free worker takes all ready messages as a batch."""
    handler = Batches()
    consumer = endless(log_of(*"ab"), fake_clock)
    running = asyncio.create_task(consumer.run_batch(handler, max_wait=0))
    await fake_clock.advance(0.0)
    assert handler.offsets == [[0, 1]]
    consumer.stop()
    await running


async def test_a_drain_handles_the_batch_that_is_being_formed(fake_clock: FakeClock) -> None:
    """O-T9, O-T13, consumer/O14: a batch of 1,000 without a timer; then the positions are
    committed.
    """
    log, handler = log_of(*"aab"), Batches()
    consumer = endless(log, fake_clock)
    running = asyncio.create_task(consumer.run_batch(handler, size=1000, max_wait=None))
    await fake_clock.advance(1000.0)
    assert handler.offsets == []
    consumer.stop()
    report = await running
    assert handler.offsets == [[0, 1, 2]]
    assert report.complete
    assert log.positions[P0] == Position(3)


async def test_a_drain_leaves_later_batches_to_the_next_claim(fake_clock: FakeClock) -> None:
    """consumer/O14: one more batch is handled after the running one; the rest is dropped."""
    log, handled = log_of(*range(10)), []

    async def handle(batch: list[Message]) -> None:
        await fake_clock.sleep(1.0)
        handled.append([message.offset for message in batch])

    consumer = endless(log, fake_clock, concurrency=1)
    running = asyncio.create_task(consumer.run_batch(handle, size=2))
    await fake_clock.advance(0.5)
    consumer.stop()
    report = await running
    assert handled == [[0, 1], [2, 3]]
    assert report.complete
    assert report.counts.dropped == 6
    assert log.positions[P0] == Position(4)


async def test_a_batch_that_is_not_begun_at_the_deadline_is_dropped(
    fake_clock: FakeClock,
) -> None:
    """The running batch is cut, and the next one does not begin."""
    begun = []

    async def handle(batch: list[Message]) -> None:
        begun.append([message.offset for message in batch])
        await fake_clock.sleep(100.0)

    log = log_of(*range(4))
    consumer = endless(log, fake_clock, concurrency=1, drain=5.0)
    running = asyncio.create_task(consumer.run_batch(handle, size=2))
    await fake_clock.advance(1.0)
    consumer.stop()
    report = await running
    assert begun == [[0, 1]]
    assert {message.offset for message in report.unfinished} == {0, 1}
    assert report.seconds <= 5.0
    assert report.counts.dropped == 4


async def test_a_revoke_drops_the_batch_that_is_being_formed(fake_clock: FakeClock) -> None:
    """O-T7: it keeps the messages of other partitions."""
    log = MemoryLog([*records("ab"), *records("ab", partition=1)])
    source, handler = MemorySource(log, clock=fake_clock), Batches()
    consumer = Consumer(source, clock=fake_clock)
    running = asyncio.create_task(consumer.run_batch(handler, max_wait=5.0))
    await fake_clock.advance(1.0)
    await source.revoke([P0], within=5.0)
    await fake_clock.advance(4.0)
    assert [[m.partition for m in batch] for batch in handler.batches] == [[1, 1]]
    consumer.stop()
    await running
    assert log.positions == {P0: Position(0), P1: Position(2)}


async def test_a_full_window_makes_a_batch_due(fake_clock: FakeClock) -> None:
    """O-T15: by bytes, which no argument check can exclude; nothing hangs without a timer."""
    handler = Batches()
    log = log_of(*range(20))  # one or two bytes each
    report = await finite(log, fake_clock, in_flight=InFlight(bytes=7)).run_batch(
        handler, size=100, max_wait=None
    )
    assert report.counts.acked == 20
    assert max(map(len, handler.batches)) <= 7


async def test_a_record_that_does_not_fit_into_the_window_makes_a_batch_due(
    fake_clock: FakeClock,
) -> None:
    """O-T15: the window is not full but cannot take the record."""
    handler = Batches()
    consumer = finite(
        log_of(*range(6)), fake_clock, in_flight=InFlight(bytes=10, size_of=lambda _: 6)
    )
    report = await consumer.run_batch(handler, size=100, max_wait=None)
    assert handler.offsets == [[0], [1], [2], [3], [4], [5]]
    assert report.counts.acked == 6


async def test_a_window_as_large_as_a_batch_gives_full_batches(fake_clock: FakeClock) -> None:
    """consumer/O17: later batches, too, when the window fills again."""
    handler = Batches()
    consumer = finite(log_of(*range(40)), fake_clock, in_flight=10)
    await consumer.run_batch(handler, size=10, max_wait=None)
    assert list(map(len, handler.batches)) == [10, 10, 10, 10]


async def test_messages_of_a_batch_stay_in_the_window(fake_clock: FakeClock) -> None:
    """O-T4: while the batch runs and while it is formed."""
    log = log_of(*range(100))
    most: list[int] = []

    async def handle(_batch: list[Message]) -> None:
        await fake_clock.sleep(1.0)
        window = consumer._open().schedule.window
        most.append(window.messages)

    consumer = finite(log, fake_clock, in_flight=10)
    report = await consumer.run_batch(handle, size=5)
    assert max(most) <= 10
    assert report.counts.acked == 100


async def test_concurrency_is_the_number_of_batches_that_run_at_once(
    fake_clock: FakeClock,
) -> None:
    """G-T9, consumer/C:Ba3: with 1, two batches never run concurrently."""
    running, most = 0, 0

    async def handle(_batch: list[Message]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await fake_clock.sleep(1.0)
        running -= 1

    await finite(log_of(*range(40)), fake_clock, concurrency=3).run_batch(handle, size=5)
    assert most == 3


async def test_a_batch_of_a_lane_waits_for_the_end_of_the_one_before(
    fake_clock: FakeClock,
) -> None:
    """O-T14, consumer/O16: with `ordering="partition"`, a batch holds one partition."""
    log = MemoryLog([*records(range(6)), *records(range(6), partition=1)])
    events: list[tuple[str, int, list[int]]] = []

    async def handle(batch: list[Message]) -> None:
        (partition,) = {message.partition for message in batch}
        offsets = [message.offset for message in batch]
        events.append(("begin", partition, offsets))
        await fake_clock.sleep(2.0 - partition)
        events.append(("end", partition, offsets))

    consumer = finite(log, fake_clock, ordering="partition")
    await consumer.run_batch(handle, size=3)
    for partition in (0, 1):
        of_lane = [(what, offsets) for what, at, offsets in events if at == partition]
        first, second = [0, 1, 2], [3, 4, 5]
        assert of_lane == [("begin", first), ("end", first), ("begin", second), ("end", second)]
    assert {at for _, at, _ in events[:2]} == {0, 1}


async def test_partitions_share_a_batch(fake_clock: FakeClock) -> None:
    """G-T8, consumer/C:Ba3."""
    log, handler = MemoryLog([*records("ab"), *records("ab", partition=1)]), Batches()
    await finite(log, fake_clock).run_batch(handler, max_wait=1.0)
    (batch,) = handler.batches
    places = sorted([(message.partition, message.offset) for message in batch])
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert log.positions == {P0: Position(2), P1: Position(2)}


async def test_a_plain_function_runs_in_a_thread(fake_clock: FakeClock) -> None:
    """O-T16: it may return results, like an async one."""
    threads = []

    def handle(batch: list[Message]) -> list[object]:
        threads.append(threading.current_thread())
        return [None] * len(batch)

    report = await finite(log_of(*"abc"), fake_clock).run_batch(handle)
    assert report.counts.acked == 3
    assert threads[0] is not threading.current_thread()


async def test_a_batch_that_is_due_waits_for_a_worker_at_rest(fake_clock: FakeClock) -> None:
    """Without polling: the clock would stop in an endless loop."""
    handled = []

    async def handle(batch: list[Message]) -> None:
        await fake_clock.sleep(1.0)
        handled.append(len(batch))

    log = log_of("a")
    consumer = endless(log, fake_clock, concurrency=1)
    running = asyncio.create_task(consumer.run_batch(handle, max_wait=0.1))
    await fake_clock.advance(0.5)
    log.produce("t", b"", key="b")
    await fake_clock.advance(0.3)
    log.produce("t", b"", key="c")
    await fake_clock.advance(5.0)
    assert handled == [1, 2]
    consumer.stop()
    await running


async def test_what_is_no_handler_is_refused_before_anything_starts(
    fake_clock: FakeClock,
) -> None:
    """A handler of single messages is refused, too."""
    consumer = finite(log_of("a"), fake_clock)
    for handler in (17, Batches, handle_nothing, with_steps(Recorder(), decode(int))):
        with pytest.raises(ConfigError, match="handler"):
            await consumer.run_batch(handler)  # type: ignore[arg-type]
    await consumer.run_batch(Batches())


def handle_nothing() -> None:
    """A handler without parameters."""


async def test_a_message_that_a_step_settles_is_not_shown_to_the_handler(
    fake_clock: FakeClock,
) -> None:
    """O-T18: an undecodable record is poison on its own, and the rest of its batch is handled."""
    log = MemoryLog()
    for value in (b"1", b"x", b"3", b"4"):
        log.produce("t", value, key=value)
    handler = Batches(lambda batch: [None] * len(batch))
    consumer = finite(log, fake_clock, steps=[decode(int), skip_three], poison="skip")
    report = await consumer.run_batch(handler)
    assert [[message.value for message in batch] for batch in handler.batches] == [[1, 4]]
    counts = report.counts
    assert (counts.acked, counts.skipped, counts.terminated) == (2, 1, 1)


def skip_three(message: Message) -> Skip | None:
    """A step that settles one known value."""
    return Skip() if message.value == 3 else None


async def test_the_results_of_steps_hold_when_the_handler_raises(fake_clock: FakeClock) -> None:
    """consumer/C:Ba2, consumer/C:Ba4: in key order."""
    log = MemoryLog()
    for value in (b"3", b"1", b"4", b"x"):
        log.produce("t", value, key="a")
    failures = [ValueError("once")]

    def answer(_batch: list[Message]) -> None:
        if failures:
            raise failures.pop()

    handler = Batches(answer)
    consumer = finite(log, fake_clock, steps=[decode(int), skip_three], poison="skip")
    report = await consumer.run_batch(handler)
    assert handler.offsets == [[1, 2], [1], [2]]
    counts = report.counts
    assert (counts.acked, counts.skipped, counts.terminated) == (2, 1, 1)


async def test_a_batch_that_steps_settle_is_not_handled(fake_clock: FakeClock) -> None:
    """Handlers receive no empty batches."""
    handler = Batches()
    consumer = finite(log_of(*"ab"), fake_clock, steps=[lambda _: Skip()])
    report = await consumer.run_batch(handler)
    assert handler.batches == []
    assert report.counts.skipped == 2


async def test_a_handler_may_change_the_list_that_it_is_given(fake_clock: FakeClock) -> None:
    """The handler owns the list."""
    log = log_of(*"abc")
    report = await finite(log, fake_clock).run_batch(Batches(lambda batch: batch.clear()))
    assert report.counts.acked == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "size=0"),
        ({"max_wait": -1}, "max_wait=-1"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"max_per_key": 0}, "max_per_key=0"),
        ({"on_mismatch": "ignore"}, "on_mismatch='ignore'"),
        ({"size": 2000, "max_wait": None}, "size=2000: must be at most in_flight=1000"),
        ({"sise": 1}, "sise"),
    ],
)
async def test_a_bad_argument_is_refused_before_anything_starts(
    options: dict[str, Any], words: str, fake_clock: FakeClock
) -> None:
    """O-T15, consumer/O17: for example a batch size that the window can never hold."""
    handler = Batches()
    consumer = finite(log_of("a"), fake_clock)
    with pytest.raises(ConfigError, match=words):
        await consumer.run_batch(handler, **options)
    await consumer.run_batch(handler)
    assert handler.offsets == [[0]]


async def test_a_bound_per_key_of_the_consumer_holds_no_batch_up(fake_clock: FakeClock) -> None:
    """O-T15: held-back records fill the window, and a full window makes the batch due."""
    log, handler = log_of(*("a" * 50)), Batches()
    consumer = finite(log, fake_clock, in_flight=InFlight(20, per_key=5))
    report = await consumer.run_batch(handler, size=20, max_wait=None, max_per_key=3)
    assert report.counts.acked == 50
    assert max(map(len, handler.batches)) == 3


async def test_a_batch_that_ends_after_its_partition_was_lost_counts_as_stale(
    fake_clock: FakeClock,
) -> None:
    """As a single message does; it is handled again, and the other partition's is acknowledged."""
    log = log_of("a", "b")
    log.produce("t", b"c", partition=P1.partition)
    source = MemorySource(log, clock=fake_clock)
    handled: list[list[int]] = []

    async def handle(batch: list[Message]) -> None:
        await fake_clock.sleep(1.0)
        handled.append(sorted(message.offset for message in batch))

    consumer = Consumer(source, clock=fake_clock)
    async with consumer, asyncio.TaskGroup() as tasks:
        run = tasks.create_task(consumer.run_batch(handle, size=3))
        await fake_clock.advance(0.5)
        source.lose([P0])
        source.assign([P0])
        await fake_clock.advance(10.0)
        consumer.stop()
        report = await run
    assert handled == [[0, 0, 1], [0, 1]]
    assert (report.counts.acked, report.counts.stale) == (3, 2)
    assert (log.positions[P0], log.positions[P1]) == (Position(2), Position(1))


async def test_the_failures_of_a_message_are_forgotten_with_its_success(
    fake_clock: FakeClock,
) -> None:
    def answer(batch: list[Message]) -> object:
        return [Nak(1.0) if handler.calls_with(0) == 1 else None for _ in batch]

    handler = Batches(answer)
    await finite(log_of(*"abc"), fake_clock).run_batch(handler)
    assert handler.attempts == [[1, 1, 1], [2, 2, 2]]
    assert [message.attempt for message in handler.batches[0]] == [1, 1, 1]


async def test_the_end_of_a_batch_frees_its_keys_in_their_own_partitions_alone(
    fake_clock: FakeClock,
) -> None:
    """consumer/O10: an equal key of another partition, in a batch that still runs, stays taken."""
    log = log_of("k", "a")
    log.add_partition(P1)
    began: list[tuple[float, list[int]]] = []

    async def handle(batch: list[Message]) -> None:
        began.append((fake_clock.now(), [message.offset for message in batch]))
        await fake_clock.sleep(3.0 if len(began) == 1 else 1.0)

    consumer = endless(log, fake_clock, concurrency=3)
    running = asyncio.create_task(consumer.run_batch(handle, size=2, max_wait=0.1))
    await fake_clock.advance(0.5)
    log.produce("t", b"", key="k", partition=P1.partition)
    log.produce("t", b"", key="b")
    await fake_clock.advance(1.5)
    log.produce("t", b"", key="k")
    await fake_clock.advance(5.0)
    consumer.stop()
    await running
    assert [(at, sorted(offsets)) for at, offsets in began] == [
        (0.0, [0, 1]),
        (0.5, [0, 2]),
        (pytest.approx(3.1), [3]),
    ]
