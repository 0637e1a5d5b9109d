"""Batches written in parts: small enough for the destination, or halved to find bad items.

`Isolate` is for a sink that cannot name the bad items. Items that are refused together are written
again in two halves, each refused half in two quarters, and so on. They are refused together if they
share one exception: the whole batch, or the items of one request of several. Let n be the number of
items, L the next whole number above log2(n), and k the number of bad items. Only a part with a bad
item is halved, and at depth d there are at most min(2^d, k) of those, so there are at most

    1 + 2 x (min(1, k) + min(2, k) + min(4, k) + ... + min(2^(L-1), k))

writes: 2L + 1 for one bad item (21 of 1,000), 55 for three scattered ones, 2n - 1 if all are bad.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from .._core import checks
from .._core.classify import by_error, caused, classified, first_answer
from .._core.decorator import WrappingSink
from .._core.errors import ErrorClass, PermanentError, WithdrawnError
from .._core.keywords import known_arguments
from .._core.public import publish
from .._core.send import send
from .._core.sink import RefusesIsolate, SinkDecorator, WriteResult, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .._core.batch import Batch
    from .._core.classify import Classifier
    from .._core.sink import Capabilities, Sink


T = TypeVar("T")

ENDS_PARTS = frozenset(
    {ErrorClass.UNAVAILABLE, ErrorClass.REFUSED, ErrorClass.THROTTLE, ErrorClass.STOPPED}
)
"""Classes of errors after which the remaining parts are not written."""
"""After one of these, the remaining parts are not sent and end with the same error: the destination
is unavailable, throttles, or the batcher stops.
"""


@known_arguments()
class Split(SinkDecorator):
    """Writes each batch in parts of at most `max_items` items and `max_bytes` bytes, in order, one
    after another.

    Args:
        max_items: items in one write; default no limit.
        max_bytes: bytes in one write; default no limit. A larger item is written alone.

    The size of an item is that of the batcher's `size_of`, or the length of bytes-like items; an
    unmeasurable item fails alone. A failed part does not affect the others, unless the destination
    is unavailable or throttles: then the remaining parts are not sent and end with the same error.
    The result covers the whole batch, by its indices.

    Raises `ConfigError` without a limit, and for a bad argument.

    Examples:
        >>> import asyncio
        >>> from sluicegate import RowBatch, send, stack
        >>> from sluicegate.sinks import Split
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
    ) -> None:
        self.max_items = checks.optional_count("max_items", max_items)
        self.max_bytes = checks.optional_count("max_bytes", max_bytes)
        if max_items is None and max_bytes is None:
            raise checks.bad(
                "max_items", None, "must be given, or max_bytes; nothing would be split otherwise"
            )

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
        sizes, errors = measured(batch)
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


@known_arguments()
class Isolate(SinkDecorator):
    """Finds the bad items of a refused batch by writing its halves, and delivers the others.

    Args:
        classify: a function from an exception to its `ErrorClass`, or to `None` for any other
            exception; consulted before the sink's own.

    Only a permanent error that several items of a write share is investigated: other errors give no
    information about individual items, and an item with an error of its own is already identified.
    One bad item of 1,000 costs at most 21 writes, three scattered ones 55. Parts are written in
    order, one after another. If the destination is unavailable or throttles, the remaining parts
    are not sent.

    Place it inside a `Retry`. Not for destinations that may have applied part of a refused write.

    Raises `ConfigError` for a bad argument.

    Examples:
        >>> import asyncio
        >>> from sluicegate import PermanentError, RowBatch, send, stack
        >>> from sluicegate.sinks import Isolate
        >>> async def insert(batch):
        ...     if "bad" in batch:
        ...         raise PermanentError("violates a constraint")
        ...     print("wrote", *batch)
        >>> batch = RowBatch(["a", "b", "bad", "c"])
        >>> errors = asyncio.run(send(stack(insert, Isolate()), batch))
        wrote a b
        wrote c
        >>> list(errors)  # by the item's place in the batch
        [2]
    """

    def __init__(self, *, classify: Classifier | None = None) -> None:
        if classify is not None and not callable(classify):
            raise checks.bad(
                "classify",
                classify,
                "must be a function from an exception to an ErrorClass or None",
            )
        self.classify = classify

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`. Raises `ConfigError` for a sink that would repeat a partial write."""
        for part in walk(sink):
            if isinstance(part, RefusesIsolate):
                raise checks.bad("Isolate around", part, part.refuses_isolate)
        return _IsolateSink(sink, self)

    def __repr__(self) -> str:
        return "Isolate()"


class _IsolateSink(WrappingSink[T]):
    def __init__(self, inner: Sink[T], settings: Isolate) -> None:
        super().__init__(inner)
        self._settings = settings

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped sink's, except that a failed item does not stop a later one of its key."""
        return replace(super().capabilities, key_prefix_safe=False)

    def classify(self, error: BaseException) -> ErrorClass | None:
        """The class by the decorator's own classifier, or else by the wrapped sink's."""
        return first_answer(error, self._settings.classify, super().classify)

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        errors = await send(self.inner, batch)
        if not errors:
            return None
        final: dict[int, BaseException] = {}
        left: list[Sequence[int]] = []
        """Remaining parts, the next one last."""
        final_error = self._sort(batch, range(len(batch)), errors, final, left)
        while left:
            part = left.pop()
            if final_error is not None:
                final.update(dict.fromkeys(part, final_error))
                continue
            errors = await send(self.inner, batch.pick(part))
            final_error = self._sort(batch, part, errors, final, left)
        return WriteResult.failed(batch, final) if final else None

    def _sort(
        self,
        batch: Batch[T],
        part: Sequence[int],
        errors: Mapping[int, BaseException],
        final: dict[int, BaseException],
        left: list[Sequence[int]],
    ) -> BaseException | None:
        """Halve the items that were refused together, and keep the other errors; return the error
        that stops the remaining parts, if any.
        """
        kept: dict[int, BaseException] = {}
        together: list[Sequence[int]] = []
        for error, indices in by_error(errors):
            if len(indices) > 1 and classified(error, self.classify) is ErrorClass.PERMANENT:
                together.append([part[index] for index in indices])
            else:
                kept.update(dict.fromkeys(indices, error))
        for items in reversed(together):
            batch.hold(items)
            middle = len(items) // 2
            left += [items[middle:], items[:middle]]
        return keep(final, batch, part, kept, self.classify)

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"


def keep(
    final: dict[int, BaseException],
    batch: Batch[T],
    part: Sequence[int],
    errors: Mapping[int, BaseException],
    classify: Classifier,
) -> BaseException | None:
    """Add the errors of a part to `final`; return the error that stops the remaining parts, if any.

    Items without a permanent error are not in flight meanwhile and may be resent, so a cancellation
    leaves them unsent.
    """
    own = {part[index]: error for index, error in errors.items()}
    final.update(own)
    stops: BaseException | None = None
    resent: list[int] = []
    for error, indices in by_error(own):
        kind = classified(error, classify)
        if kind is not ErrorClass.PERMANENT:
            resent += indices
        if stops is None and kind in ENDS_PARTS and not isinstance(error, WithdrawnError):
            stops = error
    batch.hold(resent, tried=True)
    return stops


def measured(batch: Batch[T]) -> tuple[Sequence[int], dict[int, BaseException]]:
    """The items' sizes in bytes, and an error for each unmeasurable item (its size is then 0)."""
    if batch.sizes is not None:
        return batch.sizes, {}
    sizes: list[int] = []
    errors: dict[int, BaseException] = {}
    for index, item in enumerate(batch):
        try:
            sizes.append(_size_of_bytes(item))
        except Exception as error:
            errors[index] = _not_measured(item, error)
            sizes.append(0)
    return sizes, errors


def _size_of_bytes(item: object) -> int:
    if isinstance(item, (bytes, bytearray)):
        return len(item)
    if isinstance(item, memoryview):
        return item.nbytes
    raise TypeError("give size_of= to the batcher, unless items are bytes-like")


def _not_measured(item: object, error: Exception) -> PermanentError:
    message = f"the size of this item ({type(item).__name__}) cannot be measured: {error}"
    return caused(PermanentError(message), error)


publish("sluicegate.sinks", Isolate, Split)
