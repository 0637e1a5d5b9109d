"""Checks of a sink's answer, before any of it is booked.

An answer that does not fit its batch raises `ResultMismatch`: an index that is out of range or
repeated, an outcome that is not safe, an error that is not an exception, a result for other
items. The rest of such an answer is not trusted either, and the items are never resent
automatically, since some of them may have been applied.
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
"""Maximum number of out-of-range indices in a message."""


def checked_indices(indices: object, size: int) -> Sequence[int]:
    """Check and copy indices: whole numbers from 0 to `size` - 1, not repeated."""
    if type(indices) is range:
        ends = (indices[0], indices[-1]) if indices else ()
        if stray := [i for i in ends if not 0 <= i < size]:
            raise _stray(stray, size)
        return indices
    try:
        given = list(islice(cast("Iterable[Any]", indices), size + 1))
        if {*map(type, given)} - {int}:
            given = [_whole(each) for each in given]
    except Exception as error:
        raise ResultMismatch(
            f"settle: the indices cannot be read ({type(error).__name__}); give the batch's own "
            "indices, whole numbers from 0"
        ) from error
    if given and (min(given) < 0 or max(given) >= size):
        raise _stray([i for i in given if not 0 <= i < size], size)
    if len(set(given)) != len(given):
        raise ResultMismatch("settle: an index is repeated; give each item at most once")
    return given


def checked_outcome(outcome: object) -> Outcome:
    """Check that `outcome` can be settled. Raises `ResultMismatch`."""
    if isinstance(outcome, Outcome) and outcome.is_safe:
        return outcome
    raise ResultMismatch(
        f"settle(outcome={repr_of(outcome)}): only safe outcomes are settled (an Outcome: "
        "delivered, duplicate, spooled, dead_lettered); raise failures, or return them in a WriteResult"
    )


def settled_details(details: object) -> Mapping[int, object] | None:
    """Check and copy the details of a `settle`. Raises `ResultMismatch`."""
    return None if details is None else checked_mapping("settle: the details", details)


def checked_mapping(what: str, mapping: object) -> dict[Any, Any]:
    """Return a copy of the mapping. Raises `ResultMismatch` if it cannot be read."""
    rule = "give a mapping from indices of the batch"
    if not isinstance(mapping, Mapping):
        raise ResultMismatch(f"{what} are {repr_of(mapping)}; {rule}")
    try:
        return dict(cast("Mapping[Any, Any]", mapping))
    except Exception as error:
        raise ResultMismatch(f"{what} cannot be read ({type(error).__name__}); {rule}") from error


def checked_errors(errors: object, size: int) -> dict[int, BaseException]:
    """Check and copy a result's errors. Raises `ResultMismatch`."""
    found = _by_index("errors", errors, size)
    if all(issubclass(kind, BaseException) for kind in {*map(type, found.values())}):
        return found
    for i, error in found.items():
        if not isinstance(error, BaseException):
            given = f"the error of item {i} is {repr_of(error)}"
            raise ResultMismatch(f"{given}; give an exception, or leave the item out")
    return found


def checked_outcomes(outcomes: object, size: int) -> dict[int, Outcome]:
    """Check and copy a result's outcomes. Raises `ResultMismatch`."""
    found = _by_index("outcomes", outcomes, size)
    for i, outcome in found.items():
        if not isinstance(outcome, Outcome) or not outcome.is_safe:
            given = f"the outcome of item {i} is {repr_of(outcome)}"
            raise ResultMismatch(
                f"{given}; give a safe outcome (delivered, duplicate, spooled, dead_lettered), and failures as errors"
            )
    return found


def checked_details(details: object, size: int) -> dict[int, object]:
    """Check and copy a result's details. Raises `ResultMismatch`."""
    return _by_index("details", details, size)


def _by_index(what: str, mapping: object, size: int) -> dict[int, Any]:
    found = checked_mapping(what, mapping)
    if not found or ({*map(type, found)} == {int} and min(found) >= 0 and max(found) < size):
        return found
    given = f"{what} are given for {repr_of([*found][:SHOWN])} in a batch of {size} items"
    raise ResultMismatch(f"{given}; give indices of the batch, whole numbers from 0")


def _whole(index: object) -> int:
    if isinstance(index, bool):
        raise TypeError
    return whole(cast("Any", index))


def _stray(stray: Sequence[int], size: int) -> ResultMismatch:
    given = f"settle: {stray[:SHOWN]} are not indices of a batch of {size} items"
    return ResultMismatch(f"{given}; the outcome of every item that was not settled is unknown")
