"""Finding the bad items of a batch for a sink that can only say "the batch failed".

A batch that is refused as a whole is written again in two halves, each half that is refused in two
quarters, and so on. Write n for the items, L for the next whole number above log2(n), and k for the
bad items. Only a part with a bad item in it is halved, and at depth d there are at most min(2^d, k)
of those, so there are at most

    1 + 2 x (min(1, k) + min(2, k) + min(4, k) + ... + min(2^(L-1), k))

writes: 2L + 1 for one bad item (21 of 1,000), 55 for three scattered ones, 2n - 1 if all are bad.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ..._core import checks
from ..._core.classify import classified
from ..._core.decorator import WrappingSink
from ..._core.errors import ErrorClass
from ..._core.result import WriteResult
from ..._core.send import send
from ..._core.sink import walk
from .parts import keep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..._core.batch import Batch
    from ..._core.sink import Capabilities, Classifier, Sink

T = TypeVar("T")


class Isolate:
    """Find the bad items of a batch that is refused as a whole, by writing its halves, and deliver
    the others.

    Args:
        max_writes: writes for one batch at most; what has not been told apart by then fails
            together. Default: no limit but the arithmetic.
        classify: a function from an exception to its `ErrorClass`, or `None` where it does not
            know; asked before the sink's own.

    Only a permanent error that all items of a write share is looked into: anything else says
    nothing about single items, and a sink that answers per item has found them by itself. One bad
    item of 1,000 costs at most 21 writes, three scattered ones 55. Parts are written in order, one
    after another. When the destination is not there or throttles, the parts that are left are not
    sent.

    Belongs inside of a `Retry`. Not for destinations that have applied part of a write that they
    refuse.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self, *, max_writes: int | None = None, classify: Classifier | None = None
    ) -> None:
        self.max_writes = checks.optional_count("max_writes", max_writes)
        if classify is not None and not callable(classify):
            raise checks.bad(
                "classify",
                classify,
                "must be a function from an exception to an ErrorClass or None",
            )
        self.classify = classify

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`. Raises `ConfigError` around a sink that would write again what it has
        written in part.
        """
        for part in walk(sink):
            reason = getattr(part, "refuses_isolate", None)
            if reason is not None:
                raise checks.bad("Isolate around", part, reason)
        return _IsolateSink(sink, self)

    def __repr__(self) -> str:
        return "Isolate()" if self.max_writes is None else f"Isolate(max_writes={self.max_writes})"


class _IsolateSink(WrappingSink[T]):
    def __init__(self, inner: Sink[T], settings: Isolate) -> None:
        super().__init__(inner)
        self._settings = settings

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped sink's, but a later item of a key may be written although an earlier one has
        failed.
        """
        return replace(super().capabilities, key_prefix_safe=False)

    def classify(self, error: BaseException) -> ErrorClass | None:
        """What the decorator's own classifier says, else the wrapped sink's."""
        own = None if self._settings.classify is None else self._settings.classify(error)
        return super().classify(error) if own is None else own

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        final: dict[int, BaseException] = {}
        left: list[tuple[Sequence[int], BaseException | None]] = [(range(len(batch)), None)]
        """Parts to be written, the first at the end, each with the error that it was halved for."""
        writes = 0
        away: BaseException | None = None
        while left:
            part, why = left.pop()
            why = away or (why if writes == self._settings.max_writes else None)
            if why is not None:
                final.update(dict.fromkeys(part, why))
                continue
            errors = await send(self.inner, batch.pick(part) if writes else batch)
            writes += 1
            shared = self._shared(part, errors)
            if shared is not None:
                batch.hold(part)
                middle = len(part) // 2
                left += [(part[middle:], shared), (part[:middle], shared)]
                continue
            away = keep(final, batch, part, errors, self.classify)
        return WriteResult.failed(batch, final) if final else None

    def _shared(
        self, part: Sequence[int], errors: Mapping[int, BaseException]
    ) -> BaseException | None:
        """The permanent error that all of a part has failed with, if there is more than one item to
        tell apart.
        """
        error = next(iter(errors.values()), None)
        if (
            error is None
            or not 1 < len(part) == len(errors)
            or any(other is not error for other in errors.values())
        ):
            return None
        return error if classified(error, self.classify) is ErrorClass.PERMANENT else None

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"
