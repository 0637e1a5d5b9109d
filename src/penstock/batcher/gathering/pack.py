"""Columns of items: the open batch, and the sealed batches that follow from it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ..._core.lineage import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..receipt import ReceiptBase

T = TypeVar("T")


class Evicted(NamedTuple, Generic[T]):
    """A queued item that was given up to make room."""

    item: T
    size: int
    receipt: ReceiptBase | None


class Leftover(NamedTuple, Generic[T]):
    """An item that is in no flight, and known not to be applied."""

    item: T
    receipt: ReceiptBase | None
    number: int
    """Its batch's."""
    size: int = 0
    tenant: object = None


@dataclass(slots=True)
class Sealed(Generic[T]):
    """A batch that is complete, before and during its write."""

    items: list[T]
    reason: Reason
    number: int
    """Grows with every batch sealed, or with every era of the lanes."""
    oldest_at: float
    sealed_at: float
    receipts: dict[int, ReceiptBase]
    sizes: list[int] | None = None
    bytes: int = 0
    keys: list[object] | None = None
    """The items' keys as they were given."""
    lanes: list[Hashable] = field(default_factory=list[Hashable])
    """The items' keys as the lanes know them."""
    counts: Counter[Hashable] | None = None
    """Items of each key that have not ended, once some have."""
    tenant: object = None
    owner: object = None
    """The tenant's entry, as its gatherer knows it."""
    spilled: bool = False
    """Whether it goes to the dead letters without a try."""
    keeps_prefix: bool = False
    """Whether an item goes no further than the one before it of its key."""

    def keyed(self, lanes: list[Hashable], keys: list[object], *, keeps_prefix: bool) -> None:
        """Its items have keys."""
        self.lanes = lanes
        self.keys = keys
        self.keeps_prefix = keeps_prefix

    def belongs_to(self, tenant: object, owner: object) -> None:
        """Its items are a tenant's."""
        self.tenant = tenant
        self.owner = owner

    def spill(self) -> None:
        """It goes to the dead letters without a try."""
        self.spilled = True

    def count_down(self, key: Hashable) -> int:
        """An item of this key has ended; return how many of its items have not."""
        if self.counts is None:
            self.counts = Counter(self.lanes)
            self.counts[key] += 1  # it has been taken out of `lanes`
        self.counts[key] -= 1
        return self.counts[key]

    def size_of(self, indices: Sequence[int]) -> int:
        """Bytes of these items; 0 without sizes."""
        if self.sizes is None:
            return 0
        return (
            self.bytes if len(indices) == len(self.sizes) else sum(self.sizes[i] for i in indices)
        )

    def pick(self, indices: Sequence[int]) -> Sealed[T]:
        """A batch of these items, with everything else as it is here."""
        sizes = None if self.sizes is None else [self.sizes[index] for index in indices]
        return replace(
            self,
            items=[self.items[index] for index in indices],
            receipts={
                place: self.receipts[index]
                for place, index in enumerate(indices)
                if index in self.receipts
            },
            sizes=sizes,
            bytes=sum(sizes or ()),
            keys=None if self.keys is None else [self.keys[index] for index in indices],
            lanes=[self.lanes[index] for index in indices] if self.lanes else [],
        )

    def pop_first(self) -> Evicted[T]:
        """Give up the first item."""
        evicted = _pop_first(self.items, self.receipts, self.sizes)
        self.bytes -= evicted.size
        for column in (self.keys, self.lanes):
            if column:
                column.pop(0)
        return evicted

    def leftovers(self) -> list[Leftover[T]]:
        """Its items, given up."""
        return [
            Leftover(item, self.receipts.get(index), self.number)
            for index, item in enumerate(self.items)
        ]


class Pack(Generic[T]):
    """The open batch: parallel columns. `make` makes its list of items."""

    __slots__ = ("_make", "_sized", "bytes", "items", "oldest_at", "receipts", "sizes")

    def __init__(self, *, sized: bool, make: Callable[[], list[T]] = list) -> None:
        self._sized = sized
        self._make = make
        self.oldest_at = 0.0
        self._renew()

    def _renew(self) -> None:
        self.items = self._make()
        """The fast path appends here while it is shorter than the window's limit."""
        self.receipts: dict[int, ReceiptBase] = {}
        """By index."""
        self.sizes: list[int] | None = [] if self._sized else None
        self.bytes = 0

    def begin(self, at: float) -> None:
        """The first item has come: its time counts."""
        self.oldest_at = at

    def exceeds(self, max_bytes: int | None, size: int) -> bool:
        """Whether an item of this size would take the batch over `max_bytes`."""
        return max_bytes is not None and bool(self.items) and self.bytes + size > max_bytes

    def add(self, item: T, size: int, receipt: ReceiptBase | None, at: float) -> None:
        """Append an item that was accepted at `at`."""
        if not self.items or at < self.oldest_at:
            self.oldest_at = at
        if receipt is not None:
            self.receipts[len(self.items)] = receipt
        self.items.append(item)
        self.weigh(size)

    def weigh(self, size: int) -> None:
        """Note the size of an item just appended."""
        if self.sizes is not None:
            self.sizes.append(size)
            self.bytes += size

    def full(self, max_items: int, max_bytes: int | None) -> Reason | None:
        """Why the batch is complete; `None` if it is not."""
        if len(self.items) >= max_items:
            return Reason.SIZE
        if max_bytes is not None and self.bytes >= max_bytes:
            return Reason.BYTES
        return None

    def seal(self, reason: Reason, number: int, now: float) -> Sealed[T]:
        """Its content as a sealed batch; the pack is empty then."""
        sealed = Sealed(
            self.items,
            reason,
            number,
            self.oldest_at,
            now,
            self.receipts,
            self.sizes,
            self.bytes,
        )
        self._renew()
        return sealed

    def pop_first(self) -> Evicted[T]:
        """Give up the first item."""
        evicted = _pop_first(self.items, self.receipts, self.sizes)
        self.bytes -= evicted.size
        return evicted


class Queue(Generic[T]):
    """The sealed batches that no worker has taken, oldest first."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches: deque[Sealed[T]] = deque()

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def oldest_at(self) -> float | None:
        """When the first item of the first batch was accepted."""
        return self.batches[0].oldest_at if self.batches else None

    def add(self, batch: Sealed[T]) -> None:
        """Put a batch at the end."""
        self.batches.append(batch)

    def until(self, number: int) -> int:
        """Items in batches up to this number."""
        return sum(len(batch.items) for batch in self.batches if batch.number <= number)

    def pop_item(self) -> Evicted[T]:
        """Give up the first item of the first batch."""
        batch = self.batches[0]
        evicted = batch.pop_first()
        if not batch.items:
            self.batches.popleft()
        return evicted

    def clear(self) -> list[Leftover[T]]:
        """Give up everything."""
        gone = [leftover for batch in self.batches for leftover in batch.leftovers()]
        self.batches.clear()
        return gone


def oldest_of(queue: Queue[T], pack: Pack[T]) -> float | None:
    """When the oldest item in a batch was accepted, sealed or open."""
    return pack.oldest_at if not queue and pack.items else queue.oldest_at


def _pop_first(
    items: list[T], receipts: dict[int, ReceiptBase], sizes: list[int] | None
) -> Evicted[T]:
    receipt = receipts.pop(0, None)
    later = {index - 1: other for index, other in receipts.items()}
    receipts.clear()
    receipts.update(later)
    return Evicted(items.pop(0), sizes.pop(0) if sizes is not None else 0, receipt)
