"""The deciding classes, without loop, clock or I/O. White box: these classes alone."""

from __future__ import annotations

from gatherers import Plain
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Receipt
from sluicegate.batcher import Reason
from sluicegate.batcher.flight import FifoSlots
from sluicegate.batcher.gathering.pack import Sealed


def drained(gatherer: Plain[int], now: float) -> list[Sealed[int]]:
    taken: list[Sealed[int]] = []
    while (sealed := gatherer.take(now)) is not None:
        taken.append(sealed)
    return taken


@given(
    sizes=st.lists(st.integers(0, 12), max_size=60),
    max_items=st.integers(1, 6),
    max_bytes=st.none() | st.integers(1, 20),
)
def test_batches_hold_every_item_once_in_order_within_the_limits(
    sizes: list[int], max_items: int, max_bytes: int | None
) -> None:
    """An item larger than the limit is alone in its batch."""
    gatherer: Plain[int] = Plain(
        max_items=max_items, max_bytes=max_bytes, max_delay=1.0, sized=True
    )
    for item, size in enumerate(sizes):
        gatherer.offer_one(item, size, None, float(item))
        assert len(gatherer.items) < max_items
    gatherer.seal(Reason.SHUTDOWN, 1e9)
    batches = drained(gatherer, 1e9)
    assert [item for batch in batches for item in batch.items] == list(range(len(sizes)))
    for batch in batches:
        assert 1 <= len(batch.items) <= max_items
        assert batch.sizes == [sizes[item] for item in batch.items]
        assert max_bytes is None or batch.bytes <= max_bytes or len(batch.items) == 1
        assert batch.oldest_at == float(batch.items[0])
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
    assert gatherer.queued == 0


def test_the_oldest_item_can_be_given_up_without_confusing_the_receipts() -> None:
    """Sealed batches first, then the open one; the remaining items keep their receipts."""
    gatherer: Plain[int] = Plain(max_items=2, max_bytes=None, max_delay=1.0, sized=True)
    receipts = [Receipt() for _ in range(5)]
    for item in range(5):
        gatherer.offer_one(item, 10, receipts[item], 0.0)
    gone = [gatherer.evict_oldest() for _ in range(3)]
    assert [evicted.item for evicted in gone if evicted] == [0, 1, 2]
    assert [evicted.receipt for evicted in gone if evicted] == receipts[:3]
    (left,) = drained(gatherer, 0.5)
    assert left.items == [3]
    assert left.receipts == {0: receipts[3]}
    assert left.bytes == 10
    last = gatherer.evict_oldest()
    assert last is not None
    assert last.item == 4
    assert gatherer.evict_oldest() is None
    assert gatherer.due_at() is None


def test_a_forced_slot_is_paid_back_before_anybody_gets_one() -> None:
    """Rule 2 of the slots."""
    slots = FifoSlots(1)
    slots.take()
    slots.take()
    assert not slots.grant()
    slots.give()
    assert not slots.free
    slots.give()
    assert slots.free
