"""`RateLimit`: the order of writes, and the waits."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import tenacity

from sluicegate import (
    AddTimeout,
    Batch,
    Batcher,
    ConfigError,
    ErrorClass,
    FanOut,
    Limits,
    Outcome,
    Retry,
    RowBatch,
    ThrottledError,
    Timeout,
    gather,
    send,
    stack,
)
from sluicegate.errors import StoppedError
from sluicegate.sinks import RateLimit
from sluicegate.testing import FakeSink, ScriptedSink, fail, hang, ok, partial

if TYPE_CHECKING:
    from sluicegate import Sink
    from sluicegate.testing import FakeClock


async def write(sink: Sink[Any], count: int) -> dict[int, BaseException]:
    return await send(sink, RowBatch(range(count)))


def started(sink: ScriptedSink[Any]) -> list[float]:
    return [round(call.started, 9) for call in sink.calls]


async def test_writes_keep_to_the_rate(fake_clock: FakeClock) -> None:
    """batcher/B30."""
    sink = FakeSink[int]()
    limited = stack(sink, RateLimit(1_000, burst=100))
    await asyncio.gather(*(write(limited, 100) for _ in range(5)))
    assert started(sink) == [0.0, 0.1, 0.2, 0.3, 0.4]
    await asyncio.sleep(60.0)
    await asyncio.gather(*(write(limited, 50) for _ in range(4)))
    assert started(sink)[5:] == [60.4, 60.4, 60.45, 60.5]


async def test_a_batch_larger_than_the_burst_goes_into_debt(fake_clock: FakeClock) -> None:
    sink = FakeSink[int]()
    limited = stack(sink, RateLimit(100))
    for _ in range(3):
        await write(limited, 500)
    assert started(sink) == [0.0, 5.0, 10.0]


async def test_a_large_write_is_not_starved_by_small_ones(fake_clock: FakeClock) -> None:
    """A continuous stream of small writes cannot delay a large one."""
    sink = FakeSink[int]()
    limited = stack(sink, RateLimit(10, burst=10))
    await write(limited, 10)

    async def small() -> None:
        while True:
            await write(limited, 1)

    tasks = [asyncio.create_task(small()) for _ in range(3)]
    await asyncio.sleep(1.0)
    await write(limited, 8)
    assert fake_clock.now() <= 2.2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_throttling_pauses_the_limit_and_slows_it_down(fake_clock: FakeClock) -> None:
    """batcher/B24, design 3.3: feedback to the rate limit; first the pause, then half the rate,
    then a stepwise recovery.
    """
    sink = ScriptedSink[int]([fail(ThrottledError("slow down", retry_after=3.0))])
    limited = stack(sink, RateLimit(10, burst=10))
    assert isinstance((await write(limited, 10))[0], ThrottledError)
    for _ in range(3):
        await write(limited, 5)
    assert started(sink) == [
        0.0,
        4.0,
        round(4.0 + 5 / 6, 9),
        round(5.0 + 1 / 7 * (5 - 1 / 6 * 6), 9),
    ]
    await asyncio.sleep(30.0)
    before = fake_clock.now()
    for _ in range(2):
        await write(limited, 10)
    assert fake_clock.now() == pytest.approx(before + 1.0)


async def test_a_throttle_that_does_not_say_how_long_is_five_seconds(fake_clock: FakeClock) -> None:
    sink = ScriptedSink[int]([partial({1: ThrottledError("slow down")})])
    limited = stack(sink, RateLimit(1_000_000))
    assert sorted(await write(limited, 3)) == [1]
    await write(limited, 3)
    assert 5.0 <= fake_clock.now() < 5.1


async def test_the_sinks_own_classification_of_throttling_counts(fake_clock: FakeClock) -> None:
    class Busy(ScriptedSink[int]):
        def classify(self, error: BaseException) -> ErrorClass | None:
            return ErrorClass.THROTTLE if isinstance(error, OSError) else None

    limited = stack(Busy([fail(OSError("too many connections"))]), RateLimit(1_000_000))
    await write(limited, 1)
    await write(limited, 1)
    assert 5.0 <= fake_clock.now() < 5.1


async def test_a_pause_that_a_retry_inside_hears_of_reaches_the_limit_outside(
    fake_clock: FakeClock,
) -> None:
    """batcher/4a.6: the pause applies to the whole sink, whatever the order of decorators."""
    sink = ScriptedSink[int]([fail(ThrottledError("slow down", retry_after=4.0))])
    limited = stack(sink, Retry(), RateLimit(1_000, burst=1))
    first = asyncio.create_task(write(limited, 1))
    await asyncio.sleep(1.0)
    await write(limited, 1)
    await first
    assert sink.calls[1].started == 4.0
    assert sink.calls[2].started > 4.0


async def test_a_pause_reaches_producers(fake_clock: FakeClock) -> None:
    """batcher/4a.6: a producer at a full ledger gets its duration."""
    sink = ScriptedSink[int]([fail(ThrottledError("slow down", retry_after=60.0))])
    limits = Limits(max_items=1, max_pending_items=2)
    async with Batcher(stack(sink, RateLimit(100), Retry()), limits=limits) as batcher:
        await batcher.add(1)
        await fake_clock.advance(1.0)
        await batcher.add(2)
        with pytest.raises(AddTimeout) as caught:
            await batcher.add(3, timeout=2.0)
        assert caught.value.retry_after == pytest.approx(57.0)
        assert (await batcher.shutdown(deadline=100.0)).complete


async def test_while_it_waits_a_batch_holds_no_slot(fake_clock: FakeClock) -> None:
    """B-T38, design 3.3: more batches wait for the limit than there are slots."""
    sink = FakeSink[str]()
    limited = stack(sink, RateLimit(1, burst=1))
    async with Batcher(
        limited, limits=Limits(max_items=1, workers=2), shutdown_deadline=100.0
    ) as batcher:
        receipts = [await batcher.submit(item) for item in ("a1", "a2", "a3", "a4")]
        assert await receipts[0] is Outcome.DELIVERED
        assert fake_clock.now() < 1.0
        await fake_clock.advance(0.5)
        assert (batcher.stats().backing_off_batches, batcher.tally().backing_off) == (3, 3)
        assert set(await gather(receipts)) == {Outcome.DELIVERED}
        assert fake_clock.now() == pytest.approx(3.0)


async def test_a_shutdown_does_not_lift_the_limit(fake_clock: FakeClock) -> None:
    sink = FakeSink[int]()
    async with Batcher(
        stack(sink, RateLimit(10, burst=10), Retry()), limits=Limits(max_items=10, workers=3)
    ) as batcher:
        await batcher.add_many(range(50))
        report = await batcher.shutdown(deadline=25.0)
    assert started(sink) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert (report.complete, report.tally.delivered) == (True, 50)


@pytest.mark.parametrize("workers", [1, 3])
async def test_what_does_not_get_its_turn_by_the_deadline_is_unsent(
    fake_clock: FakeClock, workers: int
) -> None:
    """B-T57: it did not reach the destination."""
    sink = FakeSink[int]()
    async with Batcher(
        stack(sink, RateLimit(10, burst=10), Retry()), limits=Limits(max_items=10, workers=workers)
    ) as batcher:
        await batcher.add_many(range(50))
        report = await batcher.shutdown(deadline=2.4)
    assert started(sink) == [0.0, 1.0]
    assert (report.tally.delivered, report.tally.unsent, report.tally.unknown) == (20, 30, 0)
    assert sorted(report.unsent) == list(range(20, 50))


async def test_a_wait_that_is_cut_off_hands_its_turn_on(fake_clock: FakeClock) -> None:
    """It is ended by an outer timeout: the items were not sent, and the next write follows."""
    sink = FakeSink[int]()
    limited = stack(sink, RateLimit(10, burst=10))
    await write(limited, 10)
    first = asyncio.create_task(write(stack(limited, Timeout(0.5)), 10))
    await asyncio.sleep(0.1)
    second = asyncio.create_task(write(limited, 2))
    errors = await first
    assert all(isinstance(error, StoppedError) for error in errors.values())
    await second
    assert started(sink) == [0.0, 0.5]


async def test_a_best_effort_branch_does_not_hold_up_the_others(fake_clock: FakeClock) -> None:
    """B-T53, design 3.3: it has one last try when the required branches are done."""
    extra = FakeSink[int]()
    both = FanOut(FakeSink[int](), best_effort=[stack(extra, RateLimit(1, burst=1))])
    async with Batcher(both, limits=Limits(max_items=5)) as batcher:
        await batcher.add_many(range(15))
        assert await batcher.flush()
        assert fake_clock.now() < 1.0
    assert sorted(extra.applied) == list(range(15))


async def test_a_write_in_flight_that_is_cancelled_leaves_the_limit_as_it_is(
    fake_clock: FakeClock,
) -> None:
    sink = ScriptedSink[int]([hang()])
    limited = stack(sink, RateLimit(10, burst=10))
    task = asyncio.create_task(write(limited, 10))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await write(limited, 10)
    assert started(sink) == [0.0, 1.0]


async def test_only_what_failed_passes_the_limit_again(fake_clock: FakeClock) -> None:
    """B-T18: inside a retry every attempt counts, but only with the items that it sends."""
    sink = ScriptedSink[int]([partial(dict.fromkeys((1, 2), ConnectionResetError()))])
    limited = stack(sink, RateLimit(10, burst=10), Retry(backoff=tenacity.wait_fixed(0.0)))
    await write(limited, 10)
    assert started(sink) == [0.0, 0.2]
    assert sink.calls[1].items == (1, 2)


async def test_each_opening_begins_anew_and_nothing_of_it_travels(fake_clock: FakeClock) -> None:
    limit = RateLimit(10, burst=40)
    limited: Any = stack(FakeSink[int](), limit)
    async with limited:
        await write(limited, 40)
    assert fake_clock.now() == 0.0
    copy: Any = cloudpickle.loads(cloudpickle.dumps(limited))
    await write(copy, 2)
    assert fake_clock.now() == 0.0


async def test_a_batch_is_passed_on_as_it_is(fake_clock: FakeClock) -> None:
    seen: list[Batch[Any]] = []

    async def destination(batch: Batch[Any]) -> None:
        seen.append(batch)

    batch = RowBatch([1, 2])
    await send(stack(destination, RateLimit(10)), batch)
    assert seen[0] is batch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"items_per_second": 0}, "items_per_second=0"),
        ({"items_per_second": float("inf")}, "items_per_second=inf"),
        ({"items_per_second": 1, "burst": -1}, "burst=-1"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    """B-T30."""
    with pytest.raises(ConfigError, match=message):
        RateLimit(**arguments)


@pytest.mark.parametrize("asked", [1e308, math.inf, 10**400])
async def test_a_pause_without_end_ends_after_five_minutes(
    fake_clock: FakeClock, asked: float
) -> None:
    """A destination that returns a Unix time, or garbage, does not stop the sink permanently."""
    sink = ScriptedSink[int]([fail(ThrottledError("slow down", retry_after=asked)), ok()])
    limited = stack(sink, RateLimit(items_per_second=1000.0))
    assert await send(limited, RowBatch([1])) != {}
    assert await send(limited, RowBatch([1])) == {}
    assert fake_clock.now() <= 301.0
