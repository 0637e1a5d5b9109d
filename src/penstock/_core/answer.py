"""What a sink says of its batch, checked before any of it is booked.

An answer that does not fit its batch is `ResultMismatch`: an index that is none of the batch's, or
given twice, an outcome that is no success, an error that is no exception, a result for other items.
Whatever else such an answer says is not believed either, and the items are never sent again by
themselves, since some of them may have been applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from operator import index as whole
from typing import TYPE_CHECKING, Any, cast

from .errors import ResultMismatch
from .outcome import Outcome
from .text import repr_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHOWN = 5
"""Indices that a message shows of those that do not fit."""


def checked_indices(indices: object, size: int) -> Sequence[int]:
    """The indices as a sequence of their own: whole numbers of a batch of `size` items, each once.
    Raises `ResultMismatch`.
    """
    if type(indices) is range:
        if not indices or (
            min(indices[0], indices[-1]) >= 0 and max(indices[0], indices[-1]) < size
        ):
            return indices
        raise _stray([i for i in (indices[0], indices[-1]) if not 0 <= i < size], size)
    try:
        given = list(islice(cast("Iterable[Any]", indices), size + 1))
        if {*map(type, given)} - {int}:
            given = [_whole(each) for each in given]
    except Exception as error:
        message = (
            f"settle: the indices cannot be read ({type(error).__name__}); give the "
            "batch's own indices, whole numbers from 0"
        )
        raise ResultMismatch(message) from error
    if not given:
        return ()
    if min(given) < 0 or max(given) >= size:
        raise _stray([i for i in given if not 0 <= i < size], size)
    if len(set(given)) != len(given):
        raise ResultMismatch(
            f"settle: an index stands twice in {_some(given)}; give each item of the batch at "
            "most once"
        )
    return given


def checked_outcome(outcome: object) -> Outcome:
    """An outcome that can be settled. Raises `ResultMismatch`."""
    if isinstance(outcome, Outcome) and outcome.is_success:
        return outcome
    message = (
        f"settle(outcome={repr_of(outcome)}): only successes are settled (an Outcome: "
        "delivered, duplicate, spooled, dead_lettered); raise failures, or return them "
        "in a WriteResult"
    )
    raise ResultMismatch(message)


def checked_mapping(what: str, mapping: object) -> dict[Any, Any]:
    """A copy of the mapping as it is now. Raises `ResultMismatch` for one that cannot be read."""
    if not isinstance(mapping, Mapping):
        raise ResultMismatch(
            f"{what} are {repr_of(mapping)}; give a mapping from indices of the batch"
        )
    try:
        return dict(cast("Mapping[Any, Any]", mapping))
    except Exception as error:
        raise ResultMismatch(
            f"{what} cannot be read ({type(error).__name__}); give a mapping from indices of "
            "the batch"
        ) from error


def checked_errors(errors: object, size: int) -> dict[int, BaseException]:
    """A copy of a result's errors. Raises `ResultMismatch`."""
    found = _by_index("errors", errors, size)
    for index, error in found.items():
        if not isinstance(error, BaseException):
            raise ResultMismatch(
                f"the error of item {index} is {repr_of(error)}; give an exception, or leave "
                "the item out"
            )
    return found


def checked_outcomes(outcomes: object, size: int) -> dict[int, Outcome]:
    """A copy of a result's outcomes. Raises `ResultMismatch`."""
    found = _by_index("outcomes", outcomes, size)
    for index, outcome in found.items():
        if not isinstance(outcome, Outcome) or not outcome.is_success:
            raise ResultMismatch(
                f"the outcome of item {index} is {repr_of(outcome)}; give a success, and "
                "failures as errors"
            )
    return found


def checked_details(details: object, size: int) -> dict[int, object]:
    """A copy of a result's details. Raises `ResultMismatch`."""
    return _by_index("details", details, size)


def _by_index(what: str, mapping: object, size: int) -> dict[int, Any]:
    found = checked_mapping(what, mapping)
    for index in found:
        if isinstance(index, bool) or not isinstance(index, int):
            raise ResultMismatch(
                f"{what} are given for {repr_of(index)}; give indices of the batch, whole "
                "numbers from 0"
            )
    stray = [index for index in found if not 0 <= index < size]
    if stray:
        message = (
            f"{what} for items {_some(stray)} of a batch of {size} items; the outcome of "
            "every item is unknown"
        )
        raise ResultMismatch(message)
    return found


def _whole(index: object) -> int:
    if isinstance(index, bool):
        raise TypeError
    return whole(cast("Any", index))


def _stray(stray: Sequence[int], size: int) -> ResultMismatch:
    message = (
        f"settle: {_some(stray)} are no indices of a batch of {size} items; the outcome "
        "of every item that was not settled is unknown"
    )
    return ResultMismatch(message)


def _some(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:SHOWN]))
    return f"[{shown}]" if len(indices) <= SHOWN else f"[{shown}, ...]"
