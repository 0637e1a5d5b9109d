"""One batch in a retry, and the computation of its waits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._core.retry_policy import asked_wait, in_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .._core.batch import Batch
    from .._core.classify import Classifier
    from .._core.errors import ErrorClass
    from .._core.retry_policy import RetryPolicy
    from .backoff import StrategyBackoff
    from .budget import RetryBudget
    from .outage import OutageState
    from .series import RetrySeries

PROBE_SHORTEST = 0.01
"""The shortest time between two probes, in seconds. It also applies to a backoff of zero, since a
refused connection fails at once.
"""
PROBE_LONGEST = 5.0
"""The longest time between two probes, in seconds."""
PASS_AFTER = 5.0
"""Seconds for which an item refused alone, or a batch left unknown, delays the later items and, with
one worker, the next batch, to keep the order.
"""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Checked arguments of a `Retry`."""

    policy: RetryPolicy
    backoff: StrategyBackoff
    """The policy's backoff, including its bounds."""
    budget: RetryBudget | None
    classify: Classifier | None
    gives_up_refused: bool
    """Whether a refused write fails its items instead of waiting for a repair."""

    def __repr__(self) -> str:
        return f"Retry(attempts={self.policy.attempts})"


@dataclass(frozen=True, slots=True)
class BatchRetry:
    """One batch in a retry: its series of tries, and the state that it shares with other batches."""

    batch: Batch[Any]
    series: RetrySeries
    state: OutageState
    settings: RetrySettings
    class_of: Callable[[BaseException], ErrorClass]

    @property
    def now(self) -> float:
        """The current time, in the clock's monotonic seconds."""
        return self.batch.delivery.clock.now()

    def recovered(self, *, throttled: bool = False) -> None:
        """Record an answer of the destination. A throttle is an answer, but is not reported as a
        recovery.
        """
        self.state.answered(throttled=throttled)
        if not throttled and self.state.has_told:
            self.batch.delivery.reported(self.state, None)

    def next_part(self) -> Sequence[int]:
        """Return the items to send next: all pending items, or a part of them during a search or
        after deadlocks.
        """
        series = self.series
        if not series.search.is_on:
            is_reduced = series.most < len(series.pending)
            return series.pending[: series.most] if is_reduced else series.pending
        accepted = self.state.evidence.accepted
        return series.search.next_part(
            series.pending, accepted, may_pass=self.may_pass, most=series.most
        )

    @property
    def may_pass(self) -> bool:
        """Whether items may overtake an item refused alone. Not at once: the refusal may be an
        outage, after which order matters.
        """
        since, now = self.series.search.alone_since, self.now
        return since is not None and (
            self.batch.stopping
            or self.state.evidence.knows_faults(now)
            or now >= since + PASS_AFTER
        )

    @property
    def lets_others_pass(self) -> bool:
        """Whether other batches may overtake this one, with one worker, since one of its items may
        be at fault.
        """
        since = self.series.unknown_since
        if since is not None:
            return self.batch.stopping or self.now >= since + PASS_AFTER
        return self.series.search.is_stuck and self.may_pass

    def give_up_at(self, since: float | None) -> float:
        """Return the time at which an outage that began at `since` exceeds `give_up_after`."""
        most = self.settings.policy.give_up_after
        return math.inf if since is None or most is None else since + in_seconds(most)

    def asked(self, errors: Iterable[BaseException], default: float = 0.0) -> float:
        """Return the longest `Retry-After` of the errors, in seconds."""
        most = in_seconds(self.settings.policy.max_retry_after)
        asked = [asked_wait(error, most) for error in errors]
        return max((seconds for seconds in asked if seconds is not None), default=default)

    def backoff(self, tries: int, error: BaseException | None) -> float:
        """Return the wait in seconds after `tries` failed tries, the last with `error`."""
        return self.series.times.backoff(tries, error)

    def probe_pause(
        self, tries: int, error: BaseException | None, longest: float = PROBE_LONGEST
    ) -> float:
        """Return the time between two probes, in seconds."""
        return max(PROBE_SHORTEST, min(longest, self.backoff(tries, error)))
