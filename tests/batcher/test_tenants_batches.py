"""Tenants in one batcher: no batch mixes them, each has its own time and order, and none is
starved.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyed_help import on_virtual_time
from tenant_help import Item, Watched, limits, some, tenant_of
from tests.properties import examples

from sluicegate import (
    Batcher,
    BlockingBatcher,
    ConfigError,
    Limits,
    Retry,
    ThrottledError,
    TransientError,
    WriteResult,
    stack,
)
from sluicegate.batcher import Tenants
from sluicegate.testing import BlockingSink, FakeClock, FakeSink

if TYPE_CHECKING:
    from sluicegate import Batch

# -- no mixing, and each tenant's own time ---------------------------------------------------------


async def test_no_batch_mixes_tenants_and_each_has_its_own_time(fake_clock: FakeClock) -> None:
    """B-T28, batcher/B43."""
    sink: FakeSink[Item] = FakeSink()
    async with Batcher(sink, tenant=tenant_of, limits=limits(), clock=fake_clock) as batcher:
        await batcher.add_many([("a", 0), ("b", 0), ("a", 1)])
        await fake_clock.advance(0.5)
        await batcher.add(("c", 0))
        await fake_clock.advance(0.5)
        assert [(call.reason, call.items) for call in sink.calls] == [
            ("time", (("a", 0), ("a", 1))),
            ("time", (("b", 0),)),
        ]
        await fake_clock.advance(0.5)
        assert sink.calls[-1].items == (("c", 0),)
        await batcher.add_many(some("d", 5))
        await fake_clock.run_until_idle()
        assert sink.calls[-1].reason == "size"
        await batcher.add(("e", 0))
    assert sink.calls[-1].reason == "shutdown"
    assert batcher.report is not None
    assert batcher.report.tally.delivered == 10


async def test_no_timer_is_left_after_a_shutdown(fake_clock: FakeClock) -> None:
    """B-T28, batcher/B43."""
    async with Batcher(
        FakeSink[Item](), tenant=tenant_of, limits=limits(), clock=fake_clock
    ) as batcher:
        await batcher.add_many([(f"t{n}", 0) for n in range(50)])
    assert len(fake_clock.leftovers()) == 1, "this test"


async def test_a_flush_covers_every_tenant_and_nothing_later(fake_clock: FakeClock) -> None:
    sink: BlockingSink[Item] = BlockingSink()
    async with Batcher(
        sink, tenant=tenant_of, limits=limits(workers=1), clock=fake_clock
    ) as batcher:
        await batcher.add_many([("a", 0), ("b", 0)])
        flushing = asyncio.ensure_future(batcher.flush())
        await fake_clock.run_until_idle()
        await batcher.add(("c", 0))
        sink.release()
        report = await flushing
        assert (report.remaining, sum(report.outcomes.values())) == (0, 2)
        assert batcher.tally().queued == 1


def test_threads_may_hand_in_for_tenants() -> None:
    sink: FakeSink[Item] = FakeSink()
    with BlockingBatcher(sink, tenant=tenant_of, limits=Limits(max_items=5)) as batcher:
        for number in range(10):
            batcher.add(("ab"[number % 2], number))
    assert Counter(call.items[0][0] for call in sink.calls) == {"a": 1, "b": 1}
    with pytest.raises(ConfigError, match="caps per tenant need a Batcher"):
        BlockingBatcher(sink, tenant=tenant_of, tenants=Tenants(max_pending_items=10))


@examples(15, long=200)
@given(st.integers(0, 2**32), st.sampled_from([1, 3]), st.booleans())
def test_order_holds_within_a_tenant_whatever_fails(seed: int, workers: int, keyed: bool) -> None:
    """B-T28, B-T14, I4: with one worker per tenant, or per key with keys; tenants are never mixed
    and nothing is lost.
    """
    dice = random.Random(seed)
    applied: dict[Any, list[int]] = defaultdict(list)

    class Shaky:
        async def write(self, batch: Batch[tuple[str, str, int]]) -> WriteResult | None:
            assert len({item[0] for item in batch}) == 1
            assert batch.tenant == batch[0][0]
            await clock_of[0].sleep(dice.choice([0.0, 0.01, 0.2]))
            if dice.random() < 0.2:
                raise TransientError("not now")
            for item in batch:
                applied[item[:2] if keyed else item[0]].append(item[2])
            return None

    clock_of: list[FakeClock] = []

    async def main(clock: FakeClock) -> None:
        clock_of.append(clock)
        sink = stack(Shaky(), Retry(attempts=100))
        options: dict[str, Any] = {"key": lambda item: item[1]} if keyed else {}
        batcher = Batcher(
            sink,
            tenant=lambda item: item[0],
            limits=limits(workers=workers),
            clock=clock,
            shutdown_deadline=10_000.0,
            **options,
        )
        async with batcher:
            for number in range(120):
                await batcher.add((dice.choice("abc"), dice.choice("xyz"), number))
                if dice.random() < 0.1:
                    await clock.advance(dice.random())
            await batcher.flush()
        assert batcher.tally().delivered == 120

    on_virtual_time(main)
    assert sum(map(len, applied.values())) == 120
    if keyed or workers == 1:
        assert all(numbers == sorted(numbers) for numbers in applied.values())


# -- fairness --------------------------------------------------------------------------------------


async def delays(clock: FakeClock, *, flood: int) -> list[float]:
    """The delays of B's items, sent once per second during A's flood."""
    sink = Watched(clock, seconds=0.05)
    accepted: dict[Item, float] = {}
    most = limits(max_items=100, max_delay=0.1, max_pending_items=200_000)
    async with Batcher(
        sink, tenant=tenant_of, limits=most, clock=clock, shutdown_deadline=10_000.0
    ) as batcher:
        for item in some("a", flood):
            await batcher.add(item)
        for number in range(20):
            accepted["b", number] = clock.now()
            await batcher.add(("b", number))
            await clock.advance(1.0)
    assert batcher.tally().delivered == flood + 20
    return [sink.at[item] - at for item, at in accepted.items()]


def test_a_flood_of_one_tenant_does_not_delay_another() -> None:
    """batcher/4b.6: A floods 100,000 items, B sends one a second; B's p99 is at most twice that
    without A.
    """
    found: dict[int, float] = {}

    async def main(clock: FakeClock) -> None:
        for flood in (0, 100_000):
            found[flood] = statistics.quantiles(await delays(clock, flood=flood), n=100)[98]

    on_virtual_time(main)
    assert found[100_000] <= 2 * found[0]


async def test_a_throttled_tenant_costs_the_others_nothing(fake_clock: FakeClock) -> None:
    """batcher/4b.6: it releases its slot, and only it pauses."""

    class Throttles:
        async def write(self, batch: Batch[Item]) -> None:
            if batch.tenant == "greedy":
                raise ThrottledError("slow down", retry_after=60.0)
            written[batch.tenant] = fake_clock.now()

    written: dict[object, float] = {}
    sink = stack(Throttles(), Retry(attempts=3))
    batcher = Batcher(
        sink, tenant=tenant_of, limits=limits(workers=1), clock=fake_clock, shutdown_deadline=1.0
    )
    async with batcher:
        began = fake_clock.now()
        await batcher.add_many(some("greedy", 50))
        await fake_clock.run_until_idle()
        for name in "abc":
            await batcher.add_many(some(name, 5))
            await fake_clock.run_until_idle()
        assert written == dict.fromkeys("abc", began)
        report = await batcher.shutdown(0.0)
    assert report.tally.unsent + report.tally.unknown == 50
