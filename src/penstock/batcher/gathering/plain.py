"""When is a batch full, when is it due, which one goes next: decided here, without clock, task or
I/O.

An accumulator answers five questions. `offer` takes an item in; `due_at` says when something will
be ready that is not ready now; `take` gives the next batch that may go; `done` hears that it has
ended; `evict_oldest` gives up the oldest item that no worker has taken. This is the plain one:
arrival order.

1. A batch's time starts with its first item, and the first item always fits.
2. The open batch never exceeds `max_items`. It is sealed when it is full, before an item that would
   take it over `max_bytes`, when it is due and somebody takes it, or when told to.
3. A batch that is due while nobody takes it goes on filling.
4. A new `max_items` holds for everything that nobody has taken: what is open and has reached it is
   sealed, and what was sealed larger is cut when it is taken. The parts keep reason, number and
   times.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from ..._core.lineage import Reason

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from ..._core.ledger import Waiter
    from ..receipt import ReceiptBase
    from ..report import TenantStats
    from .tenants import Reservation

T = TypeVar("T")


@dataclass(slots=True)
class Sealed(Generic[T]):
    """A batch that has ended filling, not yet on its way."""

    items: list[T]
    reason: Reason
    number: int
    """Counts up with every batch sealed."""
    oldest_at: float
    sealed_at: float
    receipts: dict[int, ReceiptBase]
    sizes: list[int] | None = None
    bytes: int = field(default=0)
    keys: list[object] | None = None
    tenant: object = None
    share: object = None
    """Its tenant's part of the ledger."""
    spilled: bool = False
    """Whether it goes to the dead letters without having been tried."""
    keeps_prefix: bool = False
    """Whether items of a key go no further than the one before them."""


@dataclass(frozen=True, slots=True)
class Evicted(Generic[T]):
    """An item given up before any worker took it."""

    item: T
    size: int
    receipt: ReceiptBase | None


class Leftover(NamedTuple, Generic[T]):
    """An item that is on no flight, and known not to be applied."""

    item: T
    receipt: ReceiptBase | None
    number: int
    """Its batch's."""
    size: int = 0
    tenant: object = None


class Accumulator(Protocol[T]):
    """What an engine asks. See the module's docstring for the five questions, and
    `PlainAccumulator` for what each member means.
    """

    items: list[T]
    receipts: dict[int, ReceiptBase]
    last_number: int
    max_items: int

    @property
    def keeps_order(self) -> bool: ...
    @property
    def holds_keys(self) -> bool: ...
    @property
    def queued(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def held_keys(self) -> int: ...
    @property
    def tenants(self) -> int: ...
    @property
    def sealed(self) -> int: ...
    @property
    def is_ready(self) -> bool: ...
    @property
    def open_items(self) -> int: ...
    @property
    def oldest_at(self) -> float | None: ...
    @property
    def spare(self) -> int: ...
    def queued_until(self, number: int) -> int: ...
    def held_until(self, number: int) -> int: ...
    def identity(self, item: T) -> Hashable: ...
    def wants(self, keys: Sequence[Hashable], sizes: Sequence[int]) -> Sequence[Reservation[T]]: ...
    def turn_away(self) -> list[Waiter]: ...
    def busiest(self, most: int, now: float) -> list[TenantStats]: ...
    def offer(
        self, item: T, size: int, receipt: ReceiptBase | None, now: float, key: Hashable
    ) -> None: ...
    def offer_all(self, items: Sequence[T], now: float) -> None: ...
    def begin(self, now: float) -> None: ...
    def seal(self, reason: Reason, now: float) -> None: ...
    def due_at(self) -> float | None: ...
    def take(self, now: float) -> Sealed[T] | None: ...
    def resize(self, max_items: int, now: float) -> None: ...
    def settled(self, batch: Sealed[T], indices: Sequence[int]) -> None: ...
    def stop(self, batch: Sealed[T], indices: Sequence[int]) -> None: ...
    def let_go(self, key: Hashable, now: float) -> int: ...
    def begin_stop(self) -> None: ...
    def failed(self) -> list[Leftover[T]]: ...
    def put_back(self, batch: Sealed[T], indices: Sequence[int]) -> None: ...
    def done(self, batch: Sealed[T], failed: Sequence[int]) -> None: ...
    def evict_oldest(self) -> Evicted[T] | None: ...
    def clear(self, now: float) -> list[Leftover[T]]: ...


class PlainAccumulator(Generic[T]):
    """Items in arrival order. Times are monotonic seconds, given by the caller."""

    def __init__(
        self, *, max_items: int, max_bytes: int | None, max_delay: float, sized: bool
    ) -> None:
        self.max_items = max_items
        """Items in a batch, from now on."""
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._sized = sized
        self._sealed: deque[Sealed[T]] = deque()
        self._sealed_items: int = 0
        self._oldest_at = 0.0
        self._open_bytes: int = 0
        self.last_number = 0
        """The number of the batch sealed last."""
        self._sizes: list[int] | None = None
        self.items: list[T] = []
        """The open batch. The batcher's fast path appends here while it is neither empty nor about
        to be full.
        """
        self.receipts: dict[int, ReceiptBase] = {}
        """The receipts of the open batch's items, by index."""
        self._fresh()

    def _fresh(self) -> None:
        self.items = []
        self.receipts = {}
        self._sizes = [] if self._sized else None
        self._open_bytes = 0

    @property
    def queued(self) -> int:
        """Items that no worker has taken."""
        return self._sealed_items + len(self.items)

    @property
    def queued_bytes(self) -> int:
        """Their size; 0 where nothing measures it."""
        return sum(batch.bytes for batch in self._sealed) + self._open_bytes if self._sized else 0

    @property
    def sealed(self) -> int:
        """Sealed batches that no worker has taken."""
        return len(self._sealed)

    @property
    def is_ready(self) -> bool:
        """Whether there is a batch that may go, whatever the time."""
        return bool(self._sealed)

    keeps_order = False
    """Whether items stay in order though a batch that backs off gives its slot away."""
    holds_keys = False
    """Whether an item that fails for good stops what comes after it of its key."""

    def wants(self, keys: Sequence[Hashable], sizes: Sequence[int]) -> Sequence[Reservation[T]]:
        """What parts of the ledger are to take in: there are no parts here."""
        return ()

    def turn_away(self) -> list[Waiter]:
        """Everybody who waits for one of them."""
        return []

    @property
    def held(self) -> int:
        """Those of them that stay until somebody says otherwise: none, here."""
        return 0

    @property
    def held_keys(self) -> int:
        """The keys that hold them."""
        return 0

    @property
    def tenants(self) -> int:
        """How many tenants have something inside: nobody asks whose an item is, here."""
        return 0

    def busiest(self, most: int, now: float) -> list[TenantStats]:
        """The tenants with the most items inside: none, here."""
        return []

    @property
    def open_items(self) -> int:
        """Items in the open batch."""
        return len(self.items)

    @property
    def oldest_at(self) -> float | None:
        """When the oldest item here was accepted."""
        if self._sealed:
            return self._sealed[0].oldest_at
        return self._oldest_at if self.items else None

    def queued_until(self, number: int) -> int:
        """Items in sealed batches up to this number that no worker has taken."""
        return sum(len(batch.items) for batch in self._sealed if batch.number <= number)

    @property
    def spare(self) -> int:
        """How many items may come in by the short way before anything follows from that."""
        return (
            self.max_items - 1 - len(self.items) if self.items else 0
        )  # the first one needs the time

    def begin(self, now: float) -> None:
        """The open batch has begun just now."""
        self._oldest_at = now

    def identity(self, item: T) -> Hashable:
        """Items have no keys here."""
        return None

    def offer(
        self, item: T, size: int, receipt: ReceiptBase | None, now: float, key: Hashable = None
    ) -> None:
        """Take an item in; seal what that makes full."""
        if self._max_bytes is not None and self.items and self._open_bytes + size > self._max_bytes:
            self.seal(Reason.BYTES, now)
        if not self.items:
            self._oldest_at = now
        if receipt is not None:
            self.receipts[len(self.items)] = receipt
        self.items.append(item)
        if self._sizes is not None:
            self._sizes.append(size)
            self._open_bytes += size
        if len(self.items) >= self.max_items:
            self.seal(Reason.SIZE, now)
        elif self._max_bytes is not None and self._open_bytes >= self._max_bytes:
            self.seal(Reason.BYTES, now)

    def held_until(self, number: int) -> int:
        """Items in sealed batches up to this number that are held: none, here."""
        return 0

    def offer_all(self, items: Sequence[T], now: float) -> None:
        """As `offer` of one after the other, for items without size or receipt."""
        start = 0
        while start < len(items):
            if not self.items:
                self._oldest_at = now
            end = start + self.max_items - len(self.items)
            self.items.extend(items[start:end])
            start = end
            if len(self.items) >= self.max_items:
                self.seal(Reason.SIZE, now)

    def seal(self, reason: Reason, now: float) -> None:
        """End the open batch, if it holds anything."""
        if not self.items:
            return
        self.last_number += 1
        self._sealed.append(
            Sealed(
                self.items,
                reason,
                self.last_number,
                self._oldest_at,
                now,
                self.receipts,
                self._sizes,
                self._open_bytes,
            )
        )
        self._sealed_items += len(self.items)
        self._fresh()

    def due_at(self) -> float | None:
        """When the open batch is due; `None` while it is empty."""
        return self._oldest_at + self._max_delay if self.items else None

    def take(self, now: float) -> Sealed[T] | None:
        """The next batch that may go: the oldest sealed one, or the open one if it is due."""
        if not self._sealed and self.items and now >= self._oldest_at + self._max_delay:
            self.seal(Reason.TIME, now)
        if not self._sealed:
            return None
        taken = self._sealed.popleft()
        if len(taken.items) > self.max_items:
            taken, rest = self._cut(taken, self.max_items)
            if rest.items:
                self._sealed.appendleft(rest)
        self._sealed_items -= len(taken.items)
        return taken

    def resize(self, max_items: int, now: float) -> None:
        """Change `max_items`, for all that nobody has taken."""
        self.max_items = max_items
        if len(self.items) >= max_items:
            self.seal(Reason.SIZE, now)

    def _cut(self, batch: Sealed[T], at: int) -> tuple[Sealed[T], Sealed[T]]:
        """A sealed batch in two."""
        sizes = (None, None) if batch.sizes is None else (batch.sizes[:at], batch.sizes[at:])
        receipts: tuple[dict[int, ReceiptBase], dict[int, ReceiptBase]] = ({}, {})
        for index, receipt in batch.receipts.items():
            receipts[index >= at][index if index < at else index - at] = receipt
        head, tail = (
            replace(batch, items=items, receipts=slips, sizes=lengths, bytes=sum(lengths or ()))
            for items, slips, lengths in zip(
                (batch.items[:at], batch.items[at:]), receipts, sizes, strict=True
            )
        )
        return head, tail

    def settled(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Items have ended while others of their batch back off. Arrival order alone holds nothing
        back, so nothing follows from it.
        """

    def stop(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Nothing that comes after these items of their keys goes on. There is none, here."""

    def let_go(self, key: Hashable, now: float) -> int:
        """What is held of this key may go; return how many that are: nothing is held here."""
        return 0

    def begin_stop(self) -> None:
        """What is held now is handed back soon: nothing is held here."""

    def failed(self) -> list[Leftover[T]]:
        """What fails because an earlier item of its key has: nothing, here."""
        return []

    def put_back(self, batch: Sealed[T], indices: Sequence[int]) -> None:
        """Items wait again for those before them of their key, of which there are none here."""
        raise AssertionError(indices)

    def done(self, batch: Sealed[T], failed: Sequence[int]) -> None:
        """A batch has ended. Nor from that."""

    def evict_oldest(self) -> Evicted[T] | None:
        """Give up the oldest item that no worker has taken; `None` if there is none."""
        if self._sealed:
            batch = self._sealed[0]
            evicted = _pop_first(batch.items, batch.receipts, batch.sizes)
            batch.bytes -= evicted.size
            self._sealed_items -= 1
            if not batch.items:
                self._sealed.popleft()
            return evicted
        if not self.items:
            return None
        evicted = _pop_first(self.items, self.receipts, self._sizes)
        self._open_bytes -= evicted.size
        return evicted

    def clear(self, now: float) -> list[Leftover[T]]:
        """Give up everything that no worker has taken."""
        self.seal(Reason.SHUTDOWN, now)
        gone = [
            Leftover(item, batch.receipts.get(i), batch.number)
            for batch in self._sealed
            for i, item in enumerate(batch.items)
        ]
        self._sealed.clear()
        self._sealed_items = 0
        return gone


def _pop_first(
    items: list[T], receipts: dict[int, ReceiptBase], sizes: list[int] | None
) -> Evicted[T]:
    receipt = receipts.pop(0, None)
    later = {index - 1: other for index, other in receipts.items()}
    receipts.clear()
    receipts.update(later)
    return Evicted(items.pop(0), sizes.pop(0) if sizes is not None else 0, receipt)
