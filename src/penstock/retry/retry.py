"""Trying again what failed, and only that."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, ClassVar, TypeVar

from .._core import checks
from .._core.classify import classified
from .._core.decorator import WrappingSink
from .._core.errors import ErrorClass
from .._core.prefix import leaders
from .._core.result import WriteResult
from .._core.send import send
from .._core.sink import walk
from .backoff import Backoff, WaitStrategy, call_state
from .outage import Destination
from .series import COUNTED, Rules, Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    from .._core.batch import Batch
    from .._core.clock import Clock
    from .._core.sink import Classifier, Sink
    from .budget import RetryBudget

T = TypeVar("T")

THROTTLE_FLOOR = 5.0
"""Seconds to leave a destination alone that asks for it without saying how long."""
THROTTLE_FACTOR = 4.0
PROBE_SHORTEST = 0.01
"""Seconds between two looks at least, also with a backoff of nothing: a refusal may take no time at all."""
PROBE_LONGEST = 5.0
"""Seconds between two looks at a destination that is not there, at most."""


class Retry:
    """Send again what failed and may succeed next time: only those items, in order, each with attempts of its own.

    Args:
        attempts: tries per item in all.
        backoff: a `Backoff`, or any of tenacity's wait objects. Default: full jitter up to 0.1 s x 2^n, at most 30 s.
        classify: a function from an exception to its `ErrorClass`, or `None` where it does not know; asked before the sink's own.
        max_seconds: seconds for a series in all: a try that would come later is not made, and the items leave with their last error. What was
            spent waiting for a destination that throttles or is not there does not count. Default: no limit.
        budget: a `RetryBudget`, shared with all batches and with other retries; when it is empty, that is an outage. Default: no limit.
        give_up_after: seconds of an outage after which a series ends; by default it waits for as long as the outage lasts.
        resend_unknown: whether a try that was cut off is made again (at least once) or not (`False`: at most once).
        unlisted_attempts: tries for an exception that nobody knows.
        rng: the randomness of the default backoff.

    While it waits, the batch's flush slot serves others. A throttled destination is left alone by all batches (of the tenant that was
    throttled, where there are tenants) for `Retry-After` (5 s where
    it does not say); of one that is not there, one batch at a time looks whether it is back, and the others wait for it. Neither uses up
    attempts. When a shutdown begins, a wait ends with one immediate last try.

    In a transaction it tries again what the transaction can live with, such as a lock that was not to be had. When the transaction itself
    is lost, so is the series: only a new transaction can try again. Locks are held while it waits.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self,
        attempts: int = 5,
        *,
        backoff: Backoff | WaitStrategy | None = None,
        classify: Classifier | None = None,
        max_seconds: float | timedelta | None = None,
        budget: RetryBudget | None = None,
        give_up_after: float | timedelta | None = None,
        resend_unknown: bool = True,
        unlisted_attempts: int = 3,
        rng: random.Random | None = None,
    ) -> None:
        self.rules = Rules(
            attempts=checks.count("attempts", attempts),
            unlisted_attempts=checks.count("unlisted_attempts", unlisted_attempts),
            resend_unknown=resend_unknown,
            max_seconds=checks.optional_seconds("max_seconds", max_seconds),
        )
        if budget is not None and not callable(getattr(budget, "withdraw", None)):
            raise checks.bad("budget", budget, "must be a RetryBudget(...)")
        self.budget = budget
        if backoff is not None and not callable(backoff):
            raise checks.bad("backoff", backoff, "must be a Backoff(...), or one of tenacity's wait objects")
        if classify is not None and not callable(classify):
            raise checks.bad("classify", classify, "must be a function from an exception to an ErrorClass or None")
        self.backoff: Backoff | WaitStrategy = backoff or Backoff(rng=rng or random.Random())
        self.classify = classify
        self.give_up_after = checks.optional_seconds("give_up_after", give_up_after)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`. Raises `ConfigError` around a sink that would send again what has succeeded."""
        for part in walk(sink):
            reason = getattr(part, "refuses_retry", None)
            if reason is not None:
                raise checks.bad("Retry around", part, reason)
        return _RetrySink(sink, self)

    def __repr__(self) -> str:
        return f"Retry(attempts={self.rules.attempts})"


class _RetrySink(WrappingSink[T]):
    _run_time: ClassVar[tuple[str, ...]] = ("_known",)

    def __init__(self, inner: Sink[T], settings: Retry) -> None:
        super().__init__(inner)
        self._settings = settings
        self._known: Destination | None = None

    def _make_state(self) -> None:
        self._known = self._destination

    @property
    def _destination(self) -> Destination:
        if self._known is None:
            self._known = Destination()
        return self._known

    def classify(self, error: BaseException) -> ErrorClass | None:
        """What the retry's own classifier says, else the wrapped sink's: a breaker or dead letter outside sees errors the same way."""
        own = None if self._settings.classify is None else self._settings.classify(error)
        return super().classify(error) if own is None else own

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        series = Series(range(len(batch)), self._settings.rules, batch.delivery.clock.now())
        budget = self._settings.budget
        if budget is not None:
            budget.deposit()
        try:
            last = await self._gate(batch, batch, series)
            while True:
                attempt = batch.pick(series.pending, attempt=series.tries + 1)
                errors = await send(self.inner, attempt)
                if not errors:
                    self._destination.is_there()
                    return WriteResult.failed(batch, series.final) if series.final else None
                by_index = {series.pending[i]: error for i, error in errors.items()}
                kinds = self._kinds(errors.values())
                behind = {series.pending[i]: series.pending[leader] for i, leader in leaders(attempt, errors).items()}
                classes = series.after(by_index, lambda error: kinds[id(error)], last=last, leaders=behind)  # noqa: B023  # called at once
                succeeded = len(errors) < len(attempt)
                until = self._note(batch, series, by_index, classes, frozenset(kinds.values()), succeeded=succeeded)
                if not series.pending:
                    return WriteResult.failed(batch, series.final) if series.final else None
                last = await self._wait(batch, series, until)
        finally:
            self._destination.leave(batch)

    def _kinds(self, errors: Iterable[BaseException]) -> dict[int, ErrorClass]:
        """The class of each error, by its identity: a batch that failed as a whole has one for all its items."""
        return {key: classified(error, self.classify) for key, error in {id(error): error for error in errors}.items()}

    def _note(
        self,
        batch: Batch[T],
        series: Series,
        errors: Mapping[int, BaseException],
        classes: frozenset[ErrorClass],
        kinds: frozenset[ErrorClass],
        *,
        succeeded: bool,
    ) -> float:
        """Learn from a try that ended in errors of all `kinds`; `classes` are those of what stays in the series.

        Return when the next try is due, infinite where another batch probes for all.
        """
        destination = self._destination
        now = batch.delivery.clock.now()
        if ErrorClass.UNAVAILABLE in classes:
            return self._unavailable(batch, series, errors, now)
        if ErrorClass.UNAVAILABLE in kinds:
            return now  # the series ended with it; the outage goes on for the others
        if destination.is_short and not succeeded and kinds & COUNTED:
            return now + _longest_floor(errors, 0.0)  # the gate holds the next try back
        destination.is_there()
        if not series.pending:
            return now
        if ErrorClass.THROTTLE in classes:
            return self._throttle(batch, series, errors, now)
        until = now + max(self._backoff(series, series.tries, errors), _longest_floor(errors, 0.0))
        if series.is_too_late(until):
            series.give_up(errors)
        return until

    def _unavailable(self, batch: Batch[T], series: Series, errors: Mapping[int, BaseException], now: float) -> float:
        destination = self._destination
        probes = destination.is_unavailable(now, batch)
        give_up = self._settings.give_up_after
        if give_up is not None and destination.down_since is not None and now - destination.down_since >= give_up:
            series.give_up(errors)
            return now
        if not probes:
            return math.inf
        pause = max(PROBE_SHORTEST, min(PROBE_LONGEST, self._backoff(series, destination.failures, errors)))
        return now + max(pause, _longest_floor(errors, 0.0))

    def _throttle(self, batch: Batch[T], series: Series, errors: Mapping[int, BaseException], now: float) -> float:
        backoff = self._settings.backoff
        pause = (
            backoff.bound(series.throttles, THROTTLE_FACTOR)
            if isinstance(backoff, Backoff)
            else self._backoff(series, series.throttles, errors)
        )
        until = now + max(pause, _longest_floor(errors, THROTTLE_FLOOR))
        self._destination.throttle(until, batch.tenant, now)
        batch.throttled(until)
        return until

    def _backoff(self, series: Series, tries: int, errors: Mapping[int, BaseException]) -> float:
        error = next(iter(errors.values()), None)
        series.waited = max(0.0, float(self._settings.backoff(call_state(tries, error, series.waited))))
        return series.waited

    async def _wait(self, batch: Batch[T], series: Series, until: float) -> bool:
        """Back off until it is this batch's turn; say whether the next try is the last."""
        clock = batch.delivery.clock
        began = clock.now()
        pending = batch.pick(series.pending)
        last = await pending.back_off(until, self._destination.changed) if until == math.inf else await pending.back_off(until)
        if not series.costs:
            series.excuse(clock.now() - began)
        return last or await self._gate(batch, pending, series)

    async def _gate(self, batch: Batch[T], pending: Batch[T], series: Series) -> bool:
        """Wait while the destination is to be left alone, or another batch probes; say whether the next try is the last."""
        clock = batch.delivery.clock
        began = clock.now()
        try:
            return await self._pass(batch, pending, series, clock)
        finally:
            series.excuse(clock.now() - began)

    async def _pass(self, batch: Batch[T], pending: Batch[T], series: Series, clock: Clock) -> bool:
        destination = self._destination
        while True:
            now = clock.now()
            probes = False
            if destination.down_since is not None and not destination.may_probe(batch):
                last = await pending.back_off(math.inf, destination.changed)
            elif (throttled := destination.throttled_until(batch.tenant)) > now:
                last = await pending.back_off(throttled)
            elif series.costs and not self._pays():
                probes = destination.is_out_of_budget(now, batch)
                pause = max(PROBE_SHORTEST, min(PROBE_LONGEST, self._backoff(series, destination.failures, {})))
                last = await pending.back_off(now + pause)
            else:
                return False
            if last or probes:
                return last

    def _pays(self) -> bool:
        budget = self._settings.budget
        return budget is None or budget.withdraw()

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"


def _longest_floor(errors: Mapping[int, BaseException], default: float) -> float:
    floors = [float(floor) for error in errors.values() if (floor := getattr(error, "retry_after", None)) is not None]
    return max(floors, default=default)
