"""Batches written in parts small enough for the destination."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..._core import checks
from ..._core.decorator import WrappingSink
from ..._core.keywords import known_arguments
from ..._core.send import send
from ..._core.sink import SinkDecorator, WriteResult
from .parts import keep, measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ..._core.batch import Batch
    from ..._core.sink import Capabilities, Sink

T = TypeVar("T")


@known_arguments()
class Split(SinkDecorator):
    """Writes each batch in parts of at most `max_items` items and `max_bytes` bytes, in order, one
    after another.

    Args:
        max_items: items in one write; default no limit.
        max_bytes: bytes in one write; default no limit. A larger item is written alone.
        size_of: a function from an item to its size in bytes; default: the batcher's measurement,
            or the length of bytes-like items. An unmeasurable item fails alone.

    A failed part does not affect the others, unless the destination is unavailable or throttles:
    then the remaining parts are not sent and end with the same error. The result covers the whole
    batch, by its indices.

    Raises `ConfigError` without a limit, and for a bad argument.

    Examples:
        >>> import asyncio
        >>> from sluicegate import RowBatch, Split, send, stack
        >>> async def write(batch):
        ...     print("wrote", *batch)
        >>> asyncio.run(send(stack(write, Split(2)), RowBatch("abc")))
        wrote a b
        wrote c
        {}
    """

    def __init__(
        self,
        max_items: int | None = None,
        *,
        max_bytes: int | None = None,
        size_of: Callable[[Any], int] | None = None,
    ) -> None:
        self.max_items = checks.optional_count("max_items", max_items)
        self.max_bytes = checks.optional_count("max_bytes", max_bytes)
        if max_items is None and max_bytes is None:
            raise checks.bad(
                "max_items", None, "must be given, or max_bytes; nothing would be split otherwise"
            )
        if size_of is not None and (max_bytes is None or not callable(size_of)):
            raise checks.bad(
                "size_of",
                size_of,
                "must be a function from an item to its size in bytes, and goes with max_bytes",
            )
        self.size_of = size_of

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        return _SplitSink(sink, self)

    def __repr__(self) -> str:
        return f"Split(max_items={self.max_items}, max_bytes={self.max_bytes})"


class _SplitSink(WrappingSink[T]):
    def __init__(self, inner: Sink[T], settings: Split) -> None:
        super().__init__(inner)
        self._settings = settings

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped sink's, except that a failed item does not stop a later one of its key."""
        return replace(super().capabilities, key_prefix_safe=False)

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        final: dict[int, BaseException] = {}
        final_error: BaseException | None = None
        batch.hold(range(len(batch)))
        for part in self._parts(batch, final):
            if final_error is not None:
                final.update(dict.fromkeys(part, final_error))
                continue
            errors = await send(self.inner, batch if len(part) == len(batch) else batch.pick(part))
            final_error = keep(final, batch, part, errors, self.classify)
        return WriteResult.failed(batch, final) if final else None

    def _parts(self, batch: Batch[T], refused: dict[int, BaseException]) -> Iterable[Sequence[int]]:
        settings = self._settings
        most = settings.max_items or len(batch)
        if settings.max_bytes is None:
            return [
                range(first, min(first + most, len(batch))) for first in range(0, len(batch), most)
            ]
        sizes, errors = measured(batch, settings.size_of)
        refused.update(errors)
        return list(
            _pack(
                sizes, [i for i in range(len(batch)) if i not in errors], most, settings.max_bytes
            )
        )

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"


def _pack(
    sizes: Sequence[int], indices: Iterable[int], max_items: int, max_bytes: int
) -> Iterator[list[int]]:
    """Fill parts in order; the first item of a part always fits."""
    part: list[int] = []
    full = 0
    for index in indices:
        if part and (len(part) == max_items or full + sizes[index] > max_bytes):
            yield part
            part, full = [], 0
        part.append(index)
        full += sizes[index]
    if part:
        yield part
