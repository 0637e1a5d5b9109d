"""Batches: immutable, ordered groups of items, each on its way through one delivery.

1. A sealed batch never changes; retry, bisection and combiner send new batches *derived* from it.
2. Every derived batch knows its `origins`: for each item the index in the sealed batch, or a group
   of indices. Outcomes are booked by origin, however often items were picked in between.
3. A batch's methods use its own indices; only `origins` refers to the sealed batch.
4. `id` is the same for all derived batches; only `write_key` may serve as a deduplication token.
5. A `Lineage` is the origin of a batch: its id, why and when it was sealed, and by which batcher.
"""

from __future__ import annotations

import enum
import hashlib
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from .answer import checked_indices, checked_outcome, settled_details
from .delivery.delivery import Delivery
from .delivery.fork import Fork
from .errors import ResultMismatch
from .outcome import Outcome

if TYPE_CHECKING:
    from typing import Self

    from .clock import Signal
    from .delivery.fork import OutcomeMap


T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


class Batch(Sequence[T_co], ABC, Generic[T_co]):
    """An immutable, ordered group of items sealed for one write; a sequence like a tuple.

    `attempt` counts from 1; `keys` holds the items' keys in keyed mode.
    """

    __slots__ = ("_groups", "_lineage", "_origins", "attempt", "delivery", "keys", "sizes")

    def __init__(
        self,
        lineage: Lineage | None,
        delivery: Delivery,
        *,
        origins: Sequence[int] | None = None,
        groups: Sequence[tuple[int, ...]] | None = None,
        attempt: int = 1,
        keys: Sequence[object] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self._lineage = lineage
        self._origins = origins
        self._groups = groups
        self.delivery = delivery
        self.attempt = attempt
        self.keys = keys
        self.sizes = sizes

    @abstractmethod
    def _select(self, indices: Sequence[int], attempt: int) -> Self:
        """Return a batch of the items at `indices`, with their keys, sizes and origins."""

    @abstractmethod
    def _on(self, delivery: Delivery, attempt: int | None = None) -> Self:
        """Return the same batch on another delivery, or as another attempt."""

    def unreadable(self) -> Mapping[int, BaseException]:
        """Return the errors of items that cannot be created; only column batches have any."""
        return {}

    def shown(self, index: int) -> T_co:
        """Return the item at `index` in its form for a dead letter."""
        return self[index]

    @property
    def lineage(self) -> Lineage:
        """The facts shared by all batches derived from the same sealed batch."""
        self._lineage = made = self._lineage or Lineage()  # created at the first access
        return made

    @property
    def id(self) -> str:
        """The sealed batch's id: for tracing, never a deduplication token (see `write_key`)."""
        return self.lineage.id

    @property
    def reason(self) -> Reason:
        """Why the batch was sealed."""
        return self.lineage.reason

    @property
    def name(self) -> str:
        """The batcher's name."""
        return self.lineage.name

    @property
    def tenant(self) -> object:
        """The tenant that every item belongs to; `None` without tenants."""
        return self.lineage.tenant

    @property
    def oldest_at(self) -> float | None:
        """When the sealed batch's first item was accepted, in monotonic seconds of the clock."""
        return self.lineage.oldest_at

    @property
    def sealed_at(self) -> float | None:
        """When the batch was sealed, in monotonic seconds of the clock."""
        return self.lineage.sealed_at

    @property
    def size_bytes(self) -> int | None:
        """Total size of the items by the batcher's `size_of`; `None` if they were not measured."""
        return None if self.sizes is None else sum(self.sizes)

    @property
    def origins(self) -> Sequence[int | tuple[int, ...]]:
        """The index in the sealed batch for each item; after `derive`, a group of indices."""
        if self._groups is not None:
            return self._groups
        return range(len(self)) if self._origins is None else self._origins

    def roots(self, indices: Iterable[int] | None = None) -> Sequence[int]:
        """Return the sealed batch's indices of the items at `indices` (default: all), flattened."""
        if self._groups is not None:
            groups = self._groups if indices is None else [self._groups[i] for i in indices]
            return [root for group in groups for root in group]
        if self._origins is None:
            if indices is None:
                return range(len(self))
            return indices if isinstance(indices, (range, list, tuple)) else list(indices)
        return self._origins if indices is None else [*map(self._origins.__getitem__, indices)]

    def _first_roots(self) -> Sequence[int]:
        return self.roots() if self._groups is None else [group[0] for group in self._groups]

    def pick(self, indices: Iterable[int], *, attempt: int | None = None) -> Self:
        """Return the sub-batch of the items at `indices`, in that order, on the same delivery.

        `attempt` defaults to this batch's. Raises `IndexError` for an index out of range, and
        `ValueError` for a repeated index.
        """
        chosen = indices if isinstance(indices, (range, list, tuple)) else list(indices)
        number = self.attempt if attempt is None else attempt
        everything = range(len(self))
        if chosen == everything or [*chosen] == [*everything]:  # nothing to copy
            return self if number == self.attempt else self._on(self.delivery, number)
        self._check_own(chosen, "pick")
        if type(chosen) is not range and len(set(chosen)) != len(chosen):
            twice = f"pick({chosen!r}): an index is repeated"
            raise ValueError(f"{twice}; pick each item at most once")
        return self._select(chosen, number)

    def _check_own(self, indices: Sequence[int], call: str) -> None:
        if indices and not (min(indices) >= 0 and max(indices) < len(self)):
            raise IndexError(f"{call}({indices!r}): this batch has {len(self)} items")

    def derive(self, items: Iterable[U], groups: Iterable[Iterable[int]]) -> RowBatch[U]:
        """Return the batch that a combiner writes: each new item represents a group of items.

        Raises `ValueError` unless every index of this batch is in exactly one group.
        """
        made = tuple(items)
        own = [tuple(group) for group in groups]
        given = sorted(i for group in own for i in group)
        if len(made) != len(own) or given != list(range(len(self))):
            found = f"{len(made)} items with {len(own)} groups"
            raise ValueError(f"derive: {found} that must partition {len(self)} items")
        behind = [tuple(self.roots(group)) for group in own]
        return RowBatch(
            made, lineage=self.lineage, delivery=self.delivery, groups=behind, attempt=self.attempt
        )

    @property
    def write_key(self) -> str:
        """Deduplication token, computed on access; equal only for the same items and path."""
        return token_of_batch(self._path, self._first_roots(), self._groups)

    def item_keys(self) -> list[str]:
        """Return a deduplication token per item, stable across all retries on the same path."""
        return tokens_of_items(self._path, self.origins)

    @property
    def _path(self) -> str:
        return "/".join((self.id, *self.delivery.labels))

    @property
    def maybe_applied(self) -> frozenset[int]:
        """Indices with an unknown earlier attempt; only their conflicts are `duplicate`."""
        marked = self.delivery.maybe_applied
        if not marked:
            return frozenset()
        if self._groups is None:
            return frozenset(i for i, root in enumerate(self._first_roots()) if root in marked)
        return frozenset(i for i, group in enumerate(self._groups) if not marked.isdisjoint(group))

    @property
    def deadline(self) -> float | None:
        """When a shutdown cuts off writes, in monotonic seconds; `None` before a shutdown."""
        return self.delivery.deadline

    @property
    def stopping(self) -> bool:
        """Whether a shutdown has begun: backoffs are shortened; attempts end at its deadline."""
        return self.delivery.stopping

    def settle(
        self, indices: Iterable[int], outcome: Outcome, details: Mapping[int, object] | None = None
    ) -> None:
        """Book a safe outcome, which is final, for the items at `indices`; their receipts resolve immediately.

        `indices` refer to this batch; each may occur once. `outcome` is one of delivered,
        duplicate, spooled, dead_lettered; failures are raised or returned. `details` may hold an
        object per index for the receipt: a returned row, an offset, an id.

        Raises `ResultMismatch` for anything else. All unsettled items of the write are then
        `unknown` and not sent again, regardless of what the sink raises or returns afterwards.
        """
        is_plain = type(outcome) is Outcome and outcome.is_safe and not details
        if is_plain and type(indices) is range and indices == range(len(self)):
            self.book(indices, outcome)
            return
        try:
            own = checked_indices(indices, len(self))
            known = checked_outcome(outcome)
            told = settled_details(details)
        except ResultMismatch as error:
            self.delivery.distrust(self.roots(), error)
            raise
        self.book(own, known, told)

    def book(
        self, own: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None = None
    ) -> None:
        """Like `settle`, for indices, outcome and details that are known to be valid."""
        if self.delivery.distrusts:
            own = [i for i in own if not self.delivery.distrusted(self.roots((i,)))]
        if not own:
            return
        if details and not len(details) == len(own) == len(self):
            details = {i: details[i] for i in own if i in details}
        told = by_roots(self, details) if details else None
        self.delivery.settle(self.roots(own), outcome, told)

    def unsettled(self) -> Sequence[int]:
        """Return the indices of the items without an outcome."""
        states = self.delivery.states
        if states.is_fresh:
            return range(len(self))
        if states.left == 0:
            return ()
        if self._groups is None:
            return states.unsettled_among(self.roots())
        return [i for i, own in enumerate(self._groups) if not all(map(states.is_settled, own))]

    def hold(self, indices: Iterable[int], *, tried: bool = False) -> None:
        """Mark items as waiting while other parts of their write are at the destination.

        If the write is cut, they are unsent, unless they are settled or may have been applied. If
        `tried`, they keep their errors. The mark lasts until they are sent.
        """
        own = indices if isinstance(indices, (range, list, tuple)) else list(indices)
        self._check_own(own, "hold")
        self.delivery.hold(self.roots(own), tried=tried)

    async def back_off(
        self,
        until: float,
        *signals: Signal,
        through_stop: bool = False,
        not_before: float = 0.0,
        lasts: float = 0.0,
    ) -> bool:
        """Wait until the clock reads `until` (monotonic seconds), a signal or a shutdown.

        Every wait for a destination uses this method. Meanwhile the batch counts as backing off,
        and its flush slot is released. In a shutdown, waits are shortened to a quarter of the time
        to its deadline, but not below `not_before`, the end of a pause that the destination
        requested, if an attempt still fits after it. `lasts` is the expected duration of an attempt
        in seconds. With `through_stop=True` only the shutdown's deadline ends the wait early.

        Returns whether time is up: an attempt would probably be cut off, so fail unapplied items
        with `StoppedError`; a best-effort branch that nothing waits for makes one last attempt.
        Raises `CancelledError` once the delivery is closed. Cancelled, the batch holds a slot.
        """
        roots = self.roots(self.unsettled())
        return await self.delivery.back_off(
            roots, until, *signals, through_stop=through_stop, not_before=not_before, lasts=lasts
        )

    def throttled(self, until: float) -> None:
        """Report that the destination requested a pause until the clock reads `until`."""
        self.delivery.throttled(until)

    def child(self, label: str, outcome_map: OutcomeMap) -> Fork[Self]:
        """Return a context manager that yields `{label: batch}`, with these items as a branch
        of the delivery. `outcome_map` maps each outcome in the branch to the item's outcome.

        `label` becomes part of the `write_key`. For a dead-letter target, map every safe outcome to
        `dead_lettered` and all others to `rejected`.
        """
        return Fork(self.delivery, self.roots(), self._on, {label: outcome_map})

    def fork(
        self, branches: Mapping[str, OutcomeMap], *, best_effort: Iterable[str] = ()
    ) -> Fork[Self]:
        """Put these items on several branches: a context manager that returns a batch for each.

        An item is settled when every required branch (not in `best_effort`) has settled it, with
        the worst of their outcomes. An item that may have been applied is so on every branch.
        """
        extra, roots = frozenset(best_effort), self.roots()
        return Fork(
            self.delivery, roots, self._on, branches, best_effort=extra, same_destination=True
        )

    def __repr__(self) -> str:
        told = f"{len(self)} items, id={self.id!r}, reason={self.reason.value!r}"
        return f"{type(self).__name__}({told}, attempt={self.attempt})"


def by_roots(batch: Batch[Any], values: Mapping[int, U]) -> Mapping[int, U]:
    """Map the indices of the sealed batch to the item values."""
    origins = batch.origins
    if origins == range(len(origins)):  # a whole batch: a list never equals a range
        return values
    if isinstance(origins[0], tuple):
        return {root: value for i, value in values.items() for root in batch.roots((i,))}
    return dict(zip(batch.roots(values), values.values(), strict=True))


class RowBatch(Batch[T_co]):
    """A batch whose items are Python objects."""

    __slots__ = ("_items",)

    def __init__(
        self,
        items: Iterable[T_co],
        *,
        lineage: Lineage | None = None,
        delivery: Delivery | None = None,
        origins: Sequence[int] | None = None,
        groups: Sequence[tuple[int, ...]] | None = None,
        attempt: int = 1,
        keys: Sequence[object] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self._items = items if isinstance(items, tuple) else tuple(items)
        self._lineage = lineage  # inlined from `Batch.__init__`: half the time
        self.delivery = Delivery(len(self._items)) if delivery is None else delivery
        self._origins = origins
        self._groups = groups
        self.attempt = attempt
        self.keys = keys
        self.sizes = sizes

    @property
    def items(self) -> tuple[T_co, ...]:
        """All items: the batch's own tuple."""
        return self._items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T_co, ...]: ...
    def __getitem__(self, index: int | slice) -> T_co | tuple[T_co, ...]:
        return self._items[index]

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._items)

    def _select(self, indices: Sequence[int], attempt: int) -> RowBatch[T_co]:
        return RowBatch(
            tuple(map(self._items.__getitem__, indices)),
            lineage=self.lineage,
            delivery=self.delivery,
            origins=self.roots(indices) if self._groups is None else None,
            groups=None if self._groups is None else [self._groups[i] for i in indices],
            attempt=attempt,
            keys=None if self.keys is None else [self.keys[i] for i in indices],
            sizes=None if self.sizes is None else [self.sizes[i] for i in indices],
        )

    def _on(self, delivery: Delivery, attempt: int | None = None) -> RowBatch[T_co]:
        return RowBatch(
            self._items,
            lineage=self.lineage,
            delivery=delivery,
            origins=self._origins,
            groups=self._groups,
            attempt=self.attempt if attempt is None else attempt,
            keys=self.keys,
            sizes=self.sizes,
        )


class Reason(enum.Enum):
    """Why a batch was sealed; exactly one per batch."""

    __hash__ = object.__hash__  # one C call; Enum's own hash is Python code

    SIZE = "size"
    BYTES = "bytes"
    TIME = "time"
    MANUAL = "manual"
    SHUTDOWN = "shutdown"
    SHUTDOWN_REQUEST = "shutdown_request"
    PRESSURE = "pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The facts shared by a sealed batch and its derived batches. Times are monotonic seconds."""

    id: str = field(default_factory=lambda: os.urandom(16).hex())
    reason: Reason = Reason.MANUAL
    name: str = ""
    oldest_at: float | None = None
    sealed_at: float | None = None
    tenant: object = None
    is_replay: bool = False
    """Whether the items are replayed dead letters; failing again writes no new letter."""


def token_of_batch(
    path: str, origins: Sequence[int], groups: Sequence[tuple[int, ...]] | None
) -> str:
    """Return one token for all items; equal only for the same items (or groups) and path."""
    if groups is not None:
        origins = [number for group in groups for number in (len(group), *group)]
    digest = _digest_of_range(origins) if isinstance(origins, range) else _digest(origins)
    return f"{path}-{digest}"


def tokens_of_items(path: str, origins: Sequence[int | tuple[int, ...]]) -> list[str]:
    """Return a token for each item."""
    return [f"{path}-{'.'.join(map(str, o)) if isinstance(o, tuple) else o}" for o in origins]


def _digest(numbers: Sequence[int]) -> str:
    return hashlib.blake2b(array("I", numbers).tobytes(), digest_size=8).hexdigest()


@lru_cache(maxsize=256)
def _digest_of_range(numbers: range) -> str:
    """The digest of a whole batch, which depends only on its size."""
    return _digest(numbers)
