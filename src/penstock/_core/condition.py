"""What a decorator has learnt about its destination, as it is told to the batcher, and from there
to logs, metrics and `stats()`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .errors import ErrorClass, RefusedError
from .told import for_log


class DestinationState(enum.Enum):
    """Whether a destination takes writes, from best to worst."""

    AVAILABLE = "available"
    THROTTLED = "throttled"
    """It asked for a pause, which has not ended or has not been followed by a success."""
    CIRCUIT_OPEN = "circuit_open"
    """A circuit breaker keeps calls away from it."""
    UNAVAILABLE = "unavailable"
    """It cannot be reached. One batch at a time probes it."""
    REFUSED = "refused"
    """It can be reached and refuses every write. An operator has to repair it; one batch at a time
    probes it.
    """


SEVERITY = {state: place for place, state in enumerate(DestinationState)}
STATE_OF = {
    ErrorClass.THROTTLE: DestinationState.THROTTLED,
    ErrorClass.UNAVAILABLE: DestinationState.UNAVAILABLE,
    ErrorClass.REFUSED: DestinationState.REFUSED,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A state other than available, and why. It holds text, never the error, whose traceback would
    keep a batch's items alive.
    """

    state: DestinationState
    reason: str
    """One line without items' values."""
    repair: str = ""
    """What an operator has to do, where the destination refuses."""

    @classmethod
    def after(cls, state: DestinationState, error: BaseException) -> Condition:
        """The condition that `error` tells of."""
        link: BaseException | None = error
        while link is not None and not isinstance(link, RefusedError):
            link = link.__cause__
        return cls(state, for_log(error), link.repair if link is not None else "")
