"""The open batch of a keyed gatherer, and the fast path into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from ..._core.order.keys import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")


class FastPath(Protocol[T]):
    """What the open batch needs of its gatherer."""

    key: Callable[[T], object]
    active: set[Hashable]
    """The keys of which something is on its way, held or waiting."""
    repeats: bool
    """Whether a batch may have several items of one key."""

    def known(self, key: object) -> Hashable:
        """What stands for a key."""
        ...

    def raised(self, place: int, error: BaseException) -> None:
        """The key function has raised; the item for this place is not in."""

    def pass_by(self, item: T, key: Hashable) -> None:
        """Put an item into its lane, past the open batch."""

    def begins(self) -> None:
        """The first item is coming."""


class KeyedOpenBatch(list[T]):
    """The open batch; routes items of busy keys to their lanes."""

    __slots__ = ("_active", "_gatherer", "_key", "_repeats", "keys", "open_keys")

    join = list[T].append
    """Append an item whose key is known and free."""

    def __init__(self, gatherer: FastPath[T]) -> None:
        self._gatherer = gatherer
        self._active = gatherer.active
        self._key = gatherer.key
        self._repeats = gatherer.repeats
        self.keys: list[Hashable] = []
        """The items' keys, by index."""
        self.open_keys: set[Hashable] = set()
        """Keys in it of which more items may join: with `repeats` only."""

    def append(self, item: T, /) -> None:
        """Take an item in, or put it into its lane. Raises what its key function raises."""
        key_of = self._key
        try:
            key = key_of(item)
            if type(key) not in PLAIN:
                key = self._gatherer.known(key)
        except BaseException as error:
            self._gatherer.raised(len(self), error)
            raise
        if key in self._active:
            if key not in self.open_keys:
                self._gatherer.pass_by(item, key)
                return
        else:
            self._active.add(key)
            if self._repeats:
                self.open_keys.add(key)
        if not self:
            self._gatherer.begins()
        self.keys.append(key)
        self.join(item)
