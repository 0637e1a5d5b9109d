"""Waits before a try: the series' own backoff, then probes, throttles and the retry budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.delivery.host import Condition, DestinationState

if TYPE_CHECKING:
    from .._core.clock import Signal
    from .batch_retry import BatchRetry

NO_BUDGET = Condition(DestinationState.UNAVAILABLE, "the retry budget is used up")


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
    state.trouble(NO_BUDGET, now, told=NO_BUDGET)
    retry.batch.delivery.reported(state, NO_BUDGET)
    probes = state.outage(retry.batch, is_short=True)
    pause = retry.probe_pause(state.failures, None)
    if probes:
        state.probe.schedule(now)
    return Hold(now + pause, is_over=probes)
