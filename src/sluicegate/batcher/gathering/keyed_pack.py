"""The open batch of a keyed gatherer, the fast path into it, and the identities of its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from ..._core.order.keys import PLAIN, identity, shown
from .pack import Pack, matching, others

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from ..receipt import Resolvable
    from .eras import Waiting
    from .pack import Evicted, Matches, Sealed
    from .window import Scale

    Receipts = dict[int, Resolvable]


T = TypeVar("T")


Row = tuple[T, int, "Resolvable | None", "Hashable"]
"""An item, its size, its receipt and its key."""


class FastPath(Protocol[T]):
    """The gatherer's side that the open batch uses."""

    names: KeyNames[T]
    active: set[Hashable]
    """Keys with items in batches or lanes, or held."""
    repeats: bool
    """Whether a batch may have several items of one key."""

    breaks: Callable[[BaseException, Sequence[T]], object]
    """Breaks the batcher after a failed step; the items were not accepted."""

    def raised(self, place: int) -> None:
        """Note that the key function raised: the item with this index was not accepted."""

    def pass_by(self, item: T, key: Hashable) -> None:
        """Put an item into its lane, past the open batch."""

    def begins(self) -> None:
        """Start the batch's timer, immediately before its first item."""


class KeyedOpenBatch(list[T]):
    """The open batch; routes items of busy keys to their lanes."""

    __slots__ = ("_active", "_gatherer", "_key", "_repeats", "keys", "open_keys", "weighed")

    join = list[T].append
    """Append an item whose key is known and free."""

    def __init__(self, gatherer: FastPath[T]) -> None:
        self._gatherer = gatherer
        self._active = gatherer.active
        self._key = gatherer.names.key_of
        self._repeats = gatherer.repeats
        self.keys: list[Hashable] = []
        """The items' keys, by index."""
        self.open_keys: set[Hashable] = set()
        """Keys that may have more items in this batch; only with `repeats`."""
        self.weighed = 0
        """Bytes of the item that the fast path adds; 0 without sizes."""

    def append(self, item: T, /) -> None:
        """Append an item or put it into its lane. Raises the key function's errors."""
        key_of = self._key
        try:
            key = key_of(item)
            if type(key) not in PLAIN:
                key = self._gatherer.names.known(key)
        except BaseException:
            self._gatherer.raised(len(self))
            raise
        try:
            if key in self._active:
                if key not in self.open_keys:
                    self._pass_by(item, key)
                    return
            else:
                self._active.add(key)
                if self._repeats:
                    self.open_keys.add(key)
            if not self:
                self._gatherer.begins()
            self.keys.append(key)
            self.join(item)
        except BaseException as error:
            self._gatherer.breaks(error, ())  # the item has not joined
            raise

    def _pass_by(self, item: T, key: Hashable) -> None:
        try:
            self._gatherer.pass_by(item, key)
        except BaseException as error:
            self._gatherer.breaks(error, (item,))
            raise

    def join_free(
        self, rows: Iterator[Row[T]], most: int, receipts: Receipts, sizes: list[int] | None
    ) -> list[Row[T]]:
        """Append items of free and open keys, up to `most` in the batch; return the skipped ones.

        Receipts and sizes are noted if they are given.
        """
        active, open_keys, keys, repeats = self._active, self.open_keys, self.keys, self._repeats
        behind: list[Row[T]] = []
        for row in rows:
            item, size, receipt, key = row
            if key not in active:
                active.add(key)
                if repeats:
                    open_keys.add(key)
            elif key not in open_keys:
                behind.append(row)
                continue
            if receipt is not None:
                receipts[len(keys)] = receipt
            if sizes is not None:
                sizes.append(size)
            keys.append(key)
            self.join(item)
            if len(keys) >= most:
                break
        return behind


class SizedKeyedOpenBatch(KeyedOpenBatch[T]):
    """Like `KeyedOpenBatch`, for measured items."""

    __slots__ = ("_pack", "_scale")

    def __init__(self, gatherer: FastPath[T], pack: Pack[T], scale: Scale[T]) -> None:
        super().__init__(gatherer)
        self._pack = pack
        self._scale = scale

    def append(self, item: T, /) -> None:
        """Append an item, or put it into its lane. Raises as `Scale.weigh` does, too."""
        self.weighed = size = self._scale.weigh(item, self)
        filled = len(self)
        try:
            super().append(item)
        except BaseException:
            self._scale.take_back(size)
            raise
        if len(self) > filled:
            try:
                self._pack.weigh(size)
            except BaseException as error:
                self._gatherer.breaks(error, (item,))
                raise


class KeyedPack(Pack[T]):
    """The columns of the open batch, including keys."""

    __slots__ = ("_repeats", "opened")

    def __init__(self, gatherer: FastPath[T], *, sized: bool, scale: Scale[T] | None) -> None:
        self._repeats = gatherer.repeats

        def make() -> KeyedOpenBatch[T]:
            if scale is None:
                return KeyedOpenBatch(gatherer)
            return SizedKeyedOpenBatch(gatherer, self, scale)

        super().__init__(sized=sized, make=make, scale=scale)

    def _renew(self) -> None:
        super()._renew()
        self.opened = cast("KeyedOpenBatch[T]", self.items)
        """The open batch itself."""

    def join(
        self, item: T, size: int, receipt: Resolvable | None, at: float, key: Hashable
    ) -> None:
        """Append an item whose key is free or open."""
        opened = self.opened
        if not opened or at < self.oldest_at:
            self.begin(at)
        if receipt is not None:
            self.receipts[len(opened)] = receipt
        opened.join(item)
        opened.keys.append(key)
        if self._repeats:
            opened.open_keys.add(key)
        if self.sizes is not None:
            self.weigh(size)

    def join_all(self, entries: Sequence[Waiting[T]]) -> None:
        """Append several items, like `join`."""
        opened = self.opened
        filled, oldest_at = len(opened), min([entry.at for entry in entries])
        if not filled or oldest_at < self.oldest_at:
            self.begin(oldest_at)
        for index, entry in enumerate(entries, filled):
            if entry.receipt is not None:
                self.receipts[index] = entry.receipt
        opened.extend([entry.item for entry in entries])
        keys = [entry.lane_key for entry in entries]
        opened.keys.extend(keys)
        if self._repeats:
            opened.open_keys.update(keys)
        if self.sizes is not None:
            self.weigh_all([entry.size for entry in entries])

    def join_free(self, rows: Iterator[Row[T]], most: int, at: float) -> list[Row[T]]:
        """Append items like `KeyedOpenBatch.join_free`; return those that must wait."""
        opened = self.opened
        if not opened:
            self.begin(at)
        sizes: list[int] | None = None if self.sizes is None else []
        behind = opened.join_free(rows, most, self.receipts, sizes)
        self.weigh_all(sizes or ())
        return behind

    def withdraw(self, matches: Matches, number: int) -> Sealed[T] | None:
        """Like `Pack.withdraw`; the returned batch has its keys."""
        opened = self.opened
        gone, keys = sorted(matching(self.receipts, matches)), list(opened.keys)
        sealed = super().withdraw(matches, number)
        if sealed is not None:
            sealed.keyed([keys[i] for i in gone], [], keeps_prefix=False)
            opened.keys[:] = [keys[i] for i in others(len(keys), gone)]
            opened.open_keys.intersection_update(opened.keys)
        return sealed

    def pop_keyed(self) -> tuple[Evicted[T], Hashable, bool]:
        """Evict the first item; return its key, and whether no other item has it."""
        opened = self.opened
        evicted, key = self.pop_first(), opened.keys.pop(0)
        is_last = not self._repeats or key not in opened.keys
        if is_last:
            opened.open_keys.discard(key)
        return evicted, key, is_last


class KeyNames(Generic[T]):
    """The key function. `odd`: whether identities in lanes may differ from the given keys."""

    __slots__ = ("_odd", "key_of")

    def __init__(self, key_of: Callable[[T], object], *, odd: bool) -> None:
        self.key_of = key_of
        self._odd = odd

    def known(self, key: object) -> Hashable:
        """Return the identity of a key. Raises `TypeError` for an object that cannot be one."""
        if type(key) in PLAIN:
            return cast("Hashable", key)
        self._odd = True
        return identity(key)

    def all_known(self, items: Sequence[T]) -> tuple[Hashable, ...]:
        """Return the identities of the items' keys. Raises like `known`, and the key function's
        errors.
        """
        keys = tuple(map(self.key_of, items))
        if PLAIN.issuperset(map(type, keys)):
            return cast("tuple[Hashable, ...]", keys)
        return tuple(map(self.known, keys))

    def given(self, keys: Sequence[Hashable]) -> list[object]:
        """Return the keys as given."""
        return [shown(key) for key in keys] if self._odd else list(keys)
