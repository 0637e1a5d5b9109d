"""A ledger, or a tenant's part of it, that is full of held items: producers wait, or items are
refused or dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from keyed_help import Destination, Item, Lane, Setting, key_of, on_virtual_time, some, tenant_of
from tenant_keys_help import NO_ROOM, A, B, let_go, tenanted

from sluicegate import AddTimeout, Batcher, BlockingBatcher, ClosedError, Limits, Outcome
from sluicegate.batcher import Tenants
from sluicegate.errors import LedgerFull

if TYPE_CHECKING:
    from sluicegate.testing import FakeClock


def full_of_held(
    clock: FakeClock, setting: Setting, *, capped: bool, **options: Any
) -> Batcher[Item]:
    """Capacity for ten items: in the ledger, or in each tenant's part."""
    if capped:
        return tenanted(
            setting.stack,
            clock,
            on_key_failure="pause",
            tenants=Tenants(max_pending_items=10),
            **options,
        )
    return Batcher(
        setting.stack,
        key=lambda item: item.key,
        on_key_failure="pause",
        limits=NO_ROOM,
        clock=clock,
        **options,
    )


@pytest.mark.parametrize("capped", [False, True])
def test_who_waits_for_a_room_full_of_held_items_waits_until_they_are_let_go(
    *, capped: bool
) -> None:
    """batcher/B44: the same rule for the ledger and for a tenant's part; the error and `stats` say
    why.
    """
    setting = Setting(Item(A, 0))

    async def main(clock: FakeClock) -> None:
        async with full_of_held(clock, setting, capped=capped) as batcher:
            await batcher.add(Item(A, 0))
            await clock.advance(5.0)
            await batcher.add_many(some(A, 1, 11))
            with pytest.raises(AddTimeout, match=r"full.*; held keys: 1"):
                await batcher.add(Item(A, 11), timeout=60.0)
            assert not batcher.try_add(Item(A, 11))
            waiting = asyncio.ensure_future(batcher.add(Item(A, 12)))
            await clock.advance(60.0)
            assert not waiting.done()
            assert batcher.stats().waiting_producers == 1
            if capped:
                await batcher.add_many(some(B, 0, 10), timeout=0)
                await clock.advance(5.0)
                assert setting.sink.applied == {B: list(range(10))}
                assert let_go(batcher, A) == 10
            else:
                assert batcher.resume(A) == 10
            await waiting
        assert setting.sink.applied[A] == [*range(1, 11), 12]
        assert batcher.tally().refused == 2

    on_virtual_time(main)


def test_what_is_let_go_does_not_linger_while_somebody_waits_for_its_tenants_room() -> None:
    """B-T28, batcher/B44."""
    setting = Setting(Item(A, 0))

    async def main(clock: FakeClock) -> None:
        limits, tenants = (
            Limits(max_items=10, max_delay=3600.0, workers=4),
            Tenants(max_pending_items=1),
        )
        async with tenanted(
            setting.stack, clock, limits=limits, tenants=tenants, on_key_failure="pause"
        ) as batcher:
            await batcher.add(Item(A, 0))
            await batcher.flush()
            await batcher.add(Item(A, 1))
            waiting = asyncio.ensure_future(batcher.add(Item(A, 2)))
            await clock.advance(5.0)
            assert let_go(batcher, A) == 1
            await clock.advance(5.0)
            assert waiting.done()
            await waiting
        assert setting.sink.applied[A] == [1, 2]

    on_virtual_time(main)


@pytest.mark.parametrize("capped", [False, True])
def test_a_shutdown_does_not_wait_for_room_that_held_items_take(*, capped: bool) -> None:
    """batcher/4b.1: a producer that waits for it cannot be admitted, and gets its error at once."""
    setting = Setting(Item(A, 0))

    async def main(clock: FakeClock) -> None:
        async with full_of_held(clock, setting, capped=capped) as batcher:
            await batcher.add(Item(A, 0))
            await clock.advance(5.0)
            await batcher.add_many(some(A, 1, 11))
            waiting = asyncio.ensure_future(batcher.add(Item(A, 11)))
            await clock.advance(5.0)
            report = await batcher.shutdown(deadline=50.0, admit_waiting=True)
            assert report.seconds <= 0.5
            assert (report.parked, report.unsent) == (10, tuple(some(A, 1, 11)))
            with pytest.raises(ClosedError):
                await waiting

    on_virtual_time(main)


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("overflow", ["reject", "drop_newest", "drop_oldest"])
def test_what_a_room_full_of_held_items_does_instead(overflow: Any, *, capped: bool) -> None:
    """batcher/B44: the oldest item, which is held, is dropped; its key stays held."""
    setting = Setting(Item(A, 0))

    async def main(clock: FakeClock) -> None:
        async with full_of_held(clock, setting, capped=capped, overflow=overflow) as batcher:
            await batcher.add(Item(A, 0))
            await clock.advance(5.0)
            receipts = [await batcher.submit(item) for item in some(A, 1, 11)]
            if overflow == "reject":
                with pytest.raises(LedgerFull, match=r"full.*; held keys: 1"):
                    await batcher.add(Item(A, 11))
            else:
                await batcher.add(Item(A, 11))
                assert receipts[0].outcome is (
                    Outcome.DROPPED if overflow == "drop_oldest" else None
                )
            assert batcher.stats().held_items == 10
            assert (let_go(batcher, A) if capped else batcher.resume(A)) == 10
            await clock.advance(20.0)
        assert (
            setting.sink.applied[A] == [*range(2, 12)]
            if overflow == "drop_oldest"
            else [*range(1, 11)]
        )
        tally = batcher.tally()
        assert (tally.refused, tally.dropped) == ((1, 0) if overflow == "reject" else (0, 1))

    on_virtual_time(main)


def test_all_that_a_tenant_holds_may_be_dropped_and_its_key_stays_held() -> None:
    """batcher/4a.10: the newest items take the capacity, and the tenant is not forgotten in
    between.
    """
    setting = Setting(Item(A, 0))

    async def main(clock: FakeClock) -> None:
        async with tenanted(
            setting.stack,
            clock,
            on_key_failure="pause",
            tenants=Tenants(max_pending_items=3),
            overflow="drop_oldest",
        ) as batcher:
            await batcher.add(Item(A, 0))
            await clock.advance(5.0)
            for start in (1, 4, 7):
                await batcher.add_many(some(A, start, start + 3))
                await clock.advance(5.0)
            assert (batcher.stats().held_items, batcher.tally().dropped) == (3, 6)
            assert let_go(batcher, A) == 3
        assert setting.sink.applied == {A: [7, 8, 9]}

    on_virtual_time(main)


def test_what_comes_forward_when_an_item_is_dropped_goes_at_its_time() -> None:
    """I4: without another event of its tenant."""
    sink = Destination()
    most = Limits(max_items=2, max_delay=1.0, workers=1, max_pending_items=4)

    async def main(clock: FakeClock) -> None:
        async with tenanted(sink, clock, limits=most, overflow="drop_oldest") as batcher:
            await batcher.add(Item(A, 0))
            await clock.advance(0.5)
            await batcher.add(Item(A, 1))
            for name in "bcd":
                await batcher.add(Item(Lane(name, "k"), 0))
            assert batcher.tally().dropped == 1
            await clock.advance(0.5)
            assert not sink.applied
            await clock.advance(0.5)
            assert sink.applied[A] == [1]

    on_virtual_time(main)


@pytest.mark.parametrize("overflow", ["block", "reject", "drop_newest", "drop_oldest"])
def test_threads_and_a_ledger_full_of_held_items(overflow: Any) -> None:
    """batcher/B44: `BlockingBatcher` behaves the same."""
    setting = Setting(Item(A, 0), seconds=0.0)
    options: dict[str, Any] = {
        "key": key_of,
        "tenant": tenant_of,
        "limits": NO_ROOM,
        "overflow": overflow,
    }
    with BlockingBatcher(setting.stack, on_key_failure="pause", **options) as batcher:
        assert batcher.submit(Item(A, 0)).settled() is Outcome.DEAD_LETTERED
        batcher.flush()
        receipts = [batcher.submit(item) for item in some(A, 1, 11)]
        if overflow in {"block", "reject"}:
            with pytest.raises(
                LedgerFull if overflow == "reject" else AddTimeout, match=r"full.*; held keys: 1"
            ):
                batcher.add(Item(B, 0), timeout=0)
        else:
            batcher.add(Item(A, 11))
            assert receipts[0].done is (overflow == "drop_oldest")
        assert batcher.stats().held_items == 10
        assert batcher.resume("k", tenant="acme") == 10
    assert setting.sink.applied == {
        A: [*range(2, 12)] if overflow == "drop_oldest" else [*range(1, 11)]
    }
