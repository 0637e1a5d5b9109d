"""The limits that `sluicegate tune` computes from measured writes, and the measurement itself.

White box: the worksheet and the measurement, without a command.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples.example import DOCS, load

from sluicegate import Batch, Limits
from sluicegate.cli.tune.measure import Measurement, WriteFailed, item_bytes
from sluicegate.cli.tune.worksheet import (
    Measured,
    Needs,
    amount_of,
    as_code,
    fewest_workers,
    headline,
    memory,
    nearly_best,
    remarks,
    worksheet,
)

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock

# -- the arithmetic --------------------------------------------------------------------------------


def measured(**seconds: float) -> list[Measured]:
    return [Measured(int(size.removeprefix("of_")), (each,)) for size, each in seconds.items()]


def test_the_example_of_the_worksheet() -> None:
    """batcher/B51: a knee at 500, 1,000 items a second and 50 ms give size 400, the delay equal to
    the budget, and two seconds of peak load in the ledger.
    """
    needs = Needs(rate=1000, latency=0.05)
    limits = worksheet(Measured(500, (0.3,)), needs)
    assert limits == Limits(
        max_items=400, max_delay=0.05, workers=1, max_pending_items=2000 + 400 * 2
    )
    told = remarks(
        [Measured(100, (0.2,)), Measured(500, (0.3,)), Measured(1000, (0.6,))],
        Measured(500, (0.3,)),
        limits,
        needs,
        workers_known=False,
    )
    assert told == [
        "at 1,000 items a second a batch is full after 0.4 s, so most are sealed by time, "
        "with about 50 items",
        "a write of 100 items alone takes 0.2 s, longer than an item may wait before it",
    ]


def test_a_budget_longer_than_a_batch_takes_to_fill_is_the_delay_too() -> None:
    """decisions 0.3, sizing worksheet. A peak beyond one worker needs more workers."""
    needs = Needs(rate=4000, latency=1.0, absorb=1.0)
    limits = worksheet(Measured(500, (0.3,)), needs)
    assert limits == Limits(
        max_items=400, max_delay=1.0, workers=3, max_pending_items=4000 + 400 * 4
    )
    told = "\n".join(
        remarks(measured(of_500=0.3), Measured(500, (0.3,)), limits, needs, workers_known=False)
    )
    assert "sealed by size" in told
    assert "gives up order" in told
    assert "--workers 1,3" in told


def test_the_peak_counts_for_workers_and_ledger_and_the_rate_for_the_filling() -> None:
    limits = worksheet(Measured(500, (0.3,)), Needs(rate=100, peak=4000, latency=1.0))
    assert (limits.workers, limits.max_pending_items) == (3, 8000 + 400 * 4)


def test_without_rate_and_latency_the_defaults_stand() -> None:
    assert worksheet(Measured(10, (0.01,)), Needs()) == Limits(max_items=8)
    assert worksheet(Measured(1, (0.01,)), Needs()) == Limits(max_items=1)


def test_measured_workers_are_taken_as_they_are() -> None:
    limits = worksheet(Measured(500, (0.3,)), Needs(rate=4000), workers=5)
    assert limits.workers == 5


def test_the_knee_is_the_smallest_size_with_nine_tenths_of_the_best() -> None:
    """batcher/B51."""
    flat = measured(of_1=0.1, of_10=0.1, of_95=0.1, of_100=0.1, of_1000=1.01)
    assert nearly_best(flat).size == 95
    assert headline(flat, nearly_best(flat), None) == "the knee is at 95 items"
    assert headline(flat, nearly_best(flat), 10_000) == "the knee is at 95 items"


def test_a_curve_that_still_rises_has_no_knee() -> None:
    """Its course beyond was not measured and is not claimed."""
    rising = measured(of_1=0.1, of_10=0.1)
    best = nearly_best(rising)
    assert headline(rising, best, None) == (
        "no knee: still rising at 10 items: try larger sizes with --sizes 10,30,100"
    )
    assert headline(rising, best, 100) == (
        "no knee: 10 items are the largest size that was accepted"
    )
    told = remarks(rising, best, Limits(max_items=8), Needs(), workers_known=False)
    assert told == ["the limits are for 10 items, the largest size measured"]
    one = measured(of_50=0.1)
    assert headline(one, nearly_best(one), None) == (
        "no knee: only 50 items were measured: try more sizes with --sizes"
    )


def test_the_median_counts() -> None:
    assert Measured(100, (0.1, 0.1, 9.0)).write == 0.1
    assert Measured(100, (0.1, 0.1, 9.0), 4).per_second == pytest.approx(4000)


def test_enough_workers() -> None:
    some = [
        Measured(100, (seconds,), workers)
        for workers, seconds in ((1, 0.1), (2, 0.1), (4, 0.11), (8, 0.22))
    ]
    assert fewest_workers(some, 1500).workers == 2
    assert fewest_workers(some, None).workers == 4
    assert fewest_workers(some, 1e6).workers == 4


def test_the_memory_of_a_full_ledger() -> None:
    """batcher/B50: (queue depth + size x (1 + flush queue + flushers)) x item size; the document's
    three examples.
    """
    assert (
        amount_of(memory(Limits(max_items=100, max_pending_items=1024 + 100 * 3), 4096))
        == "5.2 MiB"
    )
    assert (
        amount_of(memory(Limits(max_items=100, max_pending_items=1024 + 100 * 3), 2**20))
        == "1.3 GiB"
    )
    assert amount_of(memory(Limits(max_items=50, max_pending_items=1024 + 100), 8)) == "8.8 KiB"


def test_the_code_is_the_limits() -> None:
    limits = Limits(max_items=4000, max_delay=0.05, workers=2, max_pending_items=20_000)
    found: dict[str, Any] = {}
    exec(as_code(limits), {"Limits": Limits}, found)  # the printed command is meant to be run
    assert found["limits"] == limits


# -- the presets -----------------------------------------------------------------------------------


TEN = {
    "AUDIT_LOG": (500, 1.0, 2048),
    "AUDIT_LOG_BY_COPY": (5000, 1.0, 8192),
    "METRICS_BY_UDP": (50, 0.1, 256),
    "CLICKSTREAM": (10_000, 0.005, 32_768),
    "WEBHOOKS": (100, 0.2, 1024),
    "PUSH_NOTIFICATIONS": (100, 1.0, 1024),
    "SEARCH_INDEX": (1000, 5.0, 4096),
    "TRACE_SPANS": (512, 5.0, 2048),
    "EMAIL_DIGEST": (1000, 3600.0, 65_536),
    "DATABASE_CHANGES": (5000, 0.1, 16_384),
}


def test_the_ten_presets() -> None:
    """batcher/B51, B50: size, delay and queue depth of ten kinds of work; the depth is translated
    to the ledger.
    """
    program = load("presets")
    presets = {name: value for name, value in vars(program).items() if isinstance(value, Limits)}
    assert presets == {
        name: Limits(max_items=size, max_delay=delay, max_pending_items=depth + size * (1 + 1))
        for name, (size, delay, depth) in TEN.items()
    }
    assert (
        "<!-- program: examples/presets.py -->"
        in (DOCS / "how-to" / "size-a-batcher.md").read_text()
    )


# -- the measurement -------------------------------------------------------------------------------


class Fixed:
    """A write takes 0.1 s plus 1 ms per item; at most two run concurrently."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self.lanes = asyncio.Semaphore(2)

    async def write(self, batch: Batch[Any]) -> None:
        async with self.lanes:
            await asyncio.sleep(0.1 + 0.001 * len(batch))
            self.items += batch


async def test_the_first_write_does_not_count_and_no_item_comes_twice(
    fake_clock: FakeClock,
) -> None:
    sink = Fixed()
    told: list[tuple[int, int, int]] = []
    measuring = Measurement(
        sink, lambda number: number, repeats=3, tell=lambda *one: told.append(one)
    )
    one = await measuring.size(100)
    assert one.seconds == pytest.approx((0.2, 0.2, 0.2))
    assert sink.items == list(range(400))
    assert told == [(100, done, 4) for done in (0, 1, 2, 3, 4)]
    assert (await measuring.workers(100, 2)).per_second == pytest.approx(1000)
    assert (await measuring.workers(100, 4)).per_second == pytest.approx(1000)
    assert len(set(sink.items)) == measuring.items == 400 * 7


async def test_a_write_that_fails_ends_the_measuring_and_leaves_no_task(
    fake_clock: FakeClock,
) -> None:
    async def refuse(batch: Batch[int]) -> None:
        if 0 in batch:
            raise ValueError("no")
        await asyncio.sleep(1000)

    class Sink:
        write = staticmethod(refuse)

    measuring = Measurement(Sink(), lambda number: number, repeats=3, tell=lambda *_: None)
    with pytest.raises(WriteFailed, match="a write of 1,000 items failed: ValueError: no"):
        await measuring.workers(1000, 2)
    assert fake_clock.now() == 0.0


def test_the_memory_of_an_item() -> None:
    small = item_bytes(lambda number: (number, "x"))
    assert 50 < small < 200
    assert item_bytes(lambda number: {"id": number, "body": "x" * 10_000}) > 10_000
