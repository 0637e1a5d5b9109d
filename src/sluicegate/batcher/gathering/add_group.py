"""Items that are added together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from ..resolvable import Resolvable

T = TypeVar("T")


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
