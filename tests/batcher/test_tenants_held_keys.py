"""A key is unique within its tenant: the effects of a failed item on it and on other tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from keyed_help import Destination, Gate, Item, Lane, Setting, on_virtual_time, some
from tenant_keys_help import A, B, let_go, tenanted, tenants_inside

from sluicegate import Backoff, ItemFailed, Outcome, Retry, TransientError, WriteResult, stack
from sluicegate.batcher import Tenants
from sluicegate.errors import KeyFailedError

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import FakeClock

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
