"""The open batch of a keyed accumulator, and the short way into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..._core.order.keys import PLAIN

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .keyed import KeyedAccumulator

T = TypeVar("T")


class KeyedOpenBatch(list[T]):
    """A list that asks for the key of what is appended to it: if something of that is on its way
    elsewhere, the item goes into its lane.
    """

    __slots__ = ("_accumulator", "_active", "_key", "_repeats", "keys", "open_keys")

    join = list[T].append
    """Take an item in whose key is known, and may come."""

    def __init__(self, accumulator: KeyedAccumulator[T]) -> None:
        self._accumulator = accumulator
        self._active = accumulator.lanes.active
        self._key = accumulator.key
        self._repeats = accumulator.repeats
        self.keys: list[Hashable] = []
        """The items' keys, by index."""
        self.open_keys: set[Hashable] = set()
        """The keys of which more may join: those in it, where a batch may have several items of a
        key.
        """

    def append(self, item: T, /) -> None:
        """Take an item in, or put it into its lane. Raises what its key function raises; it is not
        in then.
        """
        key_of = self._key
        try:
            key = key_of(item)
            if type(key) not in PLAIN:
                key = self._accumulator.known(key)
        except BaseException as error:
            self._accumulator.receipts.pop(len(self), None)
            self._accumulator.raised(error)
            raise
        if key in self._active:
            if key not in self.open_keys:
                self._accumulator.pass_by(item, key)
                return
        else:
            self._active.add(key)
            if self._repeats:
                self.open_keys.add(key)
        self.keys.append(key)
        if self:
            self.join(item)
        else:
            self.join(item)
            self._accumulator.begun()
