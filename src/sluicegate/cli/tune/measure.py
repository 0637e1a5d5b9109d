"""Measurement of a sink: writes of one size, one after another or by several workers.

1. Every write goes through `send`, as a batcher's does; a batcher adds microseconds.
2. The first write of each size is not counted: it opens connections and fills caches.
3. Every item is new: the numbers passed to the user's function never repeat within a run.
4. A failed write ends the measurement: the duration of a failure is meaningless.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import TYPE_CHECKING, Any, cast

from ..._core.batch import RowBatch
from ..._core.clock import LOOP_CLOCK
from ..._core.send import send
from .worksheet import Measured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..._core.sink import Sink

SAMPLE = 100
"""Items sampled for the mean size of one."""
DEEP = 4
"""Number of levels of nested containers that are measured."""


class WriteFailed(Exception):
    """A write has failed, which ends the measurement."""

    def __init__(self, size: int, error: BaseException) -> None:
        super().__init__(
            f"a write of {size:,} {'item' if size == 1 else 'items'} failed: "
            f"{type(error).__name__}: {error}"
        )
        self.size = size


class NoItem(Exception):
    """The user's function could not make an item."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(
            f"no item could be made from the number {number:,}: {type(error).__name__}: {error}"
        )


class Measurement:
    """One run against an open sink.

    `item` makes an item from a number; `tell` is called at the start of each size and after each
    write.
    """

    def __init__(
        self,
        sink: Sink[Any],
        item: Callable[[int], Any],
        *,
        repeats: int,
        tell: Callable[[int, int, int], object],
    ) -> None:
        self._sink = sink
        self._item = item
        self._repeats = repeats
        self._tell = tell
        self._numbers = itertools.count()
        self.items = 0
        """Items written."""

    async def size(self, size: int) -> Measured:
        """Measure one batch size with one worker. Raises `WriteFailed` and `NoItem`."""
        return await self.workers(size, 1)

    async def workers(self, size: int, workers: int) -> Measured:
        """Measure one batch size with concurrent workers. Raises `WriteFailed` and `NoItem`."""
        done = itertools.count(1)
        everything = workers * (self._repeats + 1)
        self._tell(size, 0, everything)

        async def work() -> list[float]:
            seconds: list[float] = []
            for _ in range(self._repeats + 1):
                seconds.append(await self._write(size))
                self._tell(size, next(done), everything)
            return seconds[1:]

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        try:
            return Measured(size, tuple(itertools.chain(*await asyncio.gather(*tasks))), workers)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, size: int) -> float:
        batch = RowBatch(
            _make_item(self._item, number) for number in itertools.islice(self._numbers, size)
        )
        began = LOOP_CLOCK.now()
        errors = await send(self._sink, batch)
        if errors:
            raise WriteFailed(size, next(iter(errors.values())))
        self.items += size
        return LOOP_CLOCK.now() - began


def _make_item(item: Callable[[int], Any], number: int) -> object:
    try:
        return item(number)
    except Exception as error:
        raise NoItem(number, error) from error


def item_bytes(item: Callable[[int], Any]) -> int:
    """Estimate the mean memory of an item with its contents; shared parts count each time.

    Raises `NoItem`.
    """
    return max(1, sum(_bytes(_make_item(item, number), DEEP) for number in range(SAMPLE)) // SAMPLE)


def _bytes(value: object, deep: int) -> int:
    own = sys.getsizeof(value)
    if not deep:
        return own
    if isinstance(value, dict):
        pairs = cast("Mapping[object, object]", value)
        return own + sum(
            _bytes(key, deep - 1) + _bytes(part, deep - 1) for key, part in pairs.items()
        )
    if isinstance(value, (list, tuple, set, frozenset)):
        return own + sum(_bytes(part, deep - 1) for part in cast("Sequence[object]", value))
    return own + (
        _bytes(vars(value), deep - 1)
        if hasattr(value, "__dict__") and not isinstance(value, type)
        else 0
    )
