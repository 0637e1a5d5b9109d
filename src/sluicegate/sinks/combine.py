"""Items of one key are merged before they are written."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Generic, TypeVar

from .._core import checks
from .._core.classify import caused
from .._core.decorator import WrappingSink
from .._core.errors import PermanentError
from .._core.logs import for_log
from .._core.public import publish
from .._core.send import send
from .._core.sink import WriteResult
from .._core.stacking import as_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from .._core.batch import Batch
    from .._core.sink import SinkLike

T = TypeVar("T")


class Combine(WrappingSink[T], Generic[T]):
    """Merges the items of each key, in their order, and writes one per key, ordered by the keys'
    first items.

    Args:
        sink: the destination, a sink or a function of a batch.
        key: a function from an item to its key, which must be hashable. If it raises, only that
            item fails, permanently.
        merge: a function from the merged item so far and the next item to the merged item. It must
            not change its arguments: they may be merged again. If it raises, the items of that key
            fail permanently.

    Every item has the outcome of its merged item, even after a retry, a dead letter or a
    cancellation. Raises `ConfigError` for a bad argument.

    Examples:
        >>> import asyncio
        >>> from sluicegate import RowBatch, send
        >>> from sluicegate.sinks import Combine
        >>> from sluicegate.sinks import MemorySink
        >>> sums = MemorySink()
        >>> sink = Combine(sums, key=lambda hit: hit[0], merge=lambda one, two: (one[0], one[1] + two[1]))
        >>> hits = RowBatch([("home", 1), ("about", 1), ("home", 1)])
        >>> asyncio.run(send(sink, hits))
        {}
        >>> sums.items
        [('home', 2), ('about', 1)]
    """

    def __init__(
        self, sink: SinkLike[T], *, key: Callable[[T], Hashable], merge: Callable[[T, T], T]
    ) -> None:
        super().__init__(as_sink(sink))
        for name, function in (("key", key), ("merge", merge)):
            if not callable(function):
                raise checks.bad(name, function, "must be a function")
        self._key = key
        self._merge = merge

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Merge and write; suspends for the write."""
        errors: dict[int, BaseException] = {}
        groups: dict[Hashable, list[int]] = {}
        for index, item in enumerate(batch):
            try:
                groups.setdefault(self._key(item), []).append(index)
            except Exception as error:
                errors[index] = _refused("key", error)
        merged: list[T] = []
        members: list[list[int]] = []
        for indices in groups.values():
            try:
                merged.append(reduce(self._merge, [batch[index] for index in indices]))
            except Exception as error:
                errors.update(dict.fromkeys(indices, _refused("merge", error)))
            else:
                members.append(indices)
        kept = sorted(index for indices in members for index in indices)
        place = {index: position for position, index in enumerate(kept)}
        rows = batch.pick(kept).derive(
            merged, [[place[index] for index in indices] for indices in members]
        )
        failed = await send(self.inner, rows)
        errors.update({index: error for row, error in failed.items() for index in members[row]})
        return WriteResult.failed(batch, errors) if errors else None

    def __repr__(self) -> str:
        return f"Combine({self.inner!r})"


def _refused(name: str, error: Exception) -> PermanentError:
    made = PermanentError(f"{name} raised {error!r}")
    return caused(made, error, summary=f"{name} raised {for_log(error)}")


publish("sluicegate.sinks", Combine)
