"""The sink that a `Retry` makes: it sends, has the pure parts decide, and waits as they say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

from .._core.classify import classified
from .._core.condition import STATE_OF, Condition, DestinationState
from .._core.decorator import WrappingSink
from .._core.errors import CircuitOpenError, ErrorClass, RefusedError
from .._core.order.prefix import leaders
from .._core.patience import asked_wait
from .._core.result import WriteResult
from .._core.send import send
from .backoff import Backoff
from .outage import Destination
from .series import AWAY, COUNTED, Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .._core.batch import Batch
    from .._core.clock import Signal
    from .._core.sink import Sink
    from .retry import Retry

T = TypeVar("T")

THROTTLE_FLOOR = 5.0
"""Seconds to leave a destination alone that throttles without a `Retry-After`."""
THROTTLE_FACTOR = 4.0
PROBE_SHORTEST = 0.01
"""Seconds between two probes at least, also with a backoff of zero: a connection may be refused in
no time.
"""
PROBE_LONGEST = 5.0
"""Seconds between two probes at most."""
PROBE_OF_FAULTS = 0.1
"""The same while items have been found at fault, and others are accepted."""
PASS_AFTER = 5.0
"""Seconds for which an item refused alone holds up what follows it in its batch, and with one
worker the next batch, to keep their order.
"""
NO_BUDGET = Condition(DestinationState.UNAVAILABLE, "the retry budget is used up")


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a batch must not be sent now."""

    until: float
    not_before: float = 0.0
    signals: tuple[Signal, ...] = ()
    is_for_probe: bool = False
    """Whether it waits for another batch's probe, so that its own try proves nothing."""
    is_over: bool = False
    """Whether the batch goes when the time has come, without looking again."""


class RetrySink(WrappingSink[T]):
    """Sends again what failed and may succeed; made by applying a `Retry`."""

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
        """What the retry's own classifier says, else the wrapped sink's: a breaker or dead letter
        outside sees errors the same way.
        """
        own = None if self._settings.classify is None else self._settings.classify(error)
        answer = super().classify(error) if own is None else own
        if (
            self._settings.on_refused == "dead_letter"
            and classified(error, lambda _: answer) is ErrorClass.REFUSED
        ):
            return ErrorClass.PERMANENT
        return answer

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Send the batch until every item has its outcome or its last error; suspends for as long
        as that takes.
        """
        series = Series(
            range(len(batch)), self._settings.policy, batch.delivery.clock.now(), keys=batch.keys
        )
        if self._settings.budget is not None:
            self._settings.budget.deposit()
        try:
            while series.pending:
                is_time_up = await self._gate(batch, series)
                if is_time_up and not batch.delivery.is_hurried:
                    self._stop(series)
                else:
                    await self._try(batch, series, last=is_time_up)
        finally:
            self._destination.leave(batch)
            if self._destination.took_items(batch):
                batch.delivery.report(self._destination.of_items, None)
        return WriteResult.failed(batch, series.final) if series.final else None

    # -- a try -------------------------------------------------------------------------------------

    async def _try(self, batch: Batch[T], series: Series, *, last: bool) -> None:
        """Send what is next of the series, and learn from the answer."""
        destination, clock = self._destination, batch.delivery.clock
        search = series.search
        part = series.pending if last or not search.is_on else self._next_part(batch, series)
        if len(part) < len(series.pending):
            batch.hold(set(series.pending).difference(part), tried=True)
        attempt = batch.pick(part, attempt=series.tries + 1)
        ticket = destination.begin()
        began = clock.now()
        errors = await send(self.inner, attempt)
        series.has_tried = True
        series.lasted = clock.now() - began
        destination.ended(series.lasted, failed=bool(errors))
        if not errors or len(errors) < len(attempt):
            destination.took(ticket)
            if search.is_on and search.accepted(part):
                destination.lied(clock.now())
        if not errors:
            self._recovered(batch)
            series.pending = (
                []
                if len(part) == len(series.pending)
                else sorted(set(series.pending).difference(part))
            )
            return
        by_index = {part[i]: error for i, error in errors.items()}
        kinds = self._kinds(errors.values())
        behind = {part[i]: part[leader] for i, leader in leaders(attempt, errors).items()}
        classes = series.after(
            by_index, lambda error: kinds[id(error)], last=last, leaders=behind, sent=part
        )
        if classes == _REFUSED and self._searches and batch.delivery.waits_for_repair:
            self._narrow(batch, series, part, by_index)
            if not series.pending and not destination.has_others:
                self._recovered(
                    batch
                    # the fault was the item's, and no other write is left that could
                    # tell of recovery
                )
                return
        elif search.is_on:
            search.interrupted()
        succeeded = len(errors) < len(attempt)
        self._note(batch, series, by_index, classes, frozenset(kinds.values()), succeeded=succeeded)

    def _kinds(self, errors: Iterable[BaseException]) -> dict[int, ErrorClass]:
        """The class of each error, by its identity: a batch that failed as a whole has one for all
        its items.
        """
        return {
            key: classified(error, self.classify)
            for key, error in {id(error): error for error in errors}.items()
        }

    @property
    def _searches(self) -> bool:
        return not self.capabilities.several_destinations

    def _narrow(
        self,
        batch: Batch[T],
        series: Series,
        part: Sequence[int],
        errors: Mapping[int, BaseException],
    ) -> None:
        """Search the batch where a part of it was refused as a whole. Errors of single items say
        themselves which those are.
        """
        if len(errors) < len(part) or any(
            isinstance(error, RefusedError) and error.of_item for error in errors.values()
        ):
            return
        destination = self._destination
        now = batch.delivery.clock.now()
        found = series.search.refused(
            part,
            now,
            accepted=destination.accepted,
            next_ticket=destination.tickets,
            enough=destination.enough(now),
            is_quiet=not destination.has_others and not destination.lies(now),
        )
        if found is not None:
            destination.found_fault(now)
            series.blame(found, errors[found], keeps_prefix=batch.delivery.keeps_prefix)

    # -- learning from it --------------------------------------------------------------------------

    def _note(
        self,
        batch: Batch[T],
        series: Series,
        errors: Mapping[int, BaseException],
        classes: frozenset[ErrorClass],
        kinds: frozenset[ErrorClass],
        *,
        succeeded: bool,
    ) -> None:
        """Learn from a try that ended in errors of all `kinds`; `classes` are those of what stays
        in the series. Set its next due time.
        """
        destination, now = self._destination, batch.delivery.clock.now()
        series.due = series.not_before = now
        series.is_early = False
        if classes & AWAY == _REFUSED and _are_of_items(errors):
            self._refused_items(batch, series, errors, succeeded=succeeded)
        elif classes & AWAY:
            self._unavailable(batch, series, errors, classes)
        elif kinds & AWAY:
            return  # the series ended with it; the outage goes on for the others
        elif destination.is_short and not succeeded and kinds & COUNTED:
            series.due = now + self._floor(errors, 0.0)  # the gate holds the next try back
        elif ErrorClass.THROTTLE in classes:
            self._recovered(batch, throttled=True)
            self._throttle(batch, series, errors)
        else:
            self._recovered(batch)
            if series.pending:
                series.not_before = now + self._floor(errors, 0.0)
                series.due = max(
                    now + self._backoff(series, series.tries, errors), series.not_before
                )
                if series.is_too_late(series.due):
                    series.give_up(errors)
        if series.pending and classes:
            until = max(
                series.due,
                destination.probe_at if destination.is_down else 0.0,
                destination.throttled_until(batch.tenant),
            )
            batch.delivery.retrying(
                min(classes, key=_ORDER.index), len(series.pending), max(0.0, until - now)
            )

    def _recovered(self, batch: Batch[T], *, throttled: bool = False) -> None:
        self._destination.is_there(throttles=throttled)
        if not throttled:
            batch.delivery.report(self._destination, None)

    def _unavailable(
        self,
        batch: Batch[T],
        series: Series,
        errors: Mapping[int, BaseException],
        classes: frozenset[ErrorClass],
    ) -> None:
        destination, now = self._destination, batch.delivery.clock.now()
        refuses = ErrorClass.REFUSED in classes
        self._trouble(batch, errors, ErrorClass.REFUSED if refuses else ErrorClass.UNAVAILABLE)
        probes = destination.is_unavailable(batch)
        end = self._give_up_at()
        if now >= end or (refuses and not batch.delivery.waits_for_repair):
            series.give_up(errors)
            return
        if not probes:
            return
        longest = PROBE_OF_FAULTS if destination.knows_faults(now) else PROBE_LONGEST
        pause = max(
            PROBE_SHORTEST, min(longest, self._backoff(series, destination.failures, errors))
        )
        if refuses and series.search.goes_on_at_once(may_pass=self._may_pass(batch, series)):
            pause = 0.0
        asked = self._floor(errors, 0.0)
        destination.schedule_probe(
            min(now + max(pause, asked), end), not_before=min(now + asked, end)
        )
        if refuses and pause:
            destination.pass_probe(batch)

    def _refused_items(
        self,
        batch: Batch[T],
        series: Series,
        errors: Mapping[int, BaseException],
        *,
        succeeded: bool,
    ) -> None:
        """Wait for the repair with these items alone: the destination has named them, and takes
        others meanwhile.
        """
        destination, now = self._destination, batch.delivery.clock.now()
        if succeeded:
            self._recovered(batch)
        condition = Condition.after(STATE_OF[ErrorClass.REFUSED], next(iter(errors.values())))
        destination.refuses_items(batch)
        batch.delivery.report(destination.of_items, condition)
        series.refusals += 1
        series.refused_since = min(series.refused_since, now)
        give_up = self._settings.policy.give_up_after
        end = math.inf if give_up is None else series.refused_since + give_up
        if now >= end or not batch.delivery.waits_for_repair:
            series.give_up(errors)
            return
        pause = max(
            PROBE_SHORTEST, min(PROBE_LONGEST, self._backoff(series, series.refusals, errors))
        )
        series.not_before = min(now + self._floor(errors, 0.0), end)
        series.due = max(min(now + pause, end), series.not_before)

    def _throttle(
        self, batch: Batch[T], series: Series, errors: Mapping[int, BaseException]
    ) -> None:
        backoff, now = self._settings.backoff.strategy, batch.delivery.clock.now()
        self._trouble(batch, errors, ErrorClass.THROTTLE)
        end = self._give_up_at()
        if now >= end:
            series.give_up(errors)
            return
        pause = (
            backoff.bound(series.throttles, THROTTLE_FACTOR)
            if isinstance(backoff, Backoff)
            else self._backoff(series, series.throttles, errors)
        )
        until = min(now + max(pause, self._floor(errors, THROTTLE_FLOOR)), end)
        self._destination.throttle(until, batch.tenant, now)
        batch.throttled(until)

    def _trouble(
        self, batch: Batch[T], errors: Mapping[int, BaseException], kind: ErrorClass
    ) -> None:
        """Keep and report what is wrong with the destination."""
        error = next(
            (error for error in errors.values() if classified(error, self.classify) is kind),
            next(iter(errors.values())),
        )
        condition = Condition.after(STATE_OF[kind], error)
        is_told = not isinstance(error, CircuitOpenError)  # the breaker itself reports
        self._destination.is_troubled(
            condition, batch.delivery.clock.now(), told=condition if is_told else None
        )
        if is_told:
            batch.delivery.report(self._destination, condition)

    def _give_up_at(self) -> float:
        since, give_up = self._destination.since, self._settings.policy.give_up_after
        return math.inf if since is None or give_up is None else since + give_up

    def _floor(self, errors: Mapping[int, BaseException], default: float) -> float:
        asked = [
            asked_wait(error, self._settings.policy.max_retry_after) for error in errors.values()
        ]
        return max((seconds for seconds in asked if seconds is not None), default=default)

    def _backoff(self, series: Series, tries: int, errors: Mapping[int, BaseException]) -> float:
        error = next(iter(errors.values()), None)
        series.waited = self._settings.backoff(tries, error, series.waited)
        return series.waited

    # -- waiting -----------------------------------------------------------------------------------

    async def _gate(self, batch: Batch[T], series: Series) -> bool:
        """Wait until the series may send; return whether time is up, so that no further try fits
        before a shutdown's deadline.
        """
        destination, clock = self._destination, batch.delivery.clock
        if not series.has_tried:
            if destination.has_failed and not batch.delivery.has_time(destination.lasted):
                return True
            if destination.is_free:
                return False
        began = clock.now()
        if series.due > began:
            is_time_up = await batch.pick(series.pending).back_off(
                series.due, not_before=series.not_before, lasts=series.lasted
            )
            series.is_early = clock.now() < series.due
            if not series.costs:
                series.excuse(clock.now() - began)
            if is_time_up:
                return True
        began = clock.now()
        try:
            return await self._pass(batch, series)
        finally:
            series.excuse(clock.now() - began)

    async def _pass(self, batch: Batch[T], series: Series) -> bool:
        destination, pending = self._destination, batch.pick(series.pending)
        while True:
            hold = self._hold(batch, series)
            batch.delivery.let_pass(
                others=hold is not None and series.search.is_stuck and self._may_pass(batch, series)
            )
            if hold is None:
                return False
            lasts = max(series.lasted, destination.lasted)
            is_time_up = await pending.back_off(
                hold.until, *hold.signals, not_before=hold.not_before, lasts=lasts
            )
            if is_time_up or hold.is_over or (batch.stopping and not hold.is_for_probe):
                return is_time_up

    def _stop(self, series: Series) -> None:
        condition = self._destination.condition
        series.stop("no time is left for another try" if condition is None else condition.reason)

    def _next_part(self, batch: Batch[T], series: Series) -> Sequence[int]:
        return series.search.next_part(
            series.pending, self._destination.accepted, may_pass=self._may_pass(batch, series)
        )

    def _may_pass(self, batch: Batch[T], series: Series) -> bool:
        """Whether items may go before one that was refused alone: not at once, as it may be an
        outage, after which order matters.
        """
        since, now = series.search.alone_since, batch.delivery.clock.now()
        return since is not None and (
            batch.stopping or self._destination.knows_faults(now) or now >= since + PASS_AFTER
        )

    def _hold(self, batch: Batch[T], series: Series) -> Hold | None:
        """What keeps the batch from being sent now: a probe, a throttle, an empty budget."""
        destination, now = self._destination, batch.delivery.clock.now()
        if destination.is_down and not destination.may_probe(batch):
            if destination.told is not None:
                batch.delivery.report(destination, destination.told)
            return Hold(math.inf, signals=(destination.changed,), is_for_probe=True)
        if destination.is_down and destination.probe_at > now:
            return Hold(destination.probe_at, destination.probe_not_before, (destination.changed,))
        throttled = destination.throttled_until(batch.tenant)
        if throttled > now:
            return Hold(throttled, throttled)
        if series.costs and not batch.stopping and not self._pays():
            destination.is_troubled(NO_BUDGET, now, told=NO_BUDGET)
            batch.delivery.report(destination, NO_BUDGET)
            probes = destination.is_out_of_budget(batch)
            pause = max(
                PROBE_SHORTEST, min(PROBE_LONGEST, self._backoff(series, destination.failures, {}))
            )
            if probes:
                destination.schedule_probe(now)
            return Hold(now + pause, is_over=probes)
        return None

    def _pays(self) -> bool:
        budget = self._settings.budget
        return budget is None or budget.withdraw()

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"


_REFUSED = frozenset({ErrorClass.REFUSED})
_ORDER = (
    ErrorClass.REFUSED,
    ErrorClass.UNAVAILABLE,
    ErrorClass.THROTTLE,
    ErrorClass.UNKNOWN,
    ErrorClass.TRANSIENT,
    ErrorClass.UNLISTED,
)
"""Which class names a retry that several have caused."""


def _are_of_items(errors: Mapping[int, BaseException]) -> bool:
    """Whether the destination has answered for each item, so that a refusal is that item's target's
    only.
    """
    refused = [error for error in errors.values() if isinstance(error, RefusedError)]
    return bool(refused) and all(error.of_item for error in refused)
