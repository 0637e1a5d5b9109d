"""A series of tries of one batch, decided item by item: which items stay, and which leave. Pure.

1. Only failed items that may be tried again stay in the series; each counts its own attempts.
2. `RetryPolicy` decides which errors use up an attempt, and how many attempts there are.
3. An item behind a failed one of its key (see `_core.order.prefix`) stays or leaves with it.
4. The last try before a shutdown's deadline ends the series: an item that could have been tried
   again was not applied, and gets a `StoppedError`.
5. A try that a shutdown moved forward uses up no attempt, so that an item's attempts are not used
   up at once.
6. While the destination refuses whole writes, a try sends a part of the series; see `search`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .._core.causes import caused
from .._core.errors import ErrorClass, PermanentError, ResultMismatch, StoppedError
from .._core.told import for_log, text_of
from .search import Search
from .times import TryTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .._core.retry_policy import RetryPolicy

NO_LEADERS: Mapping[int, int] = {}
"""No item has a leader."""


class RetrySeries:
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
        """Items that need another try, in the batch's order."""
        self.final: dict[int, BaseException] = {}
        """Items that have left the series with an error."""
        self.tries = 0
        """Tries that counted for at least one item."""
        self.throttles = 0
        """Throttled tries in a row."""
        self.refusals = 0
        """Tries of which single items were refused."""
        self.refused_since = math.inf
        """When the first of them ended."""
        self.costs = False
        """Whether the retry budget pays for the next try."""
        self.times = TryTimes(policy, now)
        self.search = Search(keys)
        self._keys = keys
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
        """Decide each item after a try of `sent` (default: all pending) that ended with `errors`;
        return the error classes of the items that stay.

        An item with a leader stays or leaves with it, and uses up no attempt.
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
            if kind not in self._policy.uncounted and not self.times.is_early:
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
            staying = sorted((*self._without(sent), *staying))
        self.pending = staying
        self.costs = bool(classes - self._policy.uncounted)
        self.tries += self.costs
        self.throttles = self.throttles + 1 if ErrorClass.THROTTLE in classes else 0
        return frozenset(classes)

    def succeeded(self, sent: Sequence[int]) -> None:
        """Remove the items of a try that succeeded as a whole."""
        self.pending = self._without(sent) if len(sent) < len(self.pending) else ()

    def refused_items(self, now: float) -> None:
        """Count a try of which single items were refused."""
        self.refusals += 1
        self.refused_since = min(self.refused_since, now)

    def _without(self, indices: Sequence[int]) -> list[int]:
        return sorted(set(self.pending).difference(indices))

    def _leaves(self, index: int, error: BaseException, kind: ErrorClass) -> bool:
        return isinstance(error, ResultMismatch) or self._policy.is_over(
            kind, self._attempts.get(index, 0)
        )

    def give_up(self, errors: Mapping[int, BaseException]) -> None:
        """End the series: each item leaves with its error, or with another item's if the last try
        did not send it.
        """
        others = next(iter(errors.values()))
        for index in self.pending:
            self.final[index] = errors.get(index, others)
        self.pending = ()

    def stop(self, why: str) -> None:
        """End the series without another try, since none fits before the deadline; its items end
        unsent.
        """
        error = StoppedError(
            "given up because the batcher is stopping, and the destination did not recover in "
            f"time ({why})"
        )
        self.final.update(dict.fromkeys(self.pending, error))
        self.pending = ()

    def blame(self, index: int, error: BaseException, *, keeps_prefix: bool) -> None:
        """Give up an item that was refused alone while others were accepted; later items of its key
        leave with it.
        """
        what = "refused whenever it was sent alone, while other writes were accepted"
        made = PermanentError(f"{what}: {text_of(error)}")
        made = caused(made, error, summary=f"{what} ({for_log(error)})")
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
    """The error of an item that was not applied, and is not tried again because of a shutdown."""
    what = f"given up because the batcher is stopping; {which} ended with"
    made = StoppedError(f"{what} {type(error).__name__}: {text_of(error)}")
    return caused(made, error, summary=f"{what} {for_log(error)}")
