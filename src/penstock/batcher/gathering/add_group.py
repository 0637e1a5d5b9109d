"""What comes in together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..receipt import ReceiptBase

T = TypeVar("T")


class AddGroup(NamedTuple, Generic[T]):
    """Items and what belongs to each of them."""

    items: tuple[T, ...]
    sizes: tuple[int, ...]
    receipts: tuple[ReceiptBase | None, ...]
    keys: tuple[Hashable, ...]
