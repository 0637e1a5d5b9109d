"""A series of tries for one batch, decided item by item: what is sent again, what leaves, how long to wait. Pure.

1. Only items that failed and may be tried again stay in the series; each counts its own attempts.
2. Throttled and unavailable tries do not count. An exception nobody knows counts, with fewer attempts.
3. An item behind a failed one of its key (see `_core.prefix`) has that one's fate: it is tried again with it, or leaves with it.
4. The last try of a stopping batcher ends the series: what could have been tried again was not applied, and is `StoppedError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.errors import ErrorClass, ResultMismatch, StoppedError, UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_UNCOUNTED = frozenset({ErrorClass.THROTTLE, ErrorClass.UNAVAILABLE})
COUNTED = frozenset({ErrorClass.TRANSIENT, ErrorClass.UNKNOWN, ErrorClass.UNLISTED})
"""What uses up an attempt, and may be tried again."""
NOBODY: Mapping[int, int] = {}
"""No item has a leader."""
_NEVER_AGAIN = frozenset({ErrorClass.PERMANENT, ErrorClass.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How often an item may be tried."""

    attempts: int
    unlisted_attempts: int
    resend_unknown: bool
    max_seconds: float | None = None


class Series:
    """The items of one batch that still need a try. Indices are the batch's."""

    def __init__(self, indices: Sequence[int], rules: Rules, now: float) -> None:
        self.pending: Sequence[int] = indices
        """What the next try sends, in the batch's order."""
        self.final: dict[int, BaseException] = {}
        """What has left the series, and why."""
        self.tries = 0
        """Tries that counted for at least one item."""
        self.throttles = 0
        self.waited = 0.0
        """The last backoff, in seconds."""
        self.costs = False
        """Whether the next try is one that a retry budget pays for."""
        self._since = now
        self._rules = rules
        self._attempts: dict[int, int] = {}

    def after(
        self,
        errors: Mapping[int, BaseException],
        class_of: Callable[[BaseException], ErrorClass],
        *,
        last: bool,
        leaders: Mapping[int, int] = NOBODY,
    ) -> frozenset[ErrorClass]:
        """A try has ended with `errors`; return the classes of what stays in the series.

        An item with a leader stays or leaves with it, and counts no attempt.
        """
        staying: list[int] = []
        leading: set[int] = set()
        classes: set[ErrorClass] = set()
        for index in self.pending:
            error = errors.get(index)
            if error is None:
                continue
            if index in leaders:
                if leaders[index] in leading:
                    staying.append(index)
                else:
                    self.final[index] = error
                continue
            kind = class_of(error)
            if kind not in _UNCOUNTED:
                self._attempts[index] = self._attempts.get(index, 0) + 1
            if self._leaves(index, error, kind):
                self.final[index] = error
            elif last:
                self.final[index] = error if kind is ErrorClass.UNKNOWN else _stopped(error)
            else:
                staying.append(index)
                leading.add(index)
                classes.add(kind)
        self.pending = staying
        self.tries += bool(classes - _UNCOUNTED)
        self.throttles = self.throttles + 1 if ErrorClass.THROTTLE in classes else 0
        self.costs = bool(classes & COUNTED)
        return frozenset(classes)

    def excuse(self, seconds: float) -> None:
        """So much of the time was spent waiting for a destination that was throttled or not there."""
        self._since += seconds

    def is_too_late(self, when: float) -> bool:
        """Whether a try at that time would be past the total time."""
        return self._rules.max_seconds is not None and when > self._since + self._rules.max_seconds

    def _leaves(self, index: int, error: BaseException, kind: ErrorClass) -> bool:
        if kind in _NEVER_AGAIN or isinstance(error, ResultMismatch):
            return True
        if kind in _UNCOUNTED:
            return False
        if kind is ErrorClass.UNKNOWN and not self._rules.resend_unknown:
            return True
        most = self._rules.attempts
        if kind is ErrorClass.UNLISTED:
            most = min(most, self._rules.unlisted_attempts)
        return self._attempts[index] >= most

    def give_up(self, errors: Mapping[int, BaseException]) -> None:
        """End the series: whatever is pending leaves with its last error."""
        for index in self.pending:
            self.final[index] = errors[index]
        self.pending = ()


def _stopped(error: BaseException) -> StoppedError | UnknownOutcomeError:
    stopped = StoppedError(f"given up because the batcher is stopping; the last try ended with {error!r}")
    stopped.__cause__ = error
    return stopped
