"""Items that are added together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from ..receipt import ReceiptBase

T = TypeVar("T")


class AddGroup(NamedTuple, Generic[T]):
    """Items of one call, all accepted or none; a column is `None` where nothing has it."""

    items: tuple[T, ...]
    sizes: tuple[int, ...] | None = None
    receipts: tuple[ReceiptBase | None, ...] | None = None
    keys: tuple[Hashable, ...] | None = None

    @property
    def bytes(self) -> int:
        """The total size; 0 without sizes."""
        return 0 if self.sizes is None else sum(self.sizes)

    def rows(self) -> Iterator[tuple[T, int, ReceiptBase | None, Hashable]]:
        """Each item with its size, receipt and key."""
        count = len(self.items)
        nothing, sizes = (None,) * count, self.sizes or (0,) * count
        return zip(self.items, sizes, self.receipts or nothing, self.keys or nothing, strict=True)
