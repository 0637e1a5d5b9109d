"""The outcome of an item after its last error."""

from __future__ import annotations

from .errors import StoppedError, UnknownOutcomeError
from .outcome import Outcome


def outcome_of(error: BaseException, *, maybe_applied: bool) -> Outcome:
    """Return the outcome of an item whose last attempt failed with `error`."""
    if maybe_applied or isinstance(error, UnknownOutcomeError):
        return Outcome.UNKNOWN
    return Outcome.UNSENT if isinstance(error, StoppedError) else Outcome.REJECTED
