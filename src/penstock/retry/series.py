"""A series of tries for one batch, decided item by item: what is sent again, what leaves, how long
to wait. Pure.

1. Only items that failed and may be tried again stay in the series; each counts its own attempts.
2. Throttled and unavailable tries do not count. An exception nobody knows counts, with fewer
   attempts.
3. An item behind a failed one of its key (see `_core.prefix`) has that one's fate: it is tried
   again with it, or leaves with it.
4. The last try before a shutdown's deadline ends the series: what could have been tried again was
   not applied, and is `StoppedError`.
5. A try that a shutdown made earlier than the backoff had asked for counts no attempt: it must not
   use up an item's tries in no time.
6. While the destination refuses whole writes, a try sends a part of the series; see `search`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._core.errors import ErrorClass, PermanentError, ResultMismatch, StoppedError
from .._core.told import for_log, text_of
from .search import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .._core.retry_policy import RetryPolicy

COUNTED = frozenset({ErrorClass.TRANSIENT, ErrorClass.UNKNOWN, ErrorClass.UNLISTED})
"""What uses up an attempt, and may be tried again."""
AWAY = frozenset({ErrorClass.UNAVAILABLE, ErrorClass.REFUSED})
"""What is an outage of the whole destination."""
NO_LEADERS: Mapping[int, int] = {}
"""No item has a leader."""


class Series:
    """The items of one batch that still need a try. Indices are the batch's."""

    def __init__(
        self,
        indices: Sequence[int],
        policy: RetryPolicy,
        now: float,
        *,
        keys: Sequence[object] | None = None,
    ) -> None:
        self.pending: Sequence[int] = indices
        """What still needs a try, in the batch's order."""
        self.final: dict[int, BaseException] = {}
        """What has left the series, and why."""
        self.tries = 0
        """Tries that counted for at least one item."""
        self.throttles = 0
        self.refusals = 0
        """Tries in a row of which single items were refused."""
        self.refused_since = math.inf
        self.waited = 0.0
        """The last backoff, in seconds."""
        self.costs = False
        """Whether the next try is one that a retry budget pays for."""
        self.due = now
        """When the next try is due, as far as this series goes."""
        self.not_before = now
        """Until when the destination has asked this series to wait."""
        self.has_tried = False
        self.lasted = 0.0
        """Seconds that the last try took."""
        self.is_early = False
        """Whether the next try comes before its time, because a shutdown has shortened the wait."""
        self.search = Search(keys)
        self._keys = keys
        self._since = now
        self._policy = policy
        self._attempts: dict[int, int] = {}

    def after(
        self,
        errors: Mapping[int, BaseException],
        class_of: Callable[[BaseException], ErrorClass],
        *,
        last: bool,
        leaders: Mapping[int, int] = NO_LEADERS,
        sent: Sequence[int] | None = None,
    ) -> frozenset[ErrorClass]:
        """A try of the items `sent` (default: all pending) has ended with `errors`; return the
        classes of what stays in the series.

        An item with a leader stays or leaves with it, and counts no attempt.
        """
        staying: list[int] = []
        leading: set[int] = set()
        classes: set[ErrorClass] = set()
        for index in self.pending if sent is None else sent:
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
            if kind not in self._policy.uncounted and not self.is_early:
                self._attempts[index] = self._attempts.get(index, 0) + 1
            if self._leaves(index, error, kind):
                self.final[index] = error
            elif last:
                self.final[index] = error if kind is ErrorClass.UNKNOWN else stopped(error)
            else:
                staying.append(index)
                leading.add(index)
                classes.add(kind)
        if sent is not None and len(sent) < len(self.pending):
            staying = sorted(set(self.pending).difference(sent).union(staying))
        self.pending = staying
        self.tries += bool(classes - self._policy.uncounted)
        self.throttles = self.throttles + 1 if ErrorClass.THROTTLE in classes else 0
        self.costs = bool(classes & COUNTED)
        return frozenset(classes)

    def excuse(self, seconds: float) -> None:
        """So much of the time was spent waiting for a destination that was throttled or not
        there.
        """
        self._since += seconds

    def is_too_late(self, when: float) -> bool:
        """Whether a try at that time would be past the total time."""
        most = self._policy.max_seconds
        return most is not None and when > self._since + most

    def _leaves(self, index: int, error: BaseException, kind: ErrorClass) -> bool:
        return isinstance(error, ResultMismatch) or self._policy.is_over(
            kind, self._attempts.get(index, 0)
        )

    def give_up(self, errors: Mapping[int, BaseException]) -> None:
        """End the series: what is pending leaves with its last error; what the last try did not
        send leaves with that try's error.
        """
        others = next(iter(errors.values()))
        for index in self.pending:
            self.final[index] = errors.get(index, others)
        self.pending = ()

    def stop(self, why: str) -> None:
        """End the series without another try: no try fits before the deadline, so what is pending
        stays unsent.
        """
        error = StoppedError(
            "given up because the batcher is stopping, and the destination did not recover in "
            f"time ({why})"
        )
        self.final.update(dict.fromkeys(self.pending, error))
        self.pending = ()

    def blame(self, index: int, error: BaseException, *, keeps_prefix: bool) -> None:
        """An item is refused for good, since it was refused alone while others were accepted. Those
        behind it of its key leave with it.
        """
        made = PermanentError(
            "refused whenever it was sent alone, while other writes were accepted: "
            f"{text_of(error)}"
        )
        made.summary = (
            "refused whenever it was sent alone, while other writes were accepted "
            f"({for_log(error)})"
        )
        made.__cause__ = error
        gone = {index}
        if keeps_prefix and self._keys is not None:
            gone.update(
                other
                for other in self.pending
                if other > index and self._keys[other] == self._keys[index]
            )
        self.final.update(dict.fromkeys(gone, made))
        self.pending = [other for other in self.pending if other not in gone]


def stopped(error: BaseException, which: str = "the last try") -> StoppedError:
    """The error of an item that was not applied, and is not tried again because the batcher
    stops.
    """
    made = StoppedError(
        f"given up because the batcher is stopping; {which} ended with "
        f"{type(error).__name__}: {text_of(error)}"
    )
    made.summary = f"given up because the batcher is stopping; {which} ended with {for_log(error)}"
    made.__cause__ = error
    return made
