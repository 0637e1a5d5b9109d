"""The condition of a destination, from decorators to logs, metrics and `stats()`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .causes import causes
from .errors import ErrorClass, RefusedError
from .told import for_log


class DestinationState(enum.Enum):
    """Whether a destination takes writes, from best to worst."""

    __hash__ = object.__hash__  # one C call; Enum's own hashes the name, in Python

    AVAILABLE = "available"
    THROTTLED = "throttled"
    """It requested a pause, which has not ended or was not followed by a success."""
    CIRCUIT_OPEN = "circuit_open"
    """A circuit breaker keeps calls away from it."""
    UNAVAILABLE = "unavailable"
    """It cannot be reached. One batch at a time probes it."""
    REFUSED = "refused"
    """Reachable, but refuses every write until an operator repairs it. One batch at a time probes."""


SEVERITY = {state: place for place, state in enumerate(DestinationState)}
STATE_OF = {
    ErrorClass.THROTTLE: DestinationState.THROTTLED,
    ErrorClass.UNAVAILABLE: DestinationState.UNAVAILABLE,
    ErrorClass.REFUSED: DestinationState.REFUSED,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A state other than available, and why: text, since an error's traceback keeps items alive."""

    state: DestinationState
    reason: str
    """One line without items' values."""
    repair: str = ""
    """The operator's remedy, where the destination refuses."""

    @classmethod
    def after(cls, state: DestinationState, error: BaseException) -> Condition:
        """The condition after `error`."""
        repairs = (link.repair for link in causes(error) if isinstance(link, RefusedError))
        return cls(state, for_log(error), next(repairs, ""))
