"""Functions shared by the decorators that write a batch in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..._core.classify import by_error, caused, classified
from ..._core.errors import ErrorClass, PermanentError, WithdrawnError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..._core.batch import Batch
    from ..._core.classify import Classifier

T = TypeVar("T")

ENDS_PARTS = frozenset(
    {ErrorClass.UNAVAILABLE, ErrorClass.REFUSED, ErrorClass.THROTTLE, ErrorClass.STOPPED}
)
"""After one of these, the remaining parts are not sent and end with the same error: the destination
is unavailable, throttles, or the batcher stops.
"""


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


def measured(
    batch: Batch[T], size_of: Callable[[T], int] | None
) -> tuple[Sequence[int], dict[int, BaseException]]:
    """The items' sizes in bytes, and an error for each unmeasurable item (its size is then 0).

    The size comes from `size_of`, or else from the batcher, or else from the length of bytes-like
    items.
    """
    if size_of is None and batch.sizes is not None:
        return batch.sizes, {}
    sizes: list[int] = []
    errors: dict[int, BaseException] = {}
    for index, item in enumerate(batch):
        try:
            sizes.append(_size_of_bytes(item) if size_of is None else size_of(item))
        except Exception as error:
            errors[index] = _not_measured(item, error)
            sizes.append(0)
    return sizes, errors


def _size_of_bytes(item: object) -> int:
    if isinstance(item, (bytes, bytearray)):
        return len(item)
    if isinstance(item, memoryview):
        return item.nbytes
    raise TypeError("give size_of= to the decorator or to the batcher, unless items are bytes-like")


def _not_measured(item: object, error: Exception) -> PermanentError:
    message = f"the size of this item ({type(item).__name__}) cannot be measured: {error}"
    return caused(PermanentError(message), error)
