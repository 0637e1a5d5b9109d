"""The series of tries of one batch: which items stay after a try, and which leave. Pure.

1. Only failed items that may be retried stay in the series; attempts are counted per item.
2. `RetryPolicy` decides which errors use up an attempt, and how many attempts there are.
3. An item behind a failed one of its key (see `_core.order.left_out`) stays or leaves with it.
4. The last try before a shutdown's deadline ends the series: an item that could have been retried
   was not applied, and gets a `StoppedError`.
5. A try that a shutdown moved forward uses up no attempt; otherwise an item's attempts would be
   used up within moments.
6. A deadlock uses up an attempt only if the item was sent alone. From the third deadlock in a row
   on, a try sends at most half of the items that met the last one.
7. While the destination refuses whole writes, a try sends a part of the series; see `search`.
8. Items with the same exception and the same number of attempts are decided together, as a
   *cohort*. While all items of the series have the same number, one counter serves all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.checks import in_seconds
from .._core.classify import by_error, caused, distinct
from .._core.errors import (
    ErrorClass,
    PermanentError,
    ResultMismatch,
    SinkError,
    StoppedError,
    StoredRowDiffers,
    UnknownOutcomeError,
)
from .._core.logs import for_log
from .._core.order.keys import accepted
from .._core.text import text_of
from .search import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from .._core.classify import ErrorGroup
    from .._core.delivery.states import RetryEnd
    from .._core.retry_policy import RetryPolicy


HALVED_FROM = 3
"""Number of deadlocks in a row from which the batch is halved."""
_DEADLOCK = frozenset({ErrorClass.DEADLOCK})
_EXHAUSTIBLE = frozenset({ErrorClass.TRANSIENT, ErrorClass.DEADLOCK, ErrorClass.UNLISTED})
"""Classes whose attempts are limited, and that leave unapplied items when these are used up."""
_NEVER_AGAIN = (ResultMismatch, StoredRowDiffers)
"""Errors of unknown outcomes that another try cannot resolve."""
NO_LEADERS: Mapping[int, int] = {}
"""The case without leaders."""


@dataclass(slots=True)
class _Cohort:
    """Items that failed with the same exception after the same number of attempts."""

    error: BaseException
    kind: ErrorClass
    attempts: int
    indices: Collection[int]

    def count(self) -> None:
        """Count the try as an attempt."""
        self.attempts += 1


class RetrySeries:
    """Items of one batch that still need a try. Indices are those of the batch."""

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
        self.ends: list[tuple[BaseException, RetryEnd]] = []
        """The errors of exhausted attempts, and those that the caller asked to give up."""
        self.tries = 0
        """Tries that counted for at least one item."""
        self.throttles = 0
        """Throttled tries in a row."""
        self.deadlocks = 0
        """Tries in a row that ended in a deadlock."""
        self.most = len(indices)
        """Maximum number of items in a try, reduced by deadlocks."""
        self.refusals = 0
        """Tries in which individual items were refused."""
        self.refused_since = math.inf
        """The time at which the first of them ended."""
        self.costs = False
        """Whether the next try takes a token of the retry budget."""
        self.times = TryTimes(policy, now)
        self.search = Search(keys)
        self.unknown_since: float | None = None
        """The time since which outcomes are unknown because the destination may be down, if the
        batch cannot be searched.
        """
        self._unknown_ticket = math.inf
        """The first ticket issued after the last unknown outcome."""
        self._keys = keys
        self._policy = policy
        self._attempts: dict[int, int] = {}
        """Attempts of items whose number differs from `_attempts_of_all`."""
        self._attempts_of_all = 0

    def after(
        self,
        errors: Mapping[int, BaseException],
        class_of: Callable[[BaseException], ErrorClass],
        *,
        last: bool,
        leaders: Mapping[int, int] = NO_LEADERS,
        sent: Sequence[int] | None = None,
        groups: Sequence[ErrorGroup] | None = None,
        uncounted: frozenset[ErrorClass] | None = None,
    ) -> frozenset[ErrorClass]:
        """Decide each item after a try of `sent` (default: all pending) that ended with `errors`;
        return the error classes of the items that stay. `groups` are the errors by exception, if
        already known. `uncounted` are the classes that use up no attempt this time (default: those
        of the policy).

        An item with a leader stays or leaves with it, and uses up no attempt.
        """
        sent = self.pending if sent is None else sent
        uncounted = self._policy.uncounted if uncounted is None else uncounted
        if leaders:
            groups = by_error({i: error for i, error in errors.items() if i not in leaders})
        cohorts = self._cohorts(by_error(errors) if groups is None else groups, class_of)
        if len(sent) > 1:
            uncounted |= _DEADLOCK
        is_whole = len(sent) == len(self.pending) and not leaders
        self._count(cohorts, uncounted, is_whole=is_whole)
        staying: list[_Cohort] = []
        for cohort in cohorts:
            leaves_with = self._leaves_with(cohort, last=last)
            if leaves_with is None:
                staying.append(cohort)
            else:
                self.final.update(dict.fromkeys(cohort.indices, leaves_with))
        classes = frozenset([cohort.kind for cohort in staying])
        left = self._left_of(sent, staying, errors, leaders)
        self.pending = (
            sorted((*self._without(sent), *left)) if len(sent) < len(self.pending) else left
        )
        self.costs = bool(classes - uncounted)
        self.tries += self.costs
        self.throttles = self.throttles + 1 if ErrorClass.THROTTLE in classes else 0
        self.deadlocks = self.deadlocks + 1 if ErrorClass.DEADLOCK in classes else 0
        if self.deadlocks >= HALVED_FROM:
            self.most = max(1, len(sent) // 2)
        return classes

    def _cohorts(
        self, groups: Sequence[ErrorGroup], class_of: Callable[[BaseException], ErrorClass]
    ) -> list[_Cohort]:
        known, of_all = self._attempts, self._attempts_of_all
        if not known:
            return [_Cohort(error, class_of(error), of_all, items) for error, items in groups]
        cohorts: list[_Cohort] = []
        for error, indices in groups:
            kind = class_of(error)
            by_attempts: dict[int, list[int]] = {}
            for index in indices:
                by_attempts.setdefault(known.get(index, of_all), []).append(index)
            cohorts += [_Cohort(error, kind, *found) for found in by_attempts.items()]
        return cohorts

    def _count(
        self, cohorts: Sequence[_Cohort], uncounted: frozenset[ErrorClass], *, is_whole: bool
    ) -> None:
        """Count an attempt for each error that uses one up. `is_whole` states that the try
        contained all items of the series.
        """
        if self.times.is_early:
            return
        counted = [cohort for cohort in cohorts if cohort.kind not in uncounted]
        for cohort in counted:
            cohort.count()
        if is_whole and not self._attempts and len(counted) == len(cohorts):
            self._attempts_of_all += 1
            return
        for cohort in counted:
            self._attempts.update(dict.fromkeys(cohort.indices, cohort.attempts))

    def _leaves_with(self, cohort: _Cohort, *, last: bool) -> BaseException | None:
        """The error with which these items leave the series; `None` if they stay."""
        error, kind = cohort.error, cohort.kind
        is_over = isinstance(error, _NEVER_AGAIN) or self._policy.is_over(kind, cohort.attempts)
        if is_over and kind in _EXHAUSTIBLE:
            self.record_end((error,), "exhausted")
        if is_over or (last and kind is ErrorClass.UNKNOWN):
            return error
        return stopped(error) if last else None

    def _left_of(
        self,
        sent: Sequence[int],
        staying: Sequence[_Cohort],
        errors: Mapping[int, BaseException],
        leaders: Mapping[int, int],
    ) -> Sequence[int]:
        """Return the items of the try that stay, in order; followers of leaving items leave as
        well.
        """
        if sum(len(cohort.indices) for cohort in staying) == len(sent):
            return sent
        leading = {index for cohort in staying for index in cohort.indices}
        following = {index for index, leader in leaders.items() if leader in leading}
        for index in leaders.keys() - following:
            self.final[index] = errors[index]
        return [index for index in sent if index in leading or index in following]

    def leave_behind(self, tried: Iterable[int]) -> None:
        """Fail the later items of a key whose earlier item has left with an error, if this try did
        not send them. They leave with the same error.
        """
        keys = self._keys
        if keys is None:
            return
        first: dict[object, int] = {}
        for index in sorted(tried):
            if index in self.final:
                first.setdefault(accepted(keys[index]), index)
        if not first:
            return
        left: list[int] = []
        for index in self.pending:
            leader = first.get(accepted(keys[index]), index)
            if leader < index:
                self.final[index] = self.final[leader]
            else:
                left.append(index)
        self.pending = left

    def take_unknown(self, now: float, *, accepted: int, next_ticket: int, was_down: bool) -> bool:
        """Handle an unknown outcome of a batch that cannot be searched; return whether the
        destination may be down. A write that began after the last unknown outcome and was accepted
        shows that it is not.
        """
        is_outage = was_down or accepted < self._unknown_ticket
        self._unknown_ticket = next_ticket
        self.unknown_since = (self.unknown_since or now) if is_outage else None
        return is_outage

    def has_answer(self) -> None:
        """Handle a try without an unknown outcome that may be an outage."""
        self.unknown_since = None

    def succeeded(self, sent: Sequence[int]) -> None:
        """Remove the items of a try that succeeded as a whole."""
        self.deadlocks = 0
        self.costs = False  # other items come next
        self.pending = self._without(sent) if len(sent) < len(self.pending) else ()

    def refused_items(self, now: float) -> None:
        """Count a try in which individual items were refused."""
        self.refusals += 1
        self.refused_since = min(self.refused_since, now)

    def _without(self, indices: Sequence[int]) -> list[int]:
        return sorted(set(self.pending).difference(indices))

    def record_end(self, errors: Iterable[BaseException], end: RetryEnd) -> None:
        """Record why items leave with these errors."""
        self.ends.extend((error, end) for error in errors)

    def give_up(self, errors: Mapping[int, BaseException], end: RetryEnd | None) -> None:
        """End the series: each item leaves with its error, or with another item's error if the last
        attempt did not send it.
        """
        others = next(iter(errors.values()))
        left = {index: errors.get(index, others) for index in self.pending}
        if end is not None:
            self.record_end(distinct(left.values()), end)
        self.final.update(left)
        self.pending = ()

    def stop(self, why: str) -> None:
        """End the series without another try, since none fits before the deadline; its items end as
        unsent.
        """
        error = StoppedError(
            "given up because the batcher is stopping, and the destination did not recover in "
            f"time ({why})"
        )
        self.final.update(dict.fromkeys(self.pending, error))
        self.pending = ()

    def blame(
        self, index: int, error: BaseException, *, is_unknown: bool, keeps_prefix: bool
    ) -> None:
        """Fail an item that was refused alone, or left unknown, while others were accepted; later
        items of its key leave with it.
        """
        if is_unknown:
            what = "without an answer whenever it was sent alone, while other writes were accepted"
            made: SinkError = UnknownOutcomeError(f"{what}: {text_of(error)}")
        else:
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
    """Return the error of an item that was not applied and is not retried because of a shutdown."""
    what = f"given up because the batcher is stopping; {which} ended with"
    made = StoppedError(f"{what} {type(error).__name__}: {text_of(error)}")
    return caused(made, error, summary=f"{what} {for_log(error)}")


class TryTimes:
    """The times of one series, in the clock's monotonic seconds."""

    def __init__(self, policy: RetryPolicy, now: float) -> None:
        self.due = now
        """The time at which the next try is due, apart from throttles and outages."""
        self.not_before = now
        """The end of the wait that the destination requested for this series."""
        self.is_early = False
        """Whether the next try is made before its time, because a shutdown has shortened the wait.
        """
        self.has_tried = False
        self.lasted = 0.0
        """Duration of the last try, in seconds."""
        self._policy = policy
        self._since = now
        self._waited = 0.0

    def tried(self, seconds: float) -> None:
        """Record the end of a try."""
        self.has_tried = True
        self.lasted = seconds

    def schedule(self, due: float, *, not_before: float) -> None:
        """Set the time of the next try."""
        self.due, self.not_before = due, not_before
        self.is_early = False

    def resumed(self, now: float) -> None:
        """Record the end of the wait for the next try."""
        self.is_early = now < self.due

    def backoff(self, tries: int, error: BaseException | None = None) -> float:
        """Return the wait in seconds after `tries` failed tries, the last with `error`."""
        self._waited = self._policy.backoff(tries, error, self._waited)
        return self._waited

    def excuse(self, seconds: float) -> None:
        """Exclude a wait for a throttled or unavailable destination from the time limit."""
        self._since += seconds

    def is_too_late(self, when: float) -> bool:
        """Return whether an attempt at that time would exceed the time limit."""
        most = self._policy.max_seconds
        return most is not None and when > self._since + in_seconds(most)
