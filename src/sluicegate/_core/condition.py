"""The condition of a destination, from decorators to logs, metrics and `stats()`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .causes import causes
from .errors import ErrorClass, RefusedError
from .told import for_log


class DestinationState(enum.Enum):
    """Whether a destination accepts writes, from best to worst."""

    __hash__ = object.__hash__  # one C call; Enum's own hash is Python code

    AVAILABLE = "available"
    THROTTLED = "throttled"
    """Has requested a pause; lasts until the pause has ended and a write has succeeded."""
    CIRCUIT_OPEN = "circuit_open"
    """A circuit breaker blocks calls to it."""
    UNAVAILABLE = "unavailable"
    """Cannot be reached. One batch at a time probes it."""
    REFUSED = "refused"
    """Reachable, but refuses every write until it is repaired. One batch at a time probes it."""


SEVERITY = {state: place for place, state in enumerate(DestinationState)}
STATE_OF = {
    ErrorClass.THROTTLE: DestinationState.THROTTLED,
    ErrorClass.UNAVAILABLE: DestinationState.UNAVAILABLE,
    ErrorClass.REFUSED: DestinationState.REFUSED,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A state other than available, and its reason as text: an error would keep items alive."""

    state: DestinationState
    reason: str
    """The reason, in one line without values of items."""
    repair: str = ""
    """The operator's remedy, if the destination refuses writes."""

    @classmethod
    def after(cls, state: DestinationState, error: BaseException) -> Condition:
        """Return the condition of a destination after `error`."""
        repairs = (link.repair for link in causes(error) if isinstance(link, RefusedError))
        return cls(state, for_log(error), next(repairs, ""))
