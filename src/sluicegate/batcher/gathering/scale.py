"""The fast path for measured items: one comparison with the room in bytes, and an exact ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from .window import Known, NeedsSlowPath

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._core.ledger import Ledger
    from .window import AddWindow

T = TypeVar("T")


class Scale(Generic[T]):
    """Measures the items of the fast path, and books their bytes.

    An item has room if it does not exceed the ledger's bytes, and neither reaches nor exceeds
    `max_bytes`.
    """

    __slots__ = ("_ledger", "_max_bytes", "_measure", "_on_error", "_room", "_window", "breaks")

    def __init__(
        self,
        measure: Callable[[T], int],
        max_bytes: int | None,
        ledger: Ledger,
        window: AddWindow,
        *,
        on_error: Callable[[BaseException], object],
        breaks: Callable[[BaseException, Sequence[T]], object],
    ) -> None:
        self.breaks = breaks
        self._measure = measure
        self._max_bytes = max_bytes
        self._ledger = ledger
        self._window = window
        self._on_error = on_error
        self._room = 0.0

    def allow(self, filled: int) -> None:
        """Set the room of the fast path, with `filled` bytes in the open batch."""
        self._room = self._ledger.left_bytes
        if self._max_bytes is not None:
            self._room = min(self._room, self._max_bytes - filled - 1)

    def weigh(self, item: T, opened: list[T]) -> int:
        """Measure an item that is appended to `opened`, and book its bytes.

        Raises `NeedsSlowPath` with its size if there is no room, and the function's errors. In both
        cases the item was not accepted, and its receipt is no longer kept.
        """
        window = self._window
        receipts, place = window.receipts, len(opened)
        receipt = receipts.pop(place, None) if receipts else None
        try:
            size = self._measure(item)
        except BaseException as error:
            self._on_error(error)
            raise
        if (
            type(size) is not int
            or not 0 <= size <= self._room
            or window.items is not opened  # the function may have used the batcher
            or len(opened) >= window.try_limit
        ):
            raise NeedsSlowPath(Known(sizes=(size,)))
        if receipt is not None:
            receipts[len(opened)] = receipt
        self._room -= size
        try:
            self._ledger.entered(0, size)  # the item itself is counted by the window
        except BaseException as error:
            self.breaks(error, ())
            raise
        return size

    def take_back(self, size: int) -> None:
        """Undo the booking of an item that was not accepted."""
        self._room += size
        self._ledger.left_queue(0, size)
