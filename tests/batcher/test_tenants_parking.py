"""A key is unique within its tenant: the effects of a failed item on it and on other tenants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from keyed_help import (
    Destination,
    Gate,
    Item,
    Lane,
    Setting,
    key_of,
    on_virtual_time,
    some,
    tenant_of,
)

from penstock import (
    AddTimeout,
    Batcher,
    BlockingBatcher,
    ClosedError,
    ConfigError,
    ItemFailed,
    KeyFailedError,
    LedgerFull,
    Limits,
    Outcome,
    Retry,
    Tenants,
    TransientError,
    WriteResult,
    stack,
)
from penstock.retry import Backoff

if TYPE_CHECKING:
    from penstock import Batch
    from penstock.testing import FakeClock

LIMITS = Limits(max_items=10, max_delay=1.0, workers=4, max_pending_items=100)
A, B = Lane("acme", "k"), Lane("bolt", "k")
"""The same key in two tenants."""


def tenanted(sink: Any, clock: FakeClock, **options: Any) -> Batcher[Item]:
    given: dict[str, Any] = {"limits": LIMITS, **options}
    return Batcher(sink, key=key_of, tenant=tenant_of, clock=clock, **given)


NO_ROOM = Limits(max_items=5, max_delay=0.001, workers=1, max_pending_items=10)
IN_THREADS = Limits(max_items=10, max_delay=0.001, workers=4)


def let_go(batcher: Any, lane: Lane) -> int:
    held: int = (batcher.unpark if batcher.setup.on_key_failure == "park" else batcher.resume)(
        lane.key, tenant=lane.tenant
    )
    return held


def tenants_inside(batcher: Batcher[Item]) -> int:
    return len(batcher._dispatcher.gathering.gatherer)  # type: ignore[arg-type]


# -- held and other keys ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "dead_letters"), [("pause", False), ("pause", True), ("park", True)]
)
@pytest.mark.parametrize("prefix_safe", [False, True])
def test_a_key_is_held_in_its_tenant_only(
    policy: Any, *, prefix_safe: bool, dead_letters: bool
) -> None:
    """batcher/4a.10, consumer/C:N4: the same key of another tenant continues, and so does every
    other key; no flush waits.
    """
    setting = Setting(Item(A, 1), prefix_safe=prefix_safe, dead_letters=dead_letters)
    other = Lane("acme", "other")

    async def main(clock: FakeClock) -> None:
        async with tenanted(setting.stack, clock, on_key_failure=policy) as batcher:
            await batcher.add_many([*some(A, 0, 4), *some(B, 0, 4), *some(other, 0, 2)])
            await clock.advance(20.0)
            assert setting.sink.applied == {A: [0], B: [0, 1, 2, 3], other: [0, 1]}
            await batcher.add_many([*some(A, 4, 6), *some(B, 4, 5)])
            report = await batcher.flush(timeout=50.0)
            assert report.remaining == 4
            assert setting.sink.applied[B] == [0, 1, 2, 3, 4]
            stats = batcher.stats()
            assert (stats.held_keys, stats.held_items) == (1, 4)
            assert [let_go(batcher, lane) for lane in (B, other, Lane("nobody", "k"), A)] == [
                0,
                0,
                0,
                4,
            ]
            assert batcher.stats().held_keys == 0
            assert await batcher.flush(timeout=50.0)
            assert setting.sink.applied[A] == [0, 2, 3, 4, 5]
            await clock.run_until_idle()
            assert tenants_inside(batcher) == 0

    on_virtual_time(main)
    assert not setting.sink.broken


def test_the_same_key_of_two_tenants_is_written_at_the_same_time() -> None:
    """G-T8, I5: they are two keys."""
    sink = Gate()

    async def main(clock: FakeClock) -> None:
        async with tenanted(sink, clock) as batcher:
            await batcher.add_many([*some(A, 0, 2), *some(B, 0, 2)])
            await clock.advance(5.0)
            assert sink.waiting == [(Item(A, 0),), (Item(B, 0),)]
            sink.open(1)
            await clock.advance(5.0)
            assert sink.waiting == [(Item(A, 0),), (Item(B, 1),)]
            sink.open()
            sink.open()
            await clock.advance(5.0)
            sink.open()

    on_virtual_time(main)
    assert sink.applied == {A: [0, 1], B: [0, 1]}


def test_two_tenants_fail_and_go_on_each_for_itself() -> None:
    """batcher/4a.10: held keys and items are counted over all tenants."""
    setting = Setting(Item(A, 0), Item(B, 1))

    async def main(clock: FakeClock) -> None:
        async with tenanted(setting.stack, clock, on_key_failure="pause") as batcher:
            await batcher.add_many([*some(A, 0, 4), *some(B, 0, 4)])
            await clock.advance(20.0)
            stats = batcher.stats()
            assert (stats.held_keys, stats.held_items) == (2, 5)
            assert let_go(batcher, A) == 3
            await clock.advance(20.0)
            assert setting.sink.applied == {A: [1, 2, 3], B: [0]}
            stats = batcher.stats()
            assert (stats.held_keys, stats.held_items) == (1, 2)
            assert let_go(batcher, B) == 2

    on_virtual_time(main)
    assert setting.sink.applied == {A: [1, 2, 3], B: [0, 2, 3]}


def test_a_tenant_is_remembered_while_a_key_of_its_is_held() -> None:
    """batcher/4a.9, 4a.10: although it has no pending item; it is forgotten when the key is
    released.
    """
    setting = Setting(Item(A, 0))

    async def main(clock: FakeClock) -> None:
        async with tenanted(setting.stack, clock, on_key_failure="pause") as batcher:
            await batcher.add(Item(A, 0))
            await batcher.add(Item(B, 0))
            await clock.advance(5.0)
            assert tenants_inside(batcher) == 1
            assert (batcher.stats().held_keys, batcher.tally().inside) == (1, 0)
            await batcher.add(Item(A, 1))
            await clock.advance(5.0)
            assert A not in setting.sink.applied
            assert let_go(batcher, A) == 1
            await clock.advance(5.0)
            assert setting.sink.applied[A] == [1]
            setting.bad.add(Item(A, 2))
            await batcher.add(Item(A, 2))
            await clock.advance(5.0)
            assert tenants_inside(batcher) == 1
            assert let_go(batcher, A) == 0
            assert tenants_inside(batcher) == 0

    on_virtual_time(main)


def test_each_tenant_parks_so_many_and_spills_the_oldest_in_order() -> None:
    """batcher/4a.10, consumer/C:N4: the limit applies to a key of one tenant, and letters name the
    tenant.
    """
    setting = Setting(Item(A, 0), Item(B, 0))

    async def main(clock: FakeClock) -> None:
        async with tenanted(
            setting.stack, clock, on_key_failure="park", max_parked_items=5
        ) as batcher:
            receipts = [
                await batcher.submit(item)
                for pair in zip(some(A, 0, 30), some(B, 0, 30), strict=True)
                for item in pair
            ]
            await clock.advance(20.0)
            for lane in (A, B):
                letters = [letter for letter in setting.letters if letter.item.key == lane]
                assert [letter.item.number for letter in letters] == list(range(25))
                assert [letter.parked_behind for letter in letters] == [False] + [True] * 24
                assert {(letter.tenant, letter.item_key) for letter in letters} == {
                    (lane.tenant, "k")
                }
                assert (
                    letters[1].message
                    == "parked behind an earlier failed item of its key 'k' of tenant "
                    f"{lane.tenant!r}"
                )
            assert {receipt.outcome for receipt in receipts[:50]} == {Outcome.DEAD_LETTERED}
            assert batcher.stats().held_items == 10
            assert let_go(batcher, A) == 5
            await batcher.add_many([Item(A, 30), Item(B, 30)])
            await clock.advance(20.0)
            assert setting.sink.applied == {A: list(range(25, 31))}
            assert setting.letters[-1].item == Item(B, 25)
            assert let_go(batcher, B) == 5

    on_virtual_time(main)
    assert setting.sink.applied == {A: list(range(25, 31)), B: list(range(26, 31))}
    assert not setting.sink.broken


@pytest.mark.parametrize("prefix_safe", [False, True])
def test_fail_rejects_what_comes_after_in_that_tenant(*, prefix_safe: bool) -> None:
    """batcher/4a.10: the error names both, and failed items take no capacity."""
    setting = Setting(Item(A, 1), prefix_safe=prefix_safe)

    async def main(clock: FakeClock) -> None:
        caps = Tenants(max_pending_items=4)
        async with tenanted(setting.stack, clock, on_key_failure="fail", tenants=caps) as batcher:
            receipts = [await batcher.submit(item) for item in some(A, 0, 4)]
            await batcher.add(Item(B, 0))
            await clock.advance(20.0)
            assert [receipt.outcome for receipt in receipts] == [
                Outcome.DELIVERED, Outcome.DEAD_LETTERED, Outcome.REJECTED, Outcome.REJECTED,
            ]  # fmt: skip
            with pytest.raises(ItemFailed, match="an earlier item of its key has failed"):
                await receipts[3]
            for add in (batcher.add, batcher.submit):
                with pytest.raises(
                    KeyFailedError,
                    match=r"'k' of tenant 'acme' has failed .* until resume\(key, tenant=\.\.\.\)",
                ) as caught:
                    await add(Item(A, 4))
                assert (caught.value.key, caught.value.tenant) == ("k", "acme")
            assert not batcher.try_add(Item(A, 4))
            assert batcher.tally().refused == 3
            await batcher.add_many(some(Lane("acme", "other"), 0, 4), timeout=0)
            await batcher.add(Item(B, 1))
            assert (batcher.stats().held_keys, batcher.stats().held_items) == (1, 0)
            assert await batcher.flush()
            assert let_go(batcher, A) == 0
            await batcher.add(Item(A, 5))
            await clock.advance(20.0)
            assert setting.sink.applied == {
                A: [0, 5],
                B: [0, 1],
                Lane("acme", "other"): [0, 1, 2, 3],
            }
            assert tenants_inside(batcher) == 0

    on_virtual_time(main)
    assert not setting.sink.broken


@pytest.mark.parametrize("policy", ["pause", "park", "fail"])
def test_what_tenants_hold_is_handed_back_by_a_shutdown(policy: Any) -> None:
    """batcher/4b.1: at once, in order per key, and counted."""
    setting = Setting(Item(A, 0), Item(B, 0))

    async def main(clock: FakeClock) -> None:
        async with tenanted(setting.stack, clock, on_key_failure=policy) as batcher:
            await batcher.add_many([Item(A, 0), Item(B, 0)])
            if policy != "fail":
                await clock.advance(5.0)
            receipts = [await batcher.submit(item) for item in (*some(A, 1, 4), *some(B, 1, 3))]
            report = await batcher.shutdown()
            assert [item for item in report.unsent if item.key == A] == some(A, 1, 4)
            assert [item for item in report.unsent if item.key == B] == some(B, 1, 3)
            assert {receipt.outcome for receipt in receipts} == {Outcome.UNSENT}
            assert (report.parked, len(report.unsent)) == (5, 5)
            assert report.seconds <= 0.5
            report.verify()

    on_virtual_time(main)


# -- a tenant full of held items -------------------------------------------------------------------


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


# -- several items of a key in one batch -----------------------------------------------------------


def test_a_batch_takes_all_of_a_tenants_key_and_stops_behind_a_failed_one() -> None:
    """batcher/4a.10, consumer/G-T8, I5: without failures, one write per tenant; items behind the
    bad one follow it.
    """
    setting = Setting(Item(A, 3), Item(A, 5), prefix_safe=True)

    async def main(clock: FakeClock) -> None:
        async with tenanted(setting.stack, clock) as batcher:
            await batcher.add_many([*some(A, 0, 8), *some(B, 0, 8)])
            await clock.advance(20.0)
            writes = [
                [item.number for item in batch]
                for batch in setting.sink.batches
                if batch[0].key == A
            ]
            assert writes == [[*range(8)], [4, 5, 6, 7], [6, 7]]
            assert [batch for batch in setting.sink.batches if batch[0].key == B] == [
                tuple(some(B, 0, 8))
            ]
            assert setting.buried == [3, 5]
            assert tenants_inside(batcher) == 0

    on_virtual_time(main)
    assert setting.sink.applied == {A: [0, 1, 2, 4, 6, 7], B: [*range(8)]}
    assert not setting.sink.broken


def test_what_stands_behind_an_item_that_is_tried_again_is_tried_with_it() -> None:
    """I5: only the failed item counts its attempts, without waiting for the other tenant's
    batch.
    """
    tries: list[tuple[Item, ...]] = []

    async def perform(sink: Destination, batch: Batch[Item]) -> WriteResult | None:
        tries.append(tuple(batch))
        if batch.tenant == "bolt" or sum(items[0].key == A for items in tries) > 2:
            sink.apply(*batch)
            return None
        sink.apply(*(item for item in batch if item.number < 2))
        refused = {
            index: TransientError("not now") for index, item in enumerate(batch) if item.number >= 2
        }
        return WriteResult.failed(batch, refused)

    sink = Destination(perform, prefix_safe=True)

    async def main(clock: FakeClock) -> None:
        async with tenanted(
            stack(sink, Retry(backoff=Backoff(base=5.0, longest=5.0))), clock
        ) as batcher:
            await batcher.add_many(some(A, 0, 4))
            await clock.advance(1.5)
            await batcher.add_many(some(B, 0, 4))
            await clock.advance(100.0)

    on_virtual_time(main)
    assert sink.applied == {A: [0, 1, 2, 3], B: [0, 1, 2, 3]}
    assert [items for items in tries if items[0].key == A][1:] == [tuple(some(A, 2, 4))] * 2
    assert [items for items in tries if items[0].key == B] == [tuple(some(B, 0, 4))]
    assert not sink.broken


# -- in threads, and wrongly -----------------------------------------------------------------------


def test_threads_let_a_tenants_key_go() -> None:
    """batcher/4a.10: `BlockingBatcher` has the same methods."""
    setting = Setting(Item(A, 0), seconds=0.0)
    with BlockingBatcher(
        setting.stack, key=key_of, tenant=tenant_of, limits=IN_THREADS, on_key_failure="park"
    ) as batcher:
        receipts = [batcher.submit(item) for item in some(A, 0, 3)]
        assert receipts[0].result() is Outcome.DEAD_LETTERED
        assert batcher.deliver(Item(B, 0)) is Outcome.DELIVERED
        batcher.flush()
        assert batcher.stats().held_items == 2
        assert batcher.unpark("k", tenant="bolt") == 0
        assert batcher.unpark("k", tenant="acme") == 2
        assert receipts[2].result() is Outcome.DELIVERED
    assert setting.sink.applied == {A: [1, 2], B: [0]}


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
        assert batcher.deliver(Item(A, 0)) is Outcome.DEAD_LETTERED
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


def test_threads_are_told_that_a_tenants_key_has_failed() -> None:
    """batcher/4a.10: like producers on the loop."""
    setting = Setting(Item(A, 0), seconds=0.0)
    with BlockingBatcher(
        setting.stack, key=key_of, tenant=tenant_of, limits=IN_THREADS, on_key_failure="fail"
    ) as batcher:
        assert batcher.deliver(Item(A, 0)) is Outcome.DEAD_LETTERED
        batcher.flush()
        with pytest.raises(KeyFailedError, match="of tenant 'acme'"):
            batcher.add(Item(A, 1))
        assert not batcher.try_add(Item(A, 1))
        assert batcher.deliver(Item(B, 1)) is Outcome.DELIVERED
        assert batcher.resume("k", tenant="acme") == 0
        assert batcher.deliver(Item(A, 2)) is Outcome.DELIVERED


@pytest.mark.parametrize("kind", [Batcher, BlockingBatcher])
def test_a_tenant_is_needed_exactly_where_there_are_tenants(kind: Any) -> None:
    """batcher/B46."""
    options: dict[str, Any] = {"key": key_of, "on_key_failure": "pause"}
    with pytest.raises(
        ConfigError, match=r"tenant='acme': resume\(\) takes none, since the batcher has no tenant="
    ):
        kind(Destination(), **options).resume("k", tenant="acme")
    with_tenants = kind(Destination(), tenant=tenant_of, **options)
    with pytest.raises(
        ConfigError, match=r"resume\('k'\) needs tenant=, since the batcher has tenants"
    ):
        with_tenants.resume("k")
    with pytest.raises(ConfigError, match=r"unpark\(\) needs one of park"):
        with_tenants.unpark("k", tenant="acme")
    with pytest.raises(TypeError, match="has no hash"):
        with_tenants.resume("k", tenant=[])
    assert with_tenants.resume("k", tenant=None) == 0, "None is a tenant like any other"


def test_a_policy_needs_a_key_of_the_tenant() -> None:
    """batcher/B46."""
    with pytest.raises(ConfigError, match="has no effect without key="):
        Batcher(Destination(), tenant=tenant_of, on_key_failure="pause")
