"""The fast path of tenants has the same effects as the slow path.

White box: one path is switched off.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tenant_programs import log_of
from tests.seeds import run_by

from sluicegate import Batch, Batcher, ConfigError, Limits, Outcome
from sluicegate.batcher import Tenants
from sluicegate.batcher.gathering import window
from sluicegate.batcher.gathering.tenant_queue import TenantQueue
from sluicegate.batcher.gathering.tenants import TenantGatherer, TenantRouter
from sluicegate.batcher.gathering.window import AddWindow
from sluicegate.testing import BlockingSink, FakeClock, FakeSink, WouldHang

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

COUNT, ALL, LONG = 20, 60, 2000

Item = tuple[Any, int]


def batcher_of(
    sink: Any, clock: FakeClock, *, size: int = 10, room: int = 1000, **given: Any
) -> Batcher[Item]:
    limits = Limits(max_items=size, max_delay=1.0, workers=1, max_pending_items=room)
    given.setdefault("tenant", lambda item: item[0])
    return Batcher(sink, limits=limits, clock=clock, **given)


# -- against the slow path -------------------------------------------------------------------------


def compared(first: int, count: int) -> int:
    """Run programs on the fast path and on the slow one; return the number of items on the fast
    path.
    """
    fast = 0
    real = TenantRouter.append

    def counted(self: TenantRouter[Any], item: Any, /) -> None:
        nonlocal fast
        real(self, item)
        fast += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "YIELD_EVERY", 1 << 40)  # the slow path yields more often
        patch.setattr(TenantRouter, "append", counted)
        for seed in range(first, first + count):
            with run_by(
                'import sys; sys.path.append("tests/batcher"); import test_tenants_fast as '
                f"it; it.compared({seed}, 1)"
            ):
                seen = log_of(seed)
                with pytest.MonkeyPatch.context() as slow:
                    slow.setattr(TenantGatherer, "spare", 0)
                    expected = log_of(seed)
                assert len(seen) == len(expected)
                for one, other in zip(seen, expected, strict=True):
                    assert one == other
    return fast


def test_programs_have_the_same_batches_times_counts_and_errors_on_either_path() -> None:
    """See above."""
    assert compared(0, COUNT) > 10 * COUNT


@pytest.mark.long
def test_more_programs_have_the_same_on_either_path() -> None:
    """See above."""
    assert compared(COUNT, ALL - COUNT) > 10 * (ALL - COUNT)


@pytest.mark.soak
def test_programs_have_the_same_batches_times_counts_and_errors_on_either_path_for_long() -> None:
    """See above."""
    compared(ALL, LONG)


def stays_open(patch: pytest.MonkeyPatch) -> None:
    """A tenant's window stays open while items of its open batch are sealed or evicted."""
    patch.setattr(TenantQueue, "change", lambda self: self.gatherer)


def opens_for_an_empty_batch(patch: pytest.MonkeyPatch) -> None:
    """The first item of a batch takes the fast path, and its time is not recorded."""

    def changed(self: TenantQueue[Any]) -> None:
        self.window.close()
        self.window.open(self._pack, self.gatherer.spare)

    patch.setattr(TenantQueue, "changed", changed)


def overlooks_caps(patch: pytest.MonkeyPatch) -> None:
    """A tenant's window is as wide as its batch."""
    real = AddWindow.open

    def opens(self: AddWindow, pack: Any, spare: int) -> None:
        real(self, pack, spare)
        if self.try_limit and not isinstance(pack.items, TenantRouter):
            self.try_limit = len(pack.items) + spare

    patch.setattr(AddWindow, "open", opens)


def forgets_the_time(patch: pytest.MonkeyPatch) -> None:
    """Items on the fast path have the time of their tenant's last change."""
    real = TenantGatherer.queue

    def queue(self: TenantGatherer[Any], key: Any) -> TenantQueue[Any]:
        made = real(self, key)
        if made.holds is not None:
            made.gatherer._wake = lambda _: made.gatherer._now  # type: ignore[attr-defined]
        return made

    patch.setattr(TenantGatherer, "queue", queue)


def keeps_the_receipt(patch: pytest.MonkeyPatch) -> None:
    """The receipt of an item stays in the pack of the whole batcher."""
    real = TenantRouter.append

    def append(self: TenantRouter[Any], item: Any, /) -> None:
        receipts = dict(self._window.receipts)
        real(self, item)
        self._window.receipts.update(receipts)

    patch.setattr(TenantRouter, "append", append)


@pytest.mark.parametrize(
    "plant",
    [
        stays_open,
        pytest.param(opens_for_an_empty_batch, marks=pytest.mark.long),
        overlooks_caps,
        pytest.param(forgets_the_time, marks=pytest.mark.long),
        pytest.param(keeps_the_receipt, marks=pytest.mark.long),
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    """The first programs show it: a different log, or an error."""
    found = False
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        try:
            compared(0, ALL)
        except (Exception, WouldHang):
            found = True
    assert found


# -- one by one ------------------------------------------------------------------------------------


async def test_counts_are_exact_between_any_two_items(fake_clock: FakeClock) -> None:
    """Of the batcher and of each tenant, although the fast path updates no count."""
    sink: BlockingSink[Item] = BlockingSink()
    inside: Counter[Any] = Counter()
    async with batcher_of(sink, fake_clock, size=7) as batcher:
        for number in range(100):
            tenant = "abc"[number * number % 3]
            assert batcher.try_add((tenant, number))
            inside[tenant] += 1
            stats = batcher.stats()
            stats.tally.verify()
            assert stats.tally.accepted == stats.tally.inside == number + 1
            assert {each.tenant: each.inside for each in stats.busiest_tenants} == inside
            assert stats.open_items + 7 * stats.sealed_batches <= number + 1
        sink.release()


@pytest.mark.parametrize("name", ["tenant", "key"])
async def test_an_item_whose_function_raises_was_not_accepted(
    fake_clock: FakeClock, name: str
) -> None:
    """Nor does its receipt go to the next item."""

    def of(item: Item) -> Any:
        if item[1] < 0:
            raise LookupError(f"no {name} for {item[1]}")
        return item[0]

    sink: FakeSink[Item] = FakeSink()
    given: dict[str, Any] = {name: of}
    async with batcher_of(sink, fake_clock, **given) as batcher:
        good = [await batcher.submit(("a", number)) for number in range(3)]
        for _ in range(2):
            with pytest.raises(LookupError, match=f"no {name} for -1"):
                await batcher.submit(("a", -1))
            with pytest.raises(LookupError, match=f"no {name} for -2"):
                batcher.try_add(("a", -2))
        assert batcher.tally().accepted == 3
        assert batcher.tally().refused == 0
        await batcher.add(("a", 3))  # takes the receipt's place
        good.append(await batcher.submit(("a", 4)))
        await batcher.flush()
        assert [receipt.outcome for receipt in good] == [Outcome.DELIVERED] * 4
        assert batcher.tally().accepted == 5


async def test_something_that_cannot_be_a_tenant_is_refused_as_on_the_slow_path(
    fake_clock: FakeClock,
) -> None:
    async with batcher_of(FakeSink[Item](), fake_clock) as batcher:
        await batcher.add(("a", 1))
        with pytest.raises(TypeError, match="tenant"):
            await batcher.add(([], 2))
        assert batcher.tally().accepted == 1


async def test_each_function_is_called_once_for_an_item(fake_clock: FakeClock) -> None:
    """Also for an item that the fast path declines: the first and the last of a batch."""
    calls: Counter[str] = Counter()

    def tenant(item: Item) -> Any:
        calls["tenant"] += 1
        return item[0]

    def weight(_tenant: Any) -> float:
        calls["weight"] += 1
        return 1.0

    def key(item: Item) -> Any:
        calls["key"] += 1
        return item[1] % 10

    weights = Tenants(weights=weight)
    async with batcher_of(
        FakeSink[Item](), fake_clock, tenant=tenant, key=key, tenants=weights
    ) as batcher:
        for number in range(100):
            await batcher.add((number % 3, number))
        assert calls == {"tenant": 100, "key": 100, "weight": 3}


class Order:
    """An item whose tenant changes."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant


def tenant_of(order: Order) -> str:
    """Raises for an order of tenant `bad`."""
    if order.tenant == "bad":
        raise LookupError("no tenant")
    return order.tenant


async def fails_for_its_timeout(batcher: Batcher[Order], order: Order) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        await batcher.add(order, timeout=-1.0)


async def fails_for_its_loop(batcher: Batcher[Order], order: Order) -> None:
    with ThreadPoolExecutor() as pool, pytest.raises(ConfigError, match="another event loop"):
        pool.submit(asyncio.run, batcher.add(order)).result()


async def is_cancelled_while_others_run(batcher: Batcher[Order], order: Order) -> None:
    while not batcher._window.yield_due:
        with pytest.raises(LookupError):
            await batcher.add_many([Order("bad")])
    adding = asyncio.create_task(batcher.add(order))
    asyncio.get_running_loop().call_soon(adding.cancel)
    with pytest.raises(asyncio.CancelledError):
        await adding


@pytest.mark.parametrize(
    "fails", [fails_for_its_timeout, fails_for_its_loop, is_cancelled_while_others_run]
)
@pytest.mark.parametrize("by_many", [True, False])
async def test_the_tenant_of_an_item_that_was_not_accepted_is_not_remembered(
    fake_clock: FakeClock,
    fails: Callable[[Batcher[Order], Order], Awaitable[None]],
    *,
    by_many: bool,
) -> None:
    """It may have changed when the same object is added again."""
    seen: list[tuple[object, object]] = []

    async def sink(batch: Batch[Order]) -> None:
        seen.extend((batch.tenant, order.tenant) for order in batch)

    limits = Limits(max_delay=60.0)
    async with Batcher(sink, limits=limits, tenant=tenant_of, clock=fake_clock) as batcher:
        await batcher.add(Order("a"))
        order = Order("b")
        await fails(batcher, order)
        order.tenant = "c"
        await (batcher.add_many([order]) if by_many else batcher.add(order))
        assert (await batcher.flush()).complete
        assert batcher.tally().accepted == 2
    assert sorted(seen) == [("a", "a"), ("c", "c")]


async def test_a_tenant_function_may_use_its_batcher(fake_clock: FakeClock) -> None:
    """Items that it adds come first, once; the item gets the remaining capacity."""
    sink: BlockingSink[Item] = BlockingSink()

    def tenant(item: Item) -> Any:
        if item[1] < 100:
            assert batcher.try_add((item[0], 100 + item[1])) == (item[1] < 5)
            batcher.tally().verify()
        return item[0]

    async with batcher_of(sink, fake_clock, size=4, room=10, tenant=tenant) as batcher:
        receipts = [await batcher.submit(("a", number)) for number in range(5)]
        assert not batcher.try_add(("a", 5))
        assert batcher.tally().accepted == 10
        assert batcher.tally().refused == 2
        sink.release()
        await batcher.flush()
        assert [receipt.outcome for receipt in receipts] == [Outcome.DELIVERED] * 5
    assert [item[1] for item in sink.applied] == [100, 0, 101, 1, 102, 2, 103, 3, 104, 4]


async def test_a_tenant_at_its_cap_slows_down_itself_alone(fake_clock: FakeClock) -> None:
    sink: BlockingSink[Item] = BlockingSink()
    async with batcher_of(
        sink, fake_clock, size=100, tenants=Tenants(max_pending_items=5)
    ) as batcher:
        for number in range(5):
            assert batcher.try_add(("a", number))
        assert batcher.try_add(("b", 0))
        needed = 0

        def count(*_: object) -> None:
            nonlocal needed
            needed += 1

        sys.setprofile(count)
        for number in range(3):
            batcher.try_add(("b", number))
        sys.setprofile(None)
        assert needed < 3 * 30
        assert not batcher.try_add(("a", 5))
        assert batcher.tally().refused == 1
        sink.release()


async def test_nothing_is_kept_of_tenants_that_have_gone(fake_clock: FakeClock) -> None:
    """The list that producers append to does not grow either."""

    class Thing:
        tenant = "a"

    async def sink(_batch: object) -> None:
        return None

    limits = Limits(max_items=10, max_delay=1.0, max_pending_items=1000)
    batcher: Batcher[Thing] = Batcher(
        sink, limits=limits, tenant=lambda thing: thing.tenant, clock=fake_clock
    )

    async def add(count: int) -> list[weakref.ref[Thing]]:
        things = [Thing() for _ in range(count)]
        for thing in things:
            await batcher.add(thing)
        return [weakref.ref(thing) for thing in things]

    async with batcher:
        gone = await add(25)
        await batcher.flush()
        assert batcher.stats().tenants == 0
        gc.collect()
        assert [ref() for ref in gone] == [None] * 25
        await add(500)
        assert len(batcher._window.items) <= 10


@pytest.mark.parametrize(
    ("given", "ceiling"),
    [
        ({}, 5.5),
        ({"tenants": Tenants(max_pending_items=1000)}, 5.5),
        ({"key": lambda item: item[1]}, 8.5),
    ],
)
async def test_an_item_costs_a_few_calls(
    fake_clock: FakeClock, given: dict[str, Any], ceiling: float
) -> None:
    """Python function calls, including the share of its batch; the slow path needs about fifty."""
    needed = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal needed
        needed += event == "call"

    async with batcher_of(FakeSink[Item](), fake_clock, size=500, room=5000, **given) as batcher:
        items = [(number % 5, number) for number in range(5000)]
        before = sys.getprofile()
        sys.setprofile(count)
        for item in items:
            await batcher.add(item)
        sys.setprofile(before)
    assert needed / len(items) < ceiling
