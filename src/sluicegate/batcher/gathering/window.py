"""The fast path: appending to the open batch within one limit.

For measured items there is also one comparison with the room in bytes, and an exact ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ..._core.runtime.loops import NO_LOOP, runs_in_thread
from .pack import Pack

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable, Sequence

    from ..._core.runtime.loops import RunsInThread
    from ..ledger import Ledger
    from ..receipt import Resolvable


YIELD_EVERY = 128
"""Items that a producer in a tight loop may add without letting other tasks run."""
SLOW_PATH_WEIGHT = 8
"""Weight of an item added on the slow path, which takes at least this many times as long."""

T = TypeVar("T")


class Known(NamedTuple):
    """Values that the fast path has looked up for an item: columns of one row, or empty."""

    tenants: tuple[Hashable, ...] = ()
    sizes: tuple[object, ...] = ()
    """The result of `size_of`, unchecked."""


NOTHING = Known()


class NeedsSlowPath(Exception):
    """The fast path does not accept this item; raised before any change.

    `known` is passed to the slow path, so that each function is called once. It is not stored: the
    item may change before it is added again.
    """

    def __init__(self, known: Known) -> None:
        super().__init__()
        self.known = known


class AddWindow:
    """The limits of the fast path.

    While the open batch is shorter than `limit`, an item is simply appended. This single comparison
    covers an empty batch (the first item needs the time), a batch about to be full, a full ledger,
    waiting producers, a turn for other tasks, and a closed batcher. Measured items are also
    compared with the room in bytes; see `Scale`.
    """

    __slots__ = (
        "_base",
        "_ledger",
        "_unyielded",
        "is_for_trying_only",
        "is_open",
        "is_tight",
        "items",
        "limit",
        "loop",
        "receipts",
        "try_limit",
    )

    def __init__(self, ledger: Ledger) -> None:
        self.items: list[Any] = []
        """The open batch."""
        self.receipts: dict[int, Resolvable] = {}
        self.limit = 0
        self.try_limit = 0
        """Like `limit`, for `try_add`, which never yields."""
        self.is_tight = False
        """Whether more room in the ledger would widen it."""
        self.is_open = False
        self.is_for_trying_only = False
        """Whether only `try_add` may use it: other producers wait until their items are stored."""
        self.loop: RunsInThread = NO_LOOP
        """The loop on which the batcher is open: the fast path is for its thread."""
        self._ledger = ledger
        self._base = 0
        self._unyielded = 0

    def open_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open the fast path to callers on this loop, the running one."""
        self.loop = runs_in_thread(loop)

    def keep_for_trying(self) -> None:
        """Send all producers but `try_add` to the slow path, for good."""
        self.is_for_trying_only = True

    def __len__(self) -> int:
        """Items added on the fast path since it was opened."""
        return len(self.items) - self._base

    def close(self) -> None:
        """Close the fast path and book its items; every change of state begins with this."""
        if self.is_open:
            self.limit = self.try_limit = 0
            fresh = len(self.items) - self._base
            self._ledger.close_window(fresh)
            self.is_open = False
            self._unyielded += fresh

    def open(self, pack: Pack[Any], spare: int) -> None:
        """Open the fast path for at most `spare` items; every change of state ends with this."""
        if self.is_open:
            self.close()
        items = self.items = pack.items
        self.receipts = pack.receipts
        self.is_tight = False
        if spare <= 0:
            return
        ledger = self._ledger
        left = 0 if ledger.contended else ledger.left
        self.is_tight = left < spare
        if left <= 0:
            return
        filled = self._base = len(items)
        self.is_open = True
        ledger.open_window(self)
        self.try_limit = filled + min(spare, left)
        if not self.is_for_trying_only:
            self.limit = min(self.try_limit, filled + max(0, YIELD_EVERY - self._unyielded))
        if pack.scale is not None:
            pack.scale.allow(pack.bytes)

    def append(self, item: object, receipt: Resolvable | None) -> bool:
        """Append an item if the fast path is open; return whether it was open. Raises
        `NeedsSlowPath`.
        """
        filled = len(self.items)
        if filled >= self.limit:
            return False
        if receipt is not None:
            self.receipts[filled] = receipt
        self.items.append(item)
        return True

    def passed_by(self) -> None:
        """Count the room of an item that bypassed the open batch into its lane."""
        self._base -= 1
        self.limit -= 1
        self.try_limit -= 1

    def came(self, items: int) -> None:
        """Count items of the slow path, admitted or not."""
        self._unyielded += SLOW_PATH_WEIGHT * items

    @property
    def yield_due(self) -> bool:
        """Whether the producer should let other tasks run before its next item."""
        fresh = len(self.items) - self._base if self.is_open else 0
        return self._unyielded + fresh >= YIELD_EVERY

    def yielded(self) -> None:
        """Restart the count: other tasks have run, or are about to."""
        self._unyielded = 0
        if self.is_open:
            filled = len(self.items)
            self._unyielded = self._base - filled
            if not self.is_for_trying_only:
                self.limit = min(self.try_limit, filled + YIELD_EVERY)


class Scale(Generic[T]):
    """Measures the items of the fast path, and books their bytes.

    An item has room if it does not exceed the ledger's bytes, and neither reaches nor exceeds
    `max_bytes`.
    """

    __slots__ = ("_ledger", "_max_bytes", "_measure", "_room", "_window", "breaks")

    def __init__(
        self,
        measure: Callable[[T], int],
        max_bytes: int | None,
        ledger: Ledger,
        window: AddWindow,
        *,
        breaks: Callable[[BaseException, Sequence[T]], object],
    ) -> None:
        self.breaks = breaks
        self._measure = measure
        self._max_bytes = max_bytes
        self._ledger = ledger
        self._window = window
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
        size = self._measure(item)
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
