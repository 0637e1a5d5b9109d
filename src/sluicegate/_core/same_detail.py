"""One detail for many items, such as the object in which a whole batch is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class SameDetail(Mapping[int, object]):
    """Maps each index of a range to the same detail, without an entry per item. Immutable."""

    __slots__ = ("_detail", "_indices")

    def __init__(self, indices: range, detail: object) -> None:
        self._indices = indices
        self._detail = detail

    def __getitem__(self, index: int) -> object:
        if index in self._indices:
            return self._detail
        raise KeyError(index)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


def same_detail(indices: Sequence[int], detail: object) -> Mapping[int, object]:
    """The same detail for each of these items."""
    if isinstance(indices, range):
        return SameDetail(indices, detail)
    return dict.fromkeys(indices, detail)
