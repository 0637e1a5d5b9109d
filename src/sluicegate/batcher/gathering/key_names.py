"""The keys of items, and their identities in lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from ..._core.order.keys import PLAIN, identity, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

T = TypeVar("T")


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
