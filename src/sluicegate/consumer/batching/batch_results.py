"""Conversion of a batch handler's return value into one result per message. Pure.

| returned | a message | `on_mismatch="retry"` |
|---|---|---|
| `None` | is acknowledged | |
| a list or tuple | has the result at its position | |
| a shorter one | without a result is poison | has failed |
| a longer one | as above; extra results are ignored, counted and logged | |
| anything else | is poison | has failed |

A poison message's error is a `BatchResultCountError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from ..._core.errors import TransientError
from ..results import ACK, BatchResultCountError, Nak, Terminate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..results import Result
    from .batch_limits import OnMismatch


class BatchResults(NamedTuple):
    """One result per message, and the error of a wrong count."""

    results: Sequence[object]
    error: BatchResultCountError | None = None


def results_of(returned: object, count: int, on_mismatch: OnMismatch) -> BatchResults:
    """Return the results of a batch of `count` messages."""
    if returned is None:
        return BatchResults([ACK] * count)
    if not isinstance(returned, (list, tuple)):
        kind = type(returned).__name__
        error = BatchResultCountError(
            f"a batch handler returned a {kind}; return None or a list of results"
        )
        return BatchResults([_missing(error, on_mismatch)] * count, error)
    answers = cast("Sequence[object]", returned)
    given = len(answers)
    if given == count:
        return BatchResults(answers)
    error = BatchResultCountError(
        f"a batch handler returned {given} results for {count} messages; return one for each"
    )
    missing = [_missing(error, on_mismatch)] * (count - given)
    return BatchResults([*answers[:count], *missing], error)


def _missing(error: BatchResultCountError, on_mismatch: OnMismatch) -> Result:
    if on_mismatch == "terminate":
        return Terminate(error=error)
    return Nak(error=TransientError(str(error)))
