"""`max_delay=0`: a batch is due at once, and gathers items while all workers are busy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helpers import Gated, Recording
from sluicegate import Batcher, BlockingBatcher, ConfigError, Limits, Outcome
from sluicegate.batcher import Adaptive

if TYPE_CHECKING:
    from collections.abc import Callable

    from sluicegate.testing import FakeClock

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sized": {"size_of": lambda item: 1},
    "keyed": {"key": lambda item: item},
    "tenants": {"tenant": lambda item: "a"},
    "tenants with keys": {"tenant": lambda item: "a", "key": lambda item: item},
    "adaptive": {"adaptive": Adaptive()},
}


def batcher_of(sink: Any, clock: FakeClock, kind: str = "plain", **limits: Any) -> Batcher[int]:
    if kind == "sized":
        limits["max_bytes"] = 1000
    limits = {"max_items": 10, "max_delay": 0, **limits}
    return Batcher(sink, limits=Limits(**limits), clock=clock, **KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
async def test_items_of_one_step_go_together_and_no_time_passes(
    fake_clock: FakeClock, kind: str
) -> None:
    sink = Recording()
    async with batcher_of(sink, fake_clock, kind) as batcher:
        began = fake_clock.now()
        await batcher.add(0)
        assert batcher.try_add(1)
        receipt = await batcher.submit(2)
        await batcher.add_many([3, 4])
        assert await receipt is Outcome.DELIVERED
        await batcher.deliver(5)
        assert sink.batches == [(0, 1, 2, 3, 4), (5,)]
        assert sink.reasons == ["time", "time"]
        assert fake_clock.now() == began


@pytest.mark.parametrize("kind", KINDS)
async def test_while_no_worker_is_free_items_gather_up_to_max_items(
    fake_clock: FakeClock, kind: str
) -> None:
    """They leave as soon as a worker is free, whatever the size of the batch."""
    sink = Recording(seconds=1.0)
    async with batcher_of(sink, fake_clock, kind) as batcher:
        await batcher.add(0)
        await fake_clock.advance(0.1)
        for number in range(1, 18):
            await batcher.add(number)
            await fake_clock.advance(0.01)
        await fake_clock.advance(0.9)
        await batcher.add(18)
        await fake_clock.advance(10.0)
        assert [len(batch) for batch in sink.batches] == [1, 10, 8]
        assert sink.reasons == ["time", "size", "time"]
        began = sink.times[0]
        assert sink.times == [began, began + 1.0, began + 2.0]
        assert sink.items == list(range(19))


async def test_one_timer_per_step_and_none_while_workers_are_busy(fake_clock: FakeClock) -> None:
    """No work is repeated until a worker is free."""
    timers = 0
    real = fake_clock.call_at

    def call_at(when: float, callback: Callable[[], object]) -> Any:
        nonlocal timers
        timers += 1
        return real(when, callback)

    fake_clock.call_at = call_at  # type: ignore[method-assign]
    sink = Gated()
    async with batcher_of(sink, fake_clock, max_items=1000, flush_timeout=36_000.0) as batcher:
        for number in range(100):
            await batcher.add(number)
        await fake_clock.advance(1.0)
        assert sink.calls == 1
        opened = timers
        for number in range(100, 200):
            await batcher.add(number)
        await fake_clock.advance(3600.0)
        assert sink.calls == 1
        assert opened <= 3
        assert timers - opened <= 2
        sink.gate.set()
        await batcher.flush()
        assert sink.calls == 2
    assert len(sink.items) == 200


async def test_flush_and_shutdown_seal_with_their_own_reasons(fake_clock: FakeClock) -> None:
    sink = Recording()
    async with batcher_of(sink, fake_clock) as batcher:
        await batcher.add(1)
        assert (await batcher.flush()).complete
        await batcher.add(2)
    assert sink.batches == [(1,), (2,)]
    assert sink.reasons == ["manual", "shutdown"]


async def test_a_full_ledger_makes_producers_wait_as_with_any_delay(fake_clock: FakeClock) -> None:
    sink = Recording(seconds=1.0)
    async with batcher_of(sink, fake_clock, max_pending_items=20) as batcher:
        for number in range(60):
            await batcher.add(number)
    assert sink.items == list(range(60))
    assert batcher.tally().delivered == 60
    assert max(map(len, sink.batches)) == 10
    assert len(sink.batches) < 12


def test_it_serves_threads_as_well() -> None:
    sink = Recording()
    with BlockingBatcher(sink, limits=Limits(max_delay=0)) as batcher:
        assert batcher.deliver(1) is Outcome.DELIVERED
        batcher.add_many([2, 3])
    assert sink.items == [1, 2, 3]


def test_a_negative_delay_stays_an_error() -> None:
    with pytest.raises(ConfigError, match=r"max_delay=-1: must be at least 0 seconds"):
        Limits(max_delay=-1)
