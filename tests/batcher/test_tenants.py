"""Tenants in one batcher: no batch mixes them, none is starved, and limits apply to each
separately.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
import statistics
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    AddTimeout,
    Batcher,
    BlockingBatcher,
    ClosedError,
    ConfigError,
    ItemTooLarge,
    LedgerFull,
    Limits,
    Retry,
    Tenants,
    ThrottledError,
    TransientError,
    WriteResult,
    stack,
)
from penstock.testing import BlockingSink, FakeClock, FakeSink

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock import Batch

Item = tuple[str, int]


def tenant_of(item: Item) -> str:
    return item[0]


def on_virtual_time(main: Callable[[FakeClock], Coroutine[Any, Any, None]]) -> None:
    with FakeClock() as clock:
        clock.run(main(clock))


def some(tenant: str, count: int, start: int = 0) -> list[Item]:
    return [(tenant, number) for number in range(start, start + count)]


def limits(**given: Any) -> Limits:
    most: dict[str, Any] = {
        "max_items": 5,
        "max_delay": 1.0,
        "workers": 2,
        "flush_timeout": 10_000.0,
    }
    return Limits(**{**most, **given})


class Watched:
    """Takes `seconds` per write, records the time and tenant of each item, and refuses a batch of
    several tenants.
    """

    def __init__(self, clock: FakeClock, seconds: float = 0.0) -> None:
        self.clock = clock
        self.seconds = seconds
        self.at: dict[Item, float] = {}
        self.tenants: list[object] = []
        self.order: dict[str, list[int]] = defaultdict(list)

    async def write(self, batch: Batch[Item]) -> None:
        assert {item[0] for item in batch} == {batch.tenant}, "a batch of several tenants"
        self.tenants.append(batch.tenant)
        await self.clock.sleep(self.seconds)
        for item in batch:
            self.at[item] = self.clock.now()
            self.order[item[0]].append(item[1])


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


# -- caps ------------------------------------------------------------------------------------------


async def test_a_full_tenant_waits_for_its_own_room_and_others_do_not(
    fake_clock: FakeClock,
) -> None:
    """batcher/B44: a smaller limit per tenant."""
    sink: BlockingSink[Item] = BlockingSink()
    caps = Tenants(max_pending_items=10)
    async with Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=limits(), clock=fake_clock
    ) as batcher:
        for item in some("a", 10):
            await batcher.add(item)
        with pytest.raises(
            AddTimeout, match=r"no room within 0\.5 s; tenant 'a' has 10 items inside"
        ):
            await batcher.add(("a", 10), timeout=0.5)
        assert not batcher.try_add(("a", 10))
        await batcher.add(("b", 0), timeout=0)
        waiting = asyncio.ensure_future(batcher.add(("a", 10)))
        await fake_clock.run_until_idle()
        assert not waiting.done()
        sink.release()
        await waiting
    assert batcher.tally().delivered == 12
    assert batcher.tally().refused == 2


async def test_a_tenant_that_waits_does_not_linger(fake_clock: FakeClock) -> None:
    """Otherwise a limit below the batch size would make every producer wait for `max_delay`."""
    sink: FakeSink[Item] = FakeSink()
    caps = Tenants(max_pending_items=3)
    began = fake_clock.now()
    async with Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=limits(), clock=fake_clock
    ) as batcher:
        for item in some("a", 9):
            await batcher.add(item)
        assert fake_clock.now() == began
    assert [call.reason for call in sink.calls] == ["pressure", "pressure", "shutdown"]


async def test_a_tenant_that_many_wait_for_does_not_linger(fake_clock: FakeClock) -> None:
    """Items admitted together are sent together, at once, while more wait."""
    sink: FakeSink[Item] = FakeSink()
    began = fake_clock.now()
    batcher = Batcher(
        sink,
        tenant=tenant_of,
        tenants=Tenants(max_pending_items=3),
        limits=limits(),
        clock=fake_clock,
    )
    async with batcher:
        await asyncio.gather(*(batcher.add(item) for item in some("a", 8)))
        assert fake_clock.now() == began
    assert [call.items for call in sink.calls] == [
        tuple(some("a", 3)),
        tuple(some("a", 3, 3)),
        tuple(some("a", 2, 6)),
    ]


@pytest.mark.parametrize("overflow", ["reject", "drop_newest", "drop_oldest"])
async def test_what_a_full_tenant_does_instead_of_waiting(
    fake_clock: FakeClock, overflow: Any
) -> None:
    """B-T28: it rejects, or drops the newest or the oldest."""
    sink: BlockingSink[Item] = BlockingSink()
    caps = Tenants(max_pending_items=10)
    batcher = Batcher(
        sink,
        tenant=tenant_of,
        tenants=caps,
        limits=limits(workers=1),
        overflow=overflow,
        clock=fake_clock,
    )
    async with batcher:
        await batcher.add_many(some("b", 3))
        for item in some("a", 10):
            await batcher.add(item)
        await fake_clock.run_until_idle()
        if overflow == "reject":
            with pytest.raises(LedgerFull, match="tenant 'a'"):
                await batcher.add(("a", 10))
        else:
            await batcher.add(("a", 10))
            assert batcher.try_add(("a", 11)) is (overflow == "drop_oldest")
        sink.release()
    tally = batcher.tally()
    assert (tally.refused, tally.dropped) == {
        "reject": (1, 0),
        "drop_newest": (0, 2),
        "drop_oldest": (0, 2),
    }[overflow]
    kept = [item for call in sink.calls for item in call.items if item[0] == "a"]
    assert len(kept) == 10
    assert (("a", 11) in kept) is (overflow == "drop_oldest")
    assert len([item for call in sink.calls for item in call.items if item[0] == "b"]) == 3


async def test_nothing_is_dropped_for_what_does_not_get_in_all_the_same(
    fake_clock: FakeClock,
) -> None:
    """batcher/B10: no item of one tenant is dropped if the other tenant has none to drop."""
    sink: BlockingSink[Any] = BlockingSink()
    caps = Tenants(max_pending_items=4)
    most = limits(max_items=2)
    batcher: Batcher[Any] = Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=most, overflow="drop_oldest", clock=fake_clock
    )
    async with batcher:
        await batcher.add_many([(1, number) for number in range(4)])
        await fake_clock.run_until_idle()
        older = [await batcher.submit((tenant, number)) for tenant in (0, 2) for number in range(4)]
        await batcher.add_many([(0, 4), (1, 4), (2, 4)])
        assert batcher.tally().dropped == 3
        assert [receipt.outcome for receipt in older] == [None] * 8
        sink.release()
    assert batcher.tally().delivered == 12


async def test_a_full_ledger_flushes_the_oldest_tenant(fake_clock: FakeClock) -> None:
    """B-T28, batcher/B44: the global limit."""
    sink: FakeSink[Item] = FakeSink()
    most = limits(max_items=5, workers=1, max_pending_items=10, max_delay=60.0)
    async with Batcher(sink, tenant=tenant_of, limits=most, clock=fake_clock) as batcher:
        for number in range(12):
            await batcher.add((f"t{number}", 0))
        await fake_clock.run_until_idle()
        assert [call.items[0][0] for call in sink.calls] == ["t0", "t1"]
        assert {call.reason for call in sink.calls} == {"pressure"}


async def test_what_can_never_fit_is_refused(fake_clock: FakeClock) -> None:
    batcher = Batcher(
        FakeSink[Item](),
        tenant=tenant_of,
        tenants=Tenants(max_pending_items=3),
        limits=limits(),
        clock=fake_clock,
    )
    async with batcher:
        with pytest.raises(ItemTooLarge, match="never fit for tenant 'a'"):
            await batcher.add_many(some("a", 4))
        assert batcher.tally().refused == 4


async def test_whoever_waits_for_a_tenants_room_is_turned_away_by_a_shutdown(
    fake_clock: FakeClock,
) -> None:
    sink: BlockingSink[Item] = BlockingSink()
    async with Batcher(
        sink,
        tenant=tenant_of,
        tenants=Tenants(max_pending_items=5),
        limits=limits(),
        clock=fake_clock,
    ) as batcher:
        await batcher.add_many(some("a", 5))
        waiting = asyncio.ensure_future(batcher.add(("a", 5)))
        await fake_clock.run_until_idle()
        closing = asyncio.ensure_future(batcher.shutdown())
        await fake_clock.run_until_idle()
        sink.release()
        await closing
        with pytest.raises(ClosedError):
            await waiting


async def test_who_gives_up_waiting_leaves_no_tenant_behind(fake_clock: FakeClock) -> None:
    sink: BlockingSink[Item] = BlockingSink()
    async with Batcher(
        sink,
        tenant=tenant_of,
        tenants=Tenants(max_pending_items=5),
        limits=limits(),
        clock=fake_clock,
    ) as batcher:
        await batcher.add_many(some("a", 5))
        waiting = asyncio.ensure_future(batcher.add(("a", 5)))
        await fake_clock.run_until_idle()
        waiting.cancel()
        await asyncio.wait([waiting])
        sink.release()
        await batcher.flush()
        await fake_clock.run_until_idle()
        assert len(batcher._dispatcher.gathering.gatherer) == 0  # type: ignore[arg-type]


# -- with keys, in threads, and wrongly ------------------------------------------------------------


@settings(max_examples=60, deadline=None)
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


async def test_a_weight_that_cannot_be_refuses_all_of_what_comes_in_together(
    fake_clock: FakeClock,
) -> None:
    """I10: all items of the group are accepted, or none."""
    shares = Tenants(weights=lambda tenant: -1.0 if tenant == "bad" else 1.0)
    async with Batcher(
        FakeSink[Item](), tenant=tenant_of, tenants=shares, limits=limits(), clock=fake_clock
    ) as batcher:
        with pytest.raises(ConfigError, match=r"-1\.0 for tenant 'bad'"):
            await batcher.add_many([("good", 0), ("bad", 0)])
        assert batcher.tally().accepted == 0


@pytest.mark.parametrize("overflow", ["block", "drop_newest"])
async def test_what_finds_no_room_leaves_no_tenant_behind(
    fake_clock: FakeClock, overflow: Any
) -> None:
    """Its own limit had capacity, but the ledger had none."""
    sink: BlockingSink[Item] = BlockingSink()
    most = limits(workers=1, max_pending_items=10)
    caps = Tenants(max_pending_items=10)
    async with Batcher(
        sink, tenant=tenant_of, tenants=caps, limits=most, overflow=overflow, clock=fake_clock
    ) as batcher:
        await batcher.add_many(some("a", 10))
        assert not batcher.try_add(("b", 0))
        sink.release()
        await batcher.flush()
        await fake_clock.run_until_idle()
        assert len(batcher._dispatcher.gathering.gatherer) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_cap_holds_for_who_waits_for_several_tenants(
    fake_clock: FakeClock, tries: int
) -> None:
    """At every moment: a tenant may have disappeared and returned while the producer waited for the
    other one.
    """
    sink = Watched(fake_clock, seconds=0.3)
    batcher = Batcher(
        sink,
        tenant=tenant_of,
        tenants=Tenants(max_pending_items=5),
        limits=limits(),
        clock=fake_clock,
    )
    inside: Counter[str] = Counter()
    async with batcher:

        async def together(number: int) -> None:
            await batcher.add_many([*some("a", 3, 10 * number), *some("b", 3, 10 * number)])
            for share in batcher._dispatcher.gathering.gatherer.queues():  # type: ignore[attr-defined]
                inside[share.tenant] = max(inside[share.tenant], share.ledger.inside)

        await asyncio.gather(*(together(number) for number in range(3 * tries)))
    assert max(inside.values()) <= 5
    assert batcher.tally().delivered == 18 * tries


def test_threads_may_hand_in_for_tenants() -> None:
    sink: FakeSink[Item] = FakeSink()
    with BlockingBatcher(sink, tenant=tenant_of, limits=Limits(max_items=5)) as batcher:
        for number in range(10):
            batcher.add(("ab"[number % 2], number))
    assert Counter(call.items[0][0] for call in sink.calls) == {"a": 1, "b": 1}
    with pytest.raises(ConfigError, match="caps per tenant need a Batcher"):
        BlockingBatcher(sink, tenant=tenant_of, tenants=Tenants(max_pending_items=10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tenant": "name"}, "tenant='name': must be a function"),
        ({"tenants": Tenants()}, "has no meaning without tenant"),
        ({"tenant": tenant_of, "tenants": {"a": 2}}, r"must be a Tenants\(\.\.\.\)"),
        (
            {"tenant": tenant_of, "tenants": Tenants(max_pending_bytes=10)},
            "max_pending_bytes=10: needs sizes",
        ),
    ],
)
def test_mistakes_are_told_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Batcher(FakeSink[Item](), **arguments)


@pytest.mark.parametrize(
    "wrong",
    [{"weights": {"a": 0}}, {"weights": 3}, {"weights": {"a": "b"}}, {"max_pending_items": 0}],
)
def test_tenants_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Tenants(**wrong)


async def test_an_item_whose_tenant_cannot_be_one_is_refused(fake_clock: FakeClock) -> None:
    async with Batcher(FakeSink[Any](), tenant=lambda item: item, clock=fake_clock) as batcher:
        with pytest.raises(TypeError, match="has no hash"):
            await batcher.add(["a"])
        assert batcher.tally().accepted == 0


def test_tenants_travel() -> None:
    assert pickle.loads(pickle.dumps(Tenants(weights={"a": 2.0}))).weight("a") == 2.0


def _come_once(count: int, key: Callable[[int], object] | None) -> None:
    async def nothing(batch: Batch[int]) -> None:
        pass

    async def main(clock: FakeClock) -> None:
        async with Batcher(
            nothing, tenant=lambda item: item, key=key, limits=Limits(workers=4), clock=clock
        ) as batcher:
            for item in range(100):
                await batcher.add(item)
            await batcher.flush()
            gc.collect()
            before = len(gc.get_objects())
            for item in range(count):
                await batcher.add(item)
            await batcher.flush()
            await clock.run_until_idle()
            gc.collect()
            assert len(gc.get_objects()) <= before + 100
            accumulator: Any = batcher._dispatcher.gathering.gatherer
            assert len(accumulator) == 0
            assert batcher.tally().delivered == count + 100

    on_virtual_time(main)


KEY_OR_NOT = pytest.mark.parametrize("key", [None, lambda item: item], ids=["no key", "keys"])


@KEY_OR_NOT
def test_tenants_that_come_once_leave_nothing_behind(key: Callable[[int], object] | None) -> None:
    """batcher/4b.7, consumer/C:O6 for tenants."""
    _come_once(500, key)


@KEY_OR_NOT
@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_hundred_thousand_tenants_that_come_once_leave_nothing_behind(
    key: Callable[[int], object] | None,
) -> None:
    """batcher/4b.7."""
    _come_once(100_000, key)
