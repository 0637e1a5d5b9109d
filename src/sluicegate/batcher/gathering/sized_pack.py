"""The open batch of measured items, and the fast path into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .pack import Pack

if TYPE_CHECKING:
    from .scale import Scale

T = TypeVar("T")


class SizedOpenBatch(list[T]):
    """The open batch; measures the items of the fast path."""

    __slots__ = ("_pack", "_scale")

    join = list[T].append

    def __init__(self, pack: Pack[T], scale: Scale[T]) -> None:
        self._pack = pack
        self._scale = scale

    def append(self, item: T, /) -> None:
        """Append an item. Raises like `Scale.weigh`."""
        size, filled = self._scale.weigh(item, self), len(self)
        try:
            self.join(item)
            self._pack.weigh(size)
        except BaseException as error:
            self._scale.breaks(error, (item,) if len(self) > filled else ())
            raise


class SizedPack(Pack[T]):
    """The columns of an open batch of measured items."""

    __slots__ = ()

    def __init__(self, scale: Scale[T]) -> None:
        super().__init__(sized=True, make=lambda: SizedOpenBatch(self, scale), scale=scale)
