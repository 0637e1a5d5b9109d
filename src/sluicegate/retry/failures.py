"""Effects of a failed try on its series, on the shared state, and on the reported condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.delivery.host import STATE_OF, Condition
from .._core.errors import CircuitOpenError, ErrorClass, RefusedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .batch_retry import BatchRetry

THROTTLE_FLOOR = 5.0
"""The shortest throttle without a `Retry-After`, in seconds."""
PROBE_OF_FAULTS = 0.1
"""The longest time between two probes, in seconds, if items were recently proven at fault."""

AWAY = frozenset({ErrorClass.UNAVAILABLE, ErrorClass.REFUSED})
"""Classes of an outage of the whole destination."""
COUNTED = frozenset({ErrorClass.TRANSIENT, ErrorClass.UNKNOWN, ErrorClass.UNLISTED})
"""Classes that use up an attempt and may be retried."""
_REFUSED = frozenset({ErrorClass.REFUSED})
_UNAVAILABLE = frozenset({ErrorClass.UNAVAILABLE})
_ORDER = (
    ErrorClass.REFUSED,
    ErrorClass.UNAVAILABLE,
    ErrorClass.THROTTLE,
    ErrorClass.UNKNOWN,
    ErrorClass.TRANSIENT,
    ErrorClass.DEADLOCK,
    ErrorClass.UNLISTED,
)
"""Order of precedence of the class under which a retry is reported."""


@dataclass(frozen=True, slots=True)
class FailedTry:
    """A try that ended in errors. Indices are those of the batch."""

    sent: Sequence[int]
    errors: Mapping[int, BaseException]
    distinct: Collection[BaseException]
    """Each exception once, in the order of its first item."""
    kinds: frozenset[ErrorClass]
    """The classes of all errors."""
    staying: frozenset[ErrorClass]
    """The classes of the items that stay in the series. Unknown outcomes that are taken for an
    outage are `UNAVAILABLE`, here and in `kinds`.
    """
    is_unknown: bool = False
    """Whether unknown outcomes are taken for an outage."""

    @property
    def first(self) -> BaseException:
        """The error of the first failed item."""
        return next(iter(self.distinct))

    @property
    def is_whole(self) -> bool:
        """Whether every item failed."""
        return len(self.errors) == len(self.sent)

    @property
    def may_be_of_item(self) -> bool:
        """Whether one item may be the cause although the destination seems to be unavailable."""
        if self.staying == _REFUSED:
            return True
        return self.staying == _UNAVAILABLE and (
            self.is_unknown
            or all(
                isinstance(error, UnavailableError) and error.perhaps_of_item
                for error in self.distinct
            )
        )


def narrow(retry: BatchRetry, failed: FailedTry, *, was_down: bool) -> None:
    """Search the batch for an item at fault, after a part of it was refused as a whole.

    A refusal of individual items already names them, and needs no search. `was_down` states whether
    the try began in an outage.
    """
    if not failed.is_whole or any(
        isinstance(error, RefusedError) and error.of_item for error in failed.distinct
    ):
        return
    evidence, has_others, now = retry.state.evidence, retry.state.probe.has_others, retry.now
    found = retry.series.search.refused(
        failed.sent,
        now,
        accepted=evidence.accepted,
        next_ticket=evidence.tickets,
        enough=evidence.enough(now),
        is_quiet=not has_others and not evidence.lies(now),
        proves=failed.staying == _REFUSED or not was_down,
    )
    if found is not None:
        evidence.found_fault(now)
        error = failed.errors[found]
        retry.series.blame(
            found,
            error,
            is_unknown=retry.class_of(error) is ErrorClass.UNKNOWN,
            keeps_prefix=retry.batch.delivery.keeps_prefix,
        )


def learn(retry: BatchRetry, failed: FailedTry) -> None:
    """Act on a failed try: end the series, or set the time of its next try."""
    series, state, now = retry.series, retry.state, retry.now
    series.times.schedule(now, not_before=now)
    if failed.staying & AWAY == _REFUSED and _are_of_items(failed.distinct):
        _items_refused(retry, failed, now)
    elif failed.staying & AWAY:
        _unavailable(retry, failed, now)
    elif failed.kinds & AWAY:
        return  # the series has ended, but the outage continues for other batches
    elif state.is_short and failed.is_whole and failed.kinds & COUNTED:
        # the gate delays the next try
        series.times.schedule(now + retry.asked(failed.distinct), not_before=now)
    elif ErrorClass.THROTTLE in failed.staying:
        retry.recovered(throttled=True)
        _throttled(retry, failed, now)
    else:
        retry.recovered()
        _back_off(retry, failed, now)
    if series.pending and failed.staying:
        _tell(retry, failed, now)


def _back_off(retry: BatchRetry, failed: FailedTry, now: float) -> None:
    series = retry.series
    if not series.pending:
        return
    not_before = now + retry.asked(failed.distinct)
    due = max(now + retry.backoff(series.deadlocks or series.tries, failed.first), not_before)
    series.times.schedule(due, not_before=not_before)
    if series.times.is_too_late(due):
        series.give_up(failed.errors, "exhausted")


def _unavailable(retry: BatchRetry, failed: FailedTry, now: float) -> None:
    series, state, first = retry.series, retry.state, failed.first
    refuses = ErrorClass.REFUSED in failed.staying
    _trouble(retry, failed, ErrorClass.REFUSED if refuses else ErrorClass.UNAVAILABLE, now)
    probes = state.outage(retry.batch)
    end = retry.give_up_at(state.since)
    if now >= end or (refuses and not retry.batch.delivery.waits_for_repair):
        series.give_up(failed.errors, "given_up" if now >= end else None)
        return
    if not probes:
        return
    if state.evidence.knows_faults(now):
        pause = retry.probe_pause(state.failures, first, PROBE_OF_FAULTS)
    else:
        pause = retry.probe_pause(state.failures, first)
    if refuses and series.search.goes_on_at_once(may_pass=retry.may_pass):
        pause = 0.0
    asked = retry.asked(failed.distinct)
    state.probe.schedule(min(now + max(pause, asked), end), not_before=min(now + asked, end))
    if (refuses or failed.may_be_of_item) and pause:
        state.probe.pass_on(retry.batch)


def _items_refused(retry: BatchRetry, failed: FailedTry, now: float) -> None:
    """Hold back only these items until the repair: the destination named them, and accepts other
    items meanwhile.
    """
    series, delivery = retry.series, retry.batch.delivery
    if not failed.is_whole:
        retry.recovered()
    condition = Condition.after(STATE_OF[ErrorClass.REFUSED], failed.first)
    retry.state.refuses_items(retry.batch)
    delivery.reported(retry.state.of_items, condition)
    series.refused_items(now)
    end = retry.give_up_at(series.refused_since)
    if now >= end or not delivery.waits_for_repair:
        series.give_up(failed.errors, "given_up" if now >= end else None)
        return
    pause = retry.probe_pause(series.refusals, failed.first)
    not_before = min(now + retry.asked(failed.distinct), end)
    series.times.schedule(max(min(now + pause, end), not_before), not_before=not_before)


def _throttled(retry: BatchRetry, failed: FailedTry, now: float) -> None:
    series, batch = retry.series, retry.batch
    _trouble(retry, failed, ErrorClass.THROTTLE, now)
    end = retry.give_up_at(retry.state.since)
    if now >= end:
        series.give_up(failed.errors, "given_up")
        return
    pause = retry.settings.throttled_wait(series.throttles)
    if pause is None:
        pause = retry.backoff(series.throttles, failed.first)
    until = min(now + max(pause, retry.asked(failed.distinct, THROTTLE_FLOOR)), end)
    retry.state.throttles.extend(batch.tenant, until, now)
    batch.throttled(until)


def _trouble(retry: BatchRetry, failed: FailedTry, kind: ErrorClass, now: float) -> None:
    """Store and report the destination's condition."""
    error = next(
        (error for error in failed.distinct if retry.class_of(error) is kind), failed.first
    )
    condition = Condition.after(STATE_OF[kind], error)
    is_told = not isinstance(error, CircuitOpenError)  # the breaker reports it itself
    retry.state.set_condition(condition, now, told=condition if is_told else None)
    if is_told:
        retry.batch.delivery.reported(retry.state, condition)


def _tell(retry: BatchRetry, failed: FailedTry, now: float) -> None:
    """Report the retry and its delay to the observers."""
    state, batch = retry.state, retry.batch
    until = max(
        retry.series.times.due,
        state.probe.at if state.is_down else 0.0,
        state.throttles.until(batch.tenant),
    )
    kind = min(failed.staying, key=_ORDER.index)
    batch.delivery.retrying(kind, len(retry.series.pending), max(0.0, until - now))


def _are_of_items(errors: Collection[BaseException]) -> bool:
    """Return whether the refusals name individual items, so that each concerns only the target of
    its item.
    """
    refused = [error for error in errors if isinstance(error, RefusedError)]
    return bool(refused) and all(error.of_item for error in refused)
