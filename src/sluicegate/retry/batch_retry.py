"""One batch in a retry, and its waits before a try: its own backoff, then probes, throttles and the
retry budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._core.checks import in_seconds
from .._core.delivery.host import Condition, DestinationState
from .._core.delivery.pacing import asked_wait
from .._core.retry_policy import Backoff
from .backoff import THROTTLE_FACTOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .._core.batch import Batch
    from .._core.classify import Classifier
    from .._core.clock import Signal
    from .._core.errors import ErrorClass
    from .._core.retry_policy import RetryPolicy
    from .backoff import RetryBudget
    from .outage import OutageState
    from .series import RetrySeries


PROBE_SHORTEST = 0.01
"""The shortest time between two probes, in seconds. It also applies to a backoff of zero, since a
refused connection fails immediately.
"""
PROBE_LONGEST = 5.0
"""The longest time between two probes, in seconds."""
PASS_AFTER = 5.0
"""Seconds for which an item refused alone, or a batch left unknown, delays the later items and,
with one worker, the next batch, to keep the order.
"""

NO_BUDGET = Condition(DestinationState.UNAVAILABLE, "the retry budget is used up")


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Checked arguments of a `Retry`."""

    policy: RetryPolicy
    budget: RetryBudget | None
    classify: Classifier | None
    gives_up_refused: bool
    """Whether a refused write fails its items instead of waiting for a repair."""

    def throttled_wait(self, tries: int) -> float | None:
        """Return the wait after `tries` throttled tries in a row; `None` for a tenacity wait."""
        backoff = self.policy.backoff
        return backoff.bound(tries, THROTTLE_FACTOR) if isinstance(backoff, Backoff) else None

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
        """Whether items may overtake an item refused alone. Not immediately: the refusal may be an
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


@dataclass(frozen=True, slots=True)
class Hold:
    """The reason to hold a batch back, and the end of the wait."""

    until: float
    not_before: float = 0.0
    signals: tuple[Signal, ...] = ()
    is_for_probe: bool = False
    """Whether it waits for another batch's probe, so that a try of its own would prove nothing."""
    is_over: bool = False
    """Whether the batch is sent at that time without another check."""


async def wait_for_turn(retry: BatchRetry) -> bool:
    """Wait until the series may send. Return whether time is up, that is, no further try fits
    before the shutdown deadline.
    """
    series, state, delivery = retry.series, retry.state, retry.batch.delivery
    if not series.times.has_tried:
        if state.has_failed and not delivery.has_time(state.lasted):
            return True
        if state.is_free:
            return False
    if await _back_off(retry):
        return True
    began = retry.now
    try:
        return await _wait_while_held(retry)
    finally:
        series.times.excuse(retry.now - began)


async def _back_off(retry: BatchRetry) -> bool:
    """Wait until the series is due; return whether time is up."""
    series, began = retry.series, retry.now
    times = series.times
    if times.due <= began:
        return False
    is_time_up = await retry.batch.pick(series.pending).back_off(
        times.due, not_before=times.not_before, lasts=times.lasted
    )
    times.resumed(retry.now)
    if not series.costs and not series.deadlocks:
        times.excuse(retry.now - began)
    return is_time_up


async def _wait_while_held(retry: BatchRetry) -> bool:
    series, batch = retry.series, retry.batch
    pending = batch.pick(series.pending)
    while True:
        hold = _hold(retry)
        batch.delivery.let_pass(others=hold is not None and retry.lets_others_pass)
        if hold is None:
            return False
        lasts = max(series.times.lasted, retry.state.lasted)
        is_time_up = await pending.back_off(
            hold.until, *hold.signals, not_before=hold.not_before, lasts=lasts
        )
        if is_time_up or hold.is_over or (batch.stopping and not hold.is_for_probe):
            return is_time_up


def _hold(retry: BatchRetry) -> Hold | None:
    """Return the reason to hold the batch now: a probe, a throttle, or an empty budget."""
    state, batch, now = retry.state, retry.batch, retry.now
    probe = state.probe
    if state.is_down and not probe.take(batch):
        if state.told is not None:
            batch.delivery.reported(state, state.told)
        return Hold(math.inf, signals=(probe.changed,), is_for_probe=True)
    if state.is_down and probe.at > now:
        return Hold(probe.at, probe.not_before, (probe.changed,))
    throttled = state.throttles.until(batch.tenant)
    if throttled > now:
        return Hold(throttled, throttled)
    budget = retry.settings.budget
    if budget is None or not retry.series.costs or batch.stopping or budget.withdraw():
        return None
    return _out_of_budget(retry, now)


def _out_of_budget(retry: BatchRetry, now: float) -> Hold:
    """Start an outage: one batch probes after a pause, and the others wait for its success."""
    state = retry.state
    state.set_condition(NO_BUDGET, now, told=NO_BUDGET)
    retry.batch.delivery.reported(state, NO_BUDGET)
    probes = state.outage(retry.batch, is_short=True)
    pause = retry.probe_pause(state.failures, None)
    if probes:
        state.probe.schedule(now)
    return Hold(now + pause, is_over=probes)
