"""From a write's end to its items' outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._core.errors import KeyStopped, UnknownOutcomeError, WithdrawnError
from .._core.order.left_out import WITHDRAWN, leaders, with_withdrawn

if TYPE_CHECKING:
    import asyncio

    from .._core.outcome import Outcome
    from .flight import Flight

_IN_TRANSACTION = (
    "the write has returned, but its transaction has not ended, so the outcome of its items is not "
    "known; let the sink's write begin and end the transaction"
)


def errors_of(task: asyncio.Task[dict[int, BaseException]]) -> dict[int, BaseException]:
    """Return a write's errors; none if it was cut, since verdicts decide then."""
    return {} if task.cancelled() or task.exception() is not None else task.result()


def behind_failed(flight: Flight[Any], errors: dict[int, BaseException]) -> list[int]:
    """Return the items known not to be applied that only follow a failed one of their key."""
    delivery = flight.batch.delivery
    if not delivery.keeps_prefix or delivery.closed or not errors:
        return []
    behind = leaders(flight.batch, with_withdrawn(flight.batch, errors))
    doubtful, gone = delivery.maybe_applied, delivery.withdrawn or ()
    return [
        index
        for index, error in errors.items()
        if (index in behind or isinstance(error, KeyStopped))
        and index not in doubtful
        and index not in gone
    ]


def book_failures(
    flight: Flight[Any], errors: dict[int, BaseException]
) -> dict[int, BaseException]:
    """Give every remaining item its outcome; return the errors of the failed ones.

    Items withdrawn since their write ended are also unsent, and are not failures.
    """
    if gone := flight.batch.delivery.withdrawn:
        error = WithdrawnError(f"not sent again: {WITHDRAWN}")
        withdrawn: dict[int, BaseException] = dict.fromkeys(gone.intersection(errors), error)
        flight.batch.delivery.left_out(withdrawn)
        failed = _book(flight, {**errors, **withdrawn})
        return {i: each for i, each in failed.items() if i not in gone}
    return _book(flight, errors)


def _book(flight: Flight[Any], errors: dict[int, BaseException]) -> dict[int, BaseException]:
    delivery = flight.batch.delivery
    if delivery.held is not None:
        flight.close(UnknownOutcomeError(_IN_TRANSACTION))
    if delivery.closed:
        return _cut_items(flight)
    by_outcome: dict[Outcome, list[int]] = {}
    for index, error in errors.items():
        by_outcome.setdefault(delivery.ended(index, error), []).append(index)
    for outcome, indices in by_outcome.items():
        delivery.finish(indices, outcome)
    if delivery.states.left:
        delivery.close()
        return {**errors, **_cut_items(flight)}
    return errors


def _cut_items(flight: Flight[Any]) -> dict[int, BaseException]:
    delivery = flight.batch.delivery
    cause = flight.cut_cause or UnknownOutcomeError("the write was cut off")
    return {
        index: delivery.error(index) or cause
        for index in range(len(flight.batch))
        if not delivery.verdict(index).is_safe
    }
