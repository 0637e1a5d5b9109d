"""Columns of items: those of one add, the open batch and the sealed ones; the numbers of batches."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from ..._core.batch import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence

    from ..receipt import Resolvable

    Matches = Callable[[Resolvable], bool]


T = TypeVar("T")


class Evicted(NamedTuple, Generic[T]):
    """A queued item removed to make room."""

    item: T
    size: int
    receipt: Resolvable | None


class Leftover(NamedTuple, Generic[T]):
    """An item that is in no flight and known not to be applied."""

    item: T
    receipt: Resolvable | None
    number: int
    """The number of its batch."""
    tenant: object = None


@dataclass(slots=True)
class Sealed(Generic[T]):
    """A complete batch, before and during its write."""

    items: list[T]
    reason: Reason
    number: int
    """Ascending number, per sealed batch or, with keys, per era."""
    oldest_at: float
    sealed_at: float
    receipts: dict[int, Resolvable]
    sizes: list[int] | None = None
    bytes: int = 0
    keys: list[object] | None = None
    """The items' keys as given."""
    lanes: list[Hashable] = field(default_factory=list[Hashable])
    """The identities of the items' keys in the lanes."""
    counts: Counter[Hashable] | None = None
    """Number of unfinished items of each key; set when the first one ends."""
    tenant: object = None
    owner: object = None
    """The tenant's queue."""
    spilled: bool = False
    """Whether it is dead-lettered without an attempt."""
    keeps_prefix: bool = False
    """Whether an item waits for the success of the previous one of its key."""

    def keyed(self, lanes: list[Hashable], keys: list[object], *, keeps_prefix: bool) -> None:
        """Set the keys of its items."""
        self.lanes = lanes
        self.keys = keys
        self.keeps_prefix = keeps_prefix

    def belongs_to(self, tenant: object, owner: object) -> None:
        """Set its tenant."""
        self.tenant = tenant
        self.owner = owner

    def spill(self) -> None:
        """Mark it to be dead-lettered without an attempt."""
        self.spilled = True

    def count_down(self, key: Hashable) -> int:
        """Count an ended item of this key; return the number of its unfinished items."""
        if self.counts is None:
            self.counts = Counter(self.lanes)
            self.counts[key] += 1  # already taken out of `lanes`
        self.counts[key] -= 1
        return self.counts[key]

    def size_of(self, indices: Sequence[int]) -> int:
        """Return the bytes of these items; 0 without sizes."""
        sizes = self.sizes
        if sizes is None:
            return 0
        return self.bytes if len(indices) == len(sizes) else sum(sizes[i] for i in indices)

    def indices_from(self, at: int) -> tuple[list[int], list[int]]:
        """Split the indices from `at` on: keys that do not occur before it, and keys that do."""
        before = set(self.lanes[:at])
        rest: list[int] = []
        again: list[int] = []
        for index, key in enumerate(self.lanes[at:], at):
            (again if key in before else rest).append(index)
        return rest, again

    def pick(self, indices: Sequence[int]) -> Sealed[T]:
        """Return a batch of these items, otherwise equal."""
        old, sizes = self.receipts, None if self.sizes is None else [self.sizes[i] for i in indices]
        return replace(
            self,
            items=[self.items[i] for i in indices],
            receipts={n: old[i] for n, i in enumerate(indices) if i in old},
            sizes=sizes,
            bytes=sum(sizes or ()),
            keys=None if self.keys is None else [self.keys[i] for i in indices],
            lanes=[self.lanes[i] for i in indices] if self.lanes else [],
        )

    def pop_first(self) -> Evicted[T]:
        """Evict the first item."""
        evicted = _pop_first(self.items, self.receipts, self.sizes)
        self.bytes -= evicted.size
        for column in (self.keys, self.lanes):
            if column:
                column.pop(0)
        return evicted

    def parted(self, matches: Matches) -> tuple[Sealed[T] | None, Sealed[T] | None]:
        """Split off the items with matching receipts: the rest, and these; `None` for no items."""
        gone = sorted(matching(self.receipts, matches))
        if not gone:
            return self, None
        left = others(len(self.items), gone)
        return (self.pick(left) if left else None), self.pick(gone)

    def leftovers(self) -> list[Leftover[T]]:
        """Return its items as evicted."""
        receipts, number = self.receipts, self.number
        return [Leftover(item, receipts.get(i), number) for i, item in enumerate(self.items)]


class ByteRoom(Protocol):
    """The bytes that the fast path may add."""

    def allow(self, filled: int) -> None:
        """Set the bytes, with `filled` bytes in the open batch."""
        ...


class Pack(Generic[T]):
    """The open batch as parallel columns. `make` builds its list of items; with a `scale` the fast
    path takes measured items.
    """

    __slots__ = ("_make", "_sized", "bytes", "items", "oldest_at", "receipts", "scale", "sizes")

    def __init__(
        self, *, sized: bool, make: Callable[[], list[T]] = list, scale: ByteRoom | None = None
    ) -> None:
        self._sized = sized
        self._make = make
        self.scale = scale
        self.oldest_at = 0.0
        self._renew()

    def _renew(self) -> None:
        self.items = self._make()
        """The fast path appends here while it is shorter than the window's limit."""
        self.receipts: dict[int, Resolvable] = {}
        """The receipts, by index."""
        self.sizes: list[int] | None = [] if self._sized else None
        self.bytes = 0

    def begin(self, at: float) -> None:
        """Start the batch's time with its first item."""
        self.oldest_at = at

    def exceeds(self, max_bytes: int | None, size: int) -> bool:
        """Return whether an item of this size would exceed `max_bytes`."""
        return max_bytes is not None and bool(self.items) and self.bytes + size > max_bytes

    def add(self, item: T, size: int, receipt: Resolvable | None, at: float) -> None:
        """Append an item that was accepted at `at`."""
        if not self.items or at < self.oldest_at:
            self.oldest_at = at
        if receipt is not None:
            self.receipts[len(self.items)] = receipt
        self.items.extend((item,))  # bypass the fast path, which `append` may be
        self.weigh(size)

    def note(self, receipts: Sequence[Resolvable | None], start: int) -> None:
        """Note the receipts of items appended from index `start` on."""
        for index, receipt in enumerate(receipts, start):
            if receipt is not None:
                self.receipts[index] = receipt

    def weigh(self, size: int) -> None:
        """Note the size of an item just appended."""
        if self.sizes is not None:
            self.sizes.append(size)
            self.bytes += size

    def weigh_all(self, sizes: Sequence[int]) -> None:
        """Like `weigh`, for several items."""
        if self.sizes is not None:
            self.sizes.extend(sizes)
            self.bytes += sum(sizes)

    def full(self, max_items: int, max_bytes: int | None) -> Reason | None:
        """Return the reason why the batch is complete; `None` if it is not."""
        if len(self.items) >= max_items:
            return Reason.SIZE
        if max_bytes is not None and self.bytes >= max_bytes:
            return Reason.BYTES
        return None

    def seal(self, reason: Reason, number: int, now: float) -> Sealed[T]:
        """Empty the pack into a sealed batch."""
        items, receipts, sizes, size = self.items, self.receipts, self.sizes, self.bytes
        sealed = Sealed(items, reason, number, self.oldest_at, now, receipts, sizes, size)
        self._renew()
        return sealed

    def withdraw(self, matches: Matches, number: int) -> Sealed[T] | None:
        """Remove the items with matching receipts; return them as a batch, or `None` if there are
        none.
        """
        gone = sorted(matching(self.receipts, matches))
        if not gone:
            return None
        columns = (list(self.items), self.receipts.copy(), self.sizes and list(self.sizes))
        items, receipts, sizes = columns
        whole = Sealed(items, Reason.MANUAL, number, self.oldest_at, 0.0, receipts, sizes)
        left = whole.pick(others(len(items), gone))
        self.items[:] = left.items
        self.receipts.clear()
        self.receipts.update(left.receipts)
        if left.sizes is not None:
            self.sizes, self.bytes = left.sizes, left.bytes
        return whole.pick(gone)

    def pop_first(self) -> Evicted[T]:
        """Evict the first item."""
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
        """The time at which the first item of the first batch was accepted."""
        return self.batches[0].oldest_at if self.batches else None

    def until(self, number: int) -> int:
        """Count the items in batches up to this number."""
        return sum(len(batch.items) for batch in self.batches if batch.number <= number)

    def pop_item(self) -> Evicted[T]:
        """Evict the first item of the first batch."""
        batch = self.batches[0]
        evicted = batch.pop_first()
        if not batch.items:
            self.batches.popleft()
        return evicted

    def withdraw(self, matches: Matches) -> list[Sealed[T]]:
        """Remove the items with matching receipts; return them as batches."""
        parts = [batch.parted(matches) for batch in self.batches]
        self.batches = deque(left for left, _ in parts if left is not None)
        return [gone for _, gone in parts if gone is not None]

    def clear(self) -> list[Leftover[T]]:
        """Evict all items."""
        gone = [leftover for batch in self.batches for leftover in batch.leftovers()]
        self.batches.clear()
        return gone


def matching(receipts: Mapping[int, Resolvable], matches: Matches) -> list[int]:
    """Return the indices of the matching receipts."""
    return [index for index, receipt in receipts.items() if matches(receipt)]


def others(count: int, indices: Collection[int]) -> list[int]:
    """Return the indices below `count` that are not among these."""
    known = set(indices)
    return [index for index in range(count) if index not in known]


def oldest_of(queue: Queue[T], pack: Pack[T]) -> float | None:
    """Return the time at which the oldest item in a sealed or the open batch was accepted."""
    return pack.oldest_at if not queue and pack.items else queue.oldest_at


def _pop_first(
    items: list[T], receipts: dict[int, Resolvable], sizes: list[int] | None
) -> Evicted[T]:
    receipt = receipts.pop(0, None)
    later = {index - 1: other for index, other in receipts.items()}
    receipts.clear()
    receipts.update(later)
    return Evicted(items.pop(0), sizes.pop(0) if sizes is not None else 0, receipt)


class AddGroup(NamedTuple, Generic[T]):
    """Items of one call, all accepted or none; a column is `None` if it is not used."""

    items: tuple[T, ...]
    sizes: tuple[int, ...] | None = None
    receipts: tuple[Resolvable | None, ...] | None = None
    keys: tuple[Hashable, ...] | None = None

    @property
    def bytes(self) -> int:
        """The total size; 0 without sizes."""
        return 0 if self.sizes is None else sum(self.sizes)

    def part(self, start: int, end: int | None) -> AddGroup[T]:
        """Return a part of the group."""
        cut = slice(start, end)
        return AddGroup(
            self.items[cut],
            None if self.sizes is None else self.sizes[cut],
            None if self.receipts is None else self.receipts[cut],
            None if self.keys is None else self.keys[cut],
        )

    def rows(self) -> Iterator[tuple[T, int, Resolvable | None, Hashable]]:
        """Yield each item with its size, receipt and key."""
        count = len(self.items)
        nothing, sizes = (None,) * count, self.sizes or (0,) * count
        return zip(self.items, sizes, self.receipts or nothing, self.keys or nothing, strict=True)


class Numbers:
    """Ascending batch numbers across all tenants: a fence applies to all of them."""

    __slots__ = ("_is_shared", "last")

    def __init__(self) -> None:
        self.last = 0
        """The last assigned number. Items accepted now get a later one."""
        self._is_shared = False

    def next(self) -> int:
        """Return the number of the next batch."""
        if self._is_shared:
            return self.last + 1
        self.last += 1
        return self.last

    @contextmanager
    def shared(self) -> Generator[None]:
        """Assign one number to all batches sealed inside the context."""
        self._is_shared = True
        try:
            yield
        finally:
            self._is_shared = False
            self.last += 1
