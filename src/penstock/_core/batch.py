"""Batches: immutable, ordered groups of items, each on its way through one delivery.

1. A batch is sealed once and never changes or comes back; what a retry, a bisection or a combiner
   sends is a new batch *derived* from it.
2. Every derived batch knows its `origins`: for each of its items the index in the sealed batch (or
   the group of indices it stands for). Outcomes are booked by origin, so it does not matter along
   how many picks an item reached its destination.
3. Indices in a batch's own methods are always that batch's own; only `origins` speaks of the sealed
   batch.
4. `id` is lineage and the same for everything derived. Only `write_key` may be sent as a
   deduplication token: it is equal only for the same items on the same way.
"""

from __future__ import annotations

import enum
import hashlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar, overload
from uuid import uuid4

from .answer import checked_indices, checked_mapping, checked_outcome
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


class Reason(enum.Enum):
    """Why a batch was sealed; exactly one per batch."""

    SIZE = "size"
    BYTES = "bytes"
    TIME = "time"
    MANUAL = "manual"
    SHUTDOWN = "shutdown"
    SHUTDOWN_REQUEST = "shutdown_request"
    PRESSURE = "pressure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a sealed batch and everything derived from it have in common. Times are the clock's
    monotonic seconds.
    """

    id: str = field(default_factory=lambda: uuid4().hex)
    reason: Reason = Reason.MANUAL
    name: str = ""
    oldest_at: float | None = None
    sealed_at: float | None = None
    tenant: object = None
    is_replay: bool = False
    """Whether the items are dead letters on their way back: what fails again stays where it is, and
    no new letter is written.
    """


class Batch(Sequence[T_co], ABC, Generic[T_co]):
    """An immutable, ordered group of items sealed for one write.

    Length, indexing and iteration are those of a tuple of items. `attempt` counts from 1; `keys`
    holds the items' keys in keyed mode.
    """

    __slots__ = ("_groups", "_lineage", "_origins", "attempt", "delivery", "keys", "sizes")

    def __init__(
        self,
        lineage: Lineage,
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
        """A batch of the items at `indices`, with everything that belongs to them."""

    @abstractmethod
    def _on(self, delivery: Delivery, attempt: int | None = None) -> Self:
        """The same batch on another delivery, or as another attempt."""

    def unreadable(self) -> Mapping[int, BaseException]:
        """The items that a batch holds and cannot hand out, each with its error; only batches of
        columns have any.
        """
        return {}

    def shown(self, index: int) -> T_co:
        """The item at `index` as a dead letter shows it, where it cannot be handed out as it is."""
        return self[index]

    @property
    def lineage(self) -> Lineage:
        """What this batch shares with everything derived from the same sealed batch."""
        return self._lineage

    @property
    def id(self) -> str:
        """The sealed batch's id: lineage only, never a deduplication token (see `write_key`)."""
        return self._lineage.id

    @property
    def reason(self) -> Reason:
        """Why the batch was sealed."""
        return self._lineage.reason

    @property
    def name(self) -> str:
        """The batcher's name."""
        return self._lineage.name

    @property
    def tenant(self) -> object:
        """The tenant that every item belongs to; `None` without tenants."""
        return self._lineage.tenant

    @property
    def oldest_at(self) -> float | None:
        """When the sealed batch's first item was accepted, in the clock's monotonic seconds."""
        return self._lineage.oldest_at

    @property
    def sealed_at(self) -> float | None:
        """When the batch was sealed, in the clock's monotonic seconds."""
        return self._lineage.sealed_at

    @property
    def size_bytes(self) -> int | None:
        """The items' size by the batcher's `size_of`; `None` where nothing measured them."""
        return None if self.sizes is None else sum(self.sizes)

    @property
    def origins(self) -> Sequence[int | tuple[int, ...]]:
        """For each item its index in the sealed batch; in a batch made by `derive`, the group of
        indices it stands for.
        """
        if self._groups is not None:
            return self._groups
        return range(len(self)) if self._origins is None else self._origins

    def roots(self, indices: Iterable[int] | None = None) -> Sequence[int]:
        """The sealed batch's indices behind `indices` of this batch (default: all), flattened."""
        if self._groups is not None:
            groups = self._groups if indices is None else [self._groups[i] for i in indices]
            return [root for group in groups for root in group]
        if self._origins is None:
            if indices is None:
                return range(len(self))
            return indices if isinstance(indices, (range, list, tuple)) else list(indices)
        return self._origins if indices is None else [self._origins[i] for i in indices]

    def _first_roots(self) -> Sequence[int]:
        if self._groups is not None:
            return [group[0] for group in self._groups]
        return range(len(self)) if self._origins is None else self._origins

    def pick(self, indices: Iterable[int], *, attempt: int | None = None) -> Self:
        """The sub-batch of the items at `indices`, in the order given, on the same delivery.

        `attempt` (default: this batch's) is what the sub-batch reports. Raises `IndexError` for an
        index outside the batch, and `ValueError` for one that stands there twice.
        """
        chosen = indices if isinstance(indices, (range, list, tuple)) else list(indices)
        number = self.attempt if attempt is None else attempt
        if chosen == range(len(self)):  # everything, as in a first try: nothing to copy
            return self if number == self.attempt else self._on(self.delivery, number)
        self._check_own(chosen, "pick")
        if type(chosen) is not range and len(set(chosen)) != len(chosen):
            message = f"pick({chosen!r}): an index stands there twice; pick each item at most once"
            raise ValueError(message)
        return self._select(chosen, number)

    def _check_own(self, indices: Sequence[int], call: str) -> None:
        if indices and not (min(indices) >= 0 and max(indices) < len(self)):
            message = f"{call}({indices!r}): this batch has {len(self)} items"
            raise IndexError(message)

    def derive(self, items: Iterable[U], groups: Iterable[Iterable[int]]) -> RowBatch[U]:
        """The batch that a combiner writes: each new item stands for a group of this batch's items.

        The groups must partition this batch: every index in exactly one. Raises `ValueError`
        otherwise.
        """
        made = tuple(items)
        own = [tuple(group) for group in groups]
        if len(made) != len(own) or sorted(i for group in own for i in group) != list(
            range(len(self))
        ):
            message = (
                f"derive: {len(made)} items with {len(own)} groups that must partition "
                f"{len(self)} items"
            )
            raise ValueError(message)
        return RowBatch(
            made,
            lineage=self._lineage,
            delivery=self.delivery,
            groups=[tuple(self.roots(group)) for group in own],
            attempt=self.attempt,
        )

    @property
    def write_key(self) -> str:
        """The token for a destination that deduplicates: equal only for the same items on the same
        way. Made anew when asked for.
        """
        digest = hashlib.blake2b(digest_size=8)
        if self._groups is None:
            digest.update(array("I", self._first_roots()).tobytes())
        else:
            for group in self._groups:
                digest.update(array("I", (len(group), *group)).tobytes())
        return f"{self._path}-{digest.hexdigest()}"

    def item_keys(self) -> list[str]:
        """A deduplication token for each item, stable over every retry on the same way."""
        path = self._path
        return [
            f"{path}-{'.'.join(map(str, o)) if isinstance(o, tuple) else o}" for o in self.origins
        ]

    @property
    def _path(self) -> str:
        return "/".join((self.id, *self.delivery.labels))

    @property
    def maybe_applied(self) -> frozenset[int]:
        """The indices whose earlier try ended in an unknown outcome. It alone lets a sink call a
        conflict `duplicate`.
        """
        marked = self.delivery.maybe_applied
        if not marked:
            return frozenset()
        if self._groups is not None:
            return frozenset(
                i for i, group in enumerate(self._groups) if not marked.isdisjoint(group)
            )
        return frozenset(i for i, root in enumerate(self._first_roots()) if root in marked)

    @property
    def deadline(self) -> float | None:
        """When writes will be cut, in the clock's monotonic seconds, once a shutdown has begun;
        `None` before.
        """
        return self.delivery.deadline

    @property
    def stopping(self) -> bool:
        """Whether a shutdown has begun: backoffs are shortened so that tries go on until its
        deadline.
        """
        return self.delivery.stopping

    def settle(
        self, indices: Iterable[int], outcome: Outcome, details: Mapping[int, object] | None = None
    ) -> None:
        """Book a success for the items at `indices`, at once and for good; their receipts resolve
        now.

        `indices` are this batch's own, each at most once. `outcome` is one of delivered, duplicate,
        spooled, dead_lettered; failures are raised or returned. `details` may hold something per
        index for the receipt: a returned row, an offset, an id.

        Raises `ResultMismatch` for anything else. All items of the write that were not settled
        before are `unknown` then, and are not sent again by themselves, whatever the sink raises or
        returns after it.
        """
        if (
            type(indices) is range
            and type(outcome) is Outcome
            and outcome.is_success
            and not details
            and indices == range(len(self))
        ):
            self.book(indices, outcome)
            return
        try:
            own = checked_indices(indices, len(self))
            known = checked_outcome(outcome)
            told = None if details is None else checked_mapping("settle: the details", details)
        except ResultMismatch as error:
            self.delivery.distrust(self.roots(), error)
            raise
        self.book(own, known, told)

    def book(
        self, own: Sequence[int], outcome: Outcome, details: Mapping[int, object] | None = None
    ) -> None:
        """`settle` for indices, outcome and details that are known to fit."""
        if self.delivery.distrusts:
            own = [i for i in own if not self.delivery.distrusted(self.roots((i,)))]
        if not own:
            return
        by_root = None
        if details:
            by_root = {root: details[i] for i in own if i in details for root in self.roots((i,))}
        self.delivery.settle(self.roots(own), outcome, by_root)

    def unsettled(self) -> Sequence[int]:
        """The indices that have no outcome yet."""
        states = self.delivery.states
        if states.is_fresh:
            return range(len(self))
        if states.left == 0:
            return ()
        if self._groups is not None:
            return [
                i for i, group in enumerate(self._groups) if not all(map(states.is_settled, group))
            ]
        return [i for i, root in enumerate(self._first_roots()) if not states.is_settled(root)]

    def hold(self, indices: Iterable[int], *, tried: bool = False) -> None:
        """Say that the items at `indices` are not at the destination, while others of a write in
        parts are: a cut leaves them unsent.

        They wait for their turn, or have been `tried` and keep their errors. It holds until they
        are sent on. What was settled stays so, and what may have been applied.
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
        """Wait until the clock reads `until` (monotonic seconds), one of `signals` fires or a
        shutdown begins.

        Every wait in front of a destination goes through here. Meanwhile the batch counts as
        backing off and its flush slot serves others. Once a shutdown has begun, waits are shortened
        so that tries go on until its deadline: to a quarter of the time left, but not below
        `not_before`, the time until which the destination itself asked to wait, if a try fits
        behind it. `lasts` is how many seconds a try is expected to take. Returns whether time is
        up: a try begun now is likely to be cut off, so what was not applied is better given up as
        `StoppedError`. Only a best-effort branch that is not waited for any more should try once
        more then. What keeps to a pace waits with `through_stop=True`: a shutdown does not end such
        a wait, only its deadline does. Raises `CancelledError` once the delivery is closed.
        Cancellation leaves the batch holding a slot again.
        """
        roots = self.roots(self.unsettled())
        return await self.delivery.back_off(
            roots, until, *signals, through_stop=through_stop, not_before=not_before, lasts=lasts
        )

    def throttled(self, until: float) -> None:
        """Tell the batcher that the destination asked for a pause until the clock reads `until`."""
        self.delivery.throttled(until)

    def child(self, label: str, outcome_map: OutcomeMap) -> Fork[Self]:
        """A way of its own for these items, to be used in a `with`: what succeeds on it is mapped
        by `outcome_map`, not booked as it is.

        `label` becomes part of the `write_key`. For a dead-letter target: map every success to
        `dead_lettered`, the rest to `rejected`.
        """
        return Fork(self.delivery, self.roots(), self._on, {label: outcome_map})

    def fork(
        self, branches: Mapping[str, OutcomeMap], *, best_effort: Iterable[str] = ()
    ) -> Fork[Self]:
        """Several ways at once, one batch each, to be used in a `with`: an item is settled when
        every required branch has settled it.

        The worst branch decides an item's outcome; branches named in `best_effort` never do. What
        may have been applied by an earlier try may have been applied on every one of these ways.
        """
        return Fork(
            self.delivery,
            self.roots(),
            self._on,
            branches,
            best_effort=frozenset(best_effort),
            same_destination=True,
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} items, id={self.id!r}, "
            f"reason={self.reason.value!r}, attempt={self.attempt})"
        )


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
        super().__init__(
            Lineage() if lineage is None else lineage,
            Delivery(len(self._items)) if delivery is None else delivery,
            origins=origins,
            groups=groups,
            attempt=attempt,
            keys=keys,
            sizes=sizes,
        )

    @property
    def items(self) -> tuple[T_co, ...]:
        """All items, as the tuple that the batch holds."""
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
            lineage=self._lineage,
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
            lineage=self._lineage,
            delivery=delivery,
            origins=self._origins,
            groups=self._groups,
            attempt=self.attempt if attempt is None else attempt,
            keys=self.keys,
            sizes=self.sizes,
        )
