"""An adaptive batcher with keys, tenants and a full stack, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from keyed_help import Destination, Item, key_of

from helpers import Recording
from sluicegate import (
    Backoff,
    Batch,
    Batcher,
    CircuitBreaker,
    Limits,
    Observer,
    PermanentError,
    Retry,
    ThrottledError,
    Timeout,
    TransientError,
    UnavailableError,
    WriteResult,
    stack,
)
from sluicegate.batcher import Adaptive, Tenants
from sluicegate.errors import TooLargeError
from sluicegate.sinks import Isolate, RateLimit
from sluicegate.testing import FakeClock

LIMITS = Limits(max_items=100, max_delay=0.05, workers=16, max_pending_items=4000)


class Settings(Observer):
    """Records every setting that was in force."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    def on_adapted(self, name: str, workers: int, max_items: int) -> None:
        self.seen.append((name, workers, max_items))


def tenant_of(item: tuple[str, int]) -> str:
    return item[0]


async def add_all(batcher: Batcher[Any], tenant: str, items: int) -> None:
    for number in range(items):
        await batcher.add((tenant, number))


async def trickle(batcher: Batcher[Any], tenants: int, seconds: float, clock: FakeClock) -> None:
    """Add one item of each of many tenants, every 20 ms."""
    for number in range(int(seconds / 0.02)):
        for tenant in range(tenants):
            await batcher.add((f"small {tenant}", number))
        await clock.sleep(0.02)


# -- keys ------------------------------------------------------------------------------------------


async def test_waiting_for_a_key_is_no_round_trip(fake_clock: FakeClock) -> None:
    """batcher/4a.10, 4a.11: eight batches of eight hot keys are in flight at once; an item that
    waits for its key has no slot, and does not count as slow.
    """

    async def perform(sink: Destination, batch: Batch[Item]) -> None:
        await asyncio.sleep(0.1)
        sink.apply(*batch)

    sink = Destination(perform)
    limits = Limits(max_items=1, max_delay=0.05, workers=16, max_pending_items=4000)
    async with Batcher(sink, limits=limits, key=key_of, adaptive=Adaptive()) as batcher:
        for number in range(2000):
            await batcher.add(Item(number % 8, number // 8))
        await batcher.flush()
        assert 8 <= batcher.stats().workers <= 9
    assert sink.most_running == 8
    assert not sink.broken
    assert all(sink.applied[key] == list(range(250)) for key in range(8))


async def test_a_key_that_backs_off_is_no_round_trip_either(fake_clock: FakeClock) -> None:
    """batcher/4a.10: pauses of ten seconds on one key leave the workers to the others."""
    failed: Counter[int] = Counter()

    async def perform(sink: Destination, batch: Batch[Item]) -> WriteResult | None:
        await asyncio.sleep(0.1)
        bad = {
            index: TransientError("locked")
            for index, item in enumerate(batch)
            if item.key == 0 and failed[item.number] < 2
        }
        failed.update(batch[index].number for index in bad)
        sink.apply(*(item for index, item in enumerate(batch) if index not in bad))
        return WriteResult.failed(batch, bad) if bad else None

    sink = Destination(perform)
    wait = Retry(attempts=5, backoff=lambda retry_state: 10.0)
    async with Batcher(
        stack(sink, wait), limits=LIMITS, key=key_of, adaptive=Adaptive()
    ) as batcher:
        for number in range(50):
            for key in range(0 if number < 4 else 1, 200):
                await batcher.add(Item(key, number))
        assert batcher.stats().workers >= 3
        await batcher.flush()
    assert not sink.broken
    assert sink.applied[0] == [0, 1, 2, 3]


# -- tenants ---------------------------------------------------------------------------------------


async def test_a_throttled_tenant_costs_the_others_neither_workers_nor_size(
    fake_clock: FakeClock,
) -> None:
    """batcher/4b.6: a throttle of one tenant affects only that tenant, in the workers, the size and
    the retry.
    """
    throttled = 0

    def answer(batch: Batch[Any]) -> None:
        nonlocal throttled
        if batch.tenant == "bad":
            throttled += 1
            raise ThrottledError("slow down", retry_after=0.2)

    batcher = Batcher[Any](
        stack(Recording(0.1, answer), Retry()), limits=LIMITS, tenant=tenant_of, adaptive=Adaptive()
    )
    async with batcher:
        await add_all(batcher, "bad", 300)
        await add_all(batcher, "good", 30_000)
        assert (batcher.stats().workers, batcher.stats().max_items) == (16, 100)
        await batcher.shutdown(deadline=0.0)
    assert throttled > 5


async def test_timeouts_of_a_tenant_are_everybodys(fake_clock: FakeClock) -> None:
    """A slow write occupies a shared worker, whichever tenant it belongs to."""

    def answer(batch: Batch[Any]) -> None:
        raise TimeoutError

    adaptive = Adaptive(start_workers=16)
    batcher = Batcher[Any](
        stack(Recording(0.1, answer), Retry()), limits=LIMITS, tenant=tenant_of, adaptive=adaptive
    )
    async with batcher:
        await add_all(batcher, "slow", 2000)
        await fake_clock.advance(5.0)
        assert batcher.stats().workers < 16
        assert batcher.stats().max_items < 100
        await batcher.shutdown(deadline=0.0)


async def test_many_small_tenants_do_not_make_the_batches_of_a_large_one_small(
    fake_clock: FakeClock,
) -> None:
    """batcher/4c: most batches have three items, because most tenants send little; full batches
    stay full.
    """
    sink = Recording(0.1)
    async with Batcher[Any](sink, limits=LIMITS, tenant=tenant_of, adaptive=Adaptive()) as batcher:
        small = asyncio.create_task(trickle(batcher, 20, 8.0, fake_clock))
        await add_all(batcher, "large", 15_000)
        await small
        assert batcher.stats().max_items == 100
    sizes = Counter(len(batch) for batch in sink.batches)
    assert sum(count for size, count in sizes.items() if size < 10) > sizes[100] > 100


async def test_a_smaller_size_holds_for_tenants_that_have_items_inside(
    fake_clock: FakeClock,
) -> None:
    """batcher/4a.11: batches that a tenant queued earlier are cut, too."""
    taken: list[tuple[int, int]] = []

    def answer(batch: Batch[Any]) -> None:
        taken.append((len(batch), batcher.stats().max_items))
        if len(batch) > 40:
            raise TooLargeError("413")

    batcher = Batcher[Any](
        stack(Recording(0.0, answer), Isolate()),
        limits=LIMITS,
        tenant=tenant_of,
        adaptive=Adaptive(),
    )
    async with batcher:
        await asyncio.gather(*(add_all(batcher, tenant, 3000) for tenant in ("a", "b")))
        await batcher.flush()
        assert batcher.stats().max_items <= 40
    after = [size for size, most in taken if most <= 50]  # the setting after the first cut
    assert len(after) > 100
    assert max(after) <= 50
    assert batcher.tally().delivered == 6000


async def test_tenants_with_destinations_that_differ_tenfold_still_find_workers(
    fake_clock: FakeClock,
) -> None:
    """Writes of one tenant take ten times as long as the other's: varying round trips are not
    congestion.
    """
    written: Counter[str] = Counter()

    class Uneven:
        async def write(self, batch: Batch[Any]) -> None:
            await asyncio.sleep(0.5 if batch.tenant == "slow" else 0.05)
            written[str(batch.tenant)] += len(batch)

    share = Tenants(max_pending_items=2000)
    async with Batcher[Any](
        Uneven(), limits=LIMITS, tenant=tenant_of, tenants=share, adaptive=Adaptive()
    ) as batcher:
        adding = [
            asyncio.create_task(add_all(batcher, tenant, 40_000)) for tenant in ("slow", "fast")
        ]
        await fake_clock.sleep(5.0)
        before = written.total()
        await fake_clock.sleep(10.0)
        most = 16 * 100 / ((0.5 + 0.05) / 2)  # turns are equal, so half of the writes are slow
        assert written.total() - before > 0.5 * 10.0 * most
        for task in adding:
            task.cancel()
        await asyncio.gather(*adding, return_exceptions=True)
        await batcher.shutdown(deadline=0.0)


# -- everything at once ----------------------------------------------------------------------------


class Chaotic:
    """Fails randomly in every way, and records the applied items per key and tenant."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.taken: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.mixed = 0
        self.sizes: list[int] = []
        self.running = 0
        self.most_running = 0

    async def write(self, batch: Batch[Any]) -> WriteResult | None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.sizes.append(len(batch))
        self.mixed += len({item[0] for item in batch}) - 1
        try:
            await asyncio.sleep(self.chance.choice((0.01, 0.05, 0.05, 0.05, 0.3, 2.0)))
            lot = self.chance.random()
            if lot < 0.05:
                raise ThrottledError("slow down", retry_after=0.3)
            if lot < 0.08:
                raise _busy()
            if lot < 0.12:
                raise TransientError("a deadlock")
            bad = {
                index: PermanentError("a bad row")
                for index in range(len(batch))
                if self.chance.random() < 0.002
            }
            for index, (tenant, key, number) in enumerate(batch):
                if index not in bad:
                    self.taken[tenant, key].append(number)
            return WriteResult.failed(batch, bad) if bad else None
        finally:
            self.running -= 1


def _busy() -> UnavailableError:
    error = UnavailableError("503")
    error.retry_after = 0.5
    return error


COMPANY = ["nothing", "key", "tenant", "both"]


@pytest.mark.parametrize("of", COMPANY)
def test_nothing_is_lost_or_out_of_order_in_any_company(of: str) -> None:
    """B-T29, B-T14, batcher/4b.1: with keys, tenants or both, behind a full stack that fails in
    every way: no item lost, order, limits.
    """
    with FakeClock() as clock:
        clock.run(_chaos(of, 1))


@pytest.mark.soak
@pytest.mark.parametrize("of", COMPANY)
@pytest.mark.parametrize("seed", range(2, 22))
def test_nothing_is_lost_or_out_of_order_in_any_company_over_many_seeds(of: str, seed: int) -> None:
    """B-T29, B-T14, batcher/4b.1."""
    with FakeClock() as clock:
        clock.run(_chaos(of, seed))


async def _chaos(of: str, seed: int) -> None:
    chance = random.Random(seed)
    sink = Chaotic(chance)
    settings = Settings()
    arguments: dict[str, Any] = {}
    if of in {"key", "both"}:
        arguments["key"] = lambda item: item[1]
    if of in {"tenant", "both"}:
        arguments["tenant"] = lambda item: item[0]
    whole = stack(
        sink,
        Timeout(1.0),
        RateLimit(20_000),
        CircuitBreaker(min_calls=10, window=5.0, open_for=0.5),
        Retry(attempts=20, backoff=Backoff(rng=random.Random(seed))),
    )
    limits = Limits(max_items=50, max_delay=0.05, workers=16, max_pending_items=2000)
    batcher = Batcher[Any](
        whole,
        limits=limits,
        adaptive=Adaptive(min_items=5),
        observers=[settings],
        name="chaos",
        **arguments,
    )
    async with batcher:
        numbers: Counter[tuple[str, int]] = Counter()
        for _ in range(1000):
            place = (chance.choice("aaaab"), chance.randrange(100))
            await batcher.add((*place, numbers[place]))
            numbers[place] += 1
        report = await batcher.flush(timeout=300.0)
        assert report.complete
    tally = batcher.tally()
    tally.verify()
    assert tally.inside == 0
    assert tally.accepted == 1000
    assert sink.most_running <= 16
    assert max(sink.sizes) <= 50
    assert all(
        name == "chaos" and 1 <= workers <= 16 and 5 <= size <= 50
        for name, workers, size in settings.seen
    )
    if of in {"tenant", "both"}:
        assert not sink.mixed
    if "key" in arguments:
        for taken in sink.taken.values():
            assert list(dict.fromkeys(taken)) == sorted(
                set(taken)
            )  # a write that was cut off may have been applied and is repeated
