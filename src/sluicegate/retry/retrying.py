"""The sink that a `Retry` creates: it waits and sends as the pure modules decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from .._core.classify import by_error, classified, first_answer
from .._core.decorator import WrappingSink
from .._core.errors import (
    ErrorClass,
    ResultMismatch,
    UnverifiableError,
    WithdrawnError,
)
from .._core.order.left_out import leaders
from .._core.send import send
from .._core.sink import WriteResult
from .batch_retry import BatchRetry, wait_for_turn
from .failures import FailedTry, learn, narrow
from .outage import OutageState
from .series import RetrySeries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .._core.batch import Batch
    from .._core.sink import Sink
from .batch_retry import RetrySettings

T = TypeVar("T")
_UNKNOWN = frozenset({ErrorClass.UNKNOWN})


class _Answer(NamedTuple, Generic[T]):
    """The answer to one try."""

    attempt: Batch[T]
    part: Sequence[int]
    """The items of the attempt, as indices of the batch."""
    errors: Mapping[int, BaseException]
    ticket: int
    """The try's ticket; see `evidence`."""
    seconds: float
    was_down: bool = False
    """Whether it began in an outage."""


class RetrySink(WrappingSink[T]):
    """A sink that retries failed items, created by applying a `Retry`."""

    _run_time: ClassVar[tuple[str, ...]] = ("_known",)

    def __init__(self, inner: Sink[T], settings: RetrySettings) -> None:
        super().__init__(inner)
        self._settings = settings
        self._known: OutageState | None = None

    def _make_state(self) -> None:
        self._known = self._state

    @property
    def _state(self) -> OutageState:
        if self._known is None:
            self._known = OutageState()
        return self._known

    def classify(self, error: BaseException) -> ErrorClass | None:
        """Return the class from the retry's own classifier, else from the wrapped sink's. A breaker
        or dead-letter sink outside the retry sees the same classes.
        """
        if self._is_given_up(error):
            return ErrorClass.PERMANENT
        return first_answer(error, self._settings.classify, super().classify)

    def _is_given_up(self, error: BaseException) -> bool:
        """Return whether `on_refused="dead_letter"` gives this error up."""
        return (
            self._settings.gives_up_refused
            and classified(error, self._settings.classify, super().classify) is ErrorClass.REFUSED
        )

    def _class_of(self, error: BaseException) -> ErrorClass:
        return classified(error, self.classify)

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Send the batch until every item is delivered or has failed. Suspends."""
        state, clock = self._state, batch.delivery.clock
        if self._settings.budget is not None:
            self._settings.budget.deposit()
        began = clock.now()
        if not state.is_quiet or not batch:
            return await self._write_series(batch, began)
        # the fast path: most batches need one try, and no series
        attempt = batch if batch.attempt == 1 else batch.pick(range(len(batch)), attempt=1)
        ticket = state.evidence.begin()
        errors = await send(self.inner, attempt)
        if errors:
            first = _Answer(attempt, range(len(batch)), errors, ticket, clock.now() - began)
            return await self._write_series(batch, began, first)
        state.succeeded(ticket, clock.now() - began)
        if state.has_told:
            batch.delivery.reported(state, None)
        return None

    async def _write_series(
        self, batch: Batch[T], began: float, first: _Answer[T] | None = None
    ) -> WriteResult | None:
        """Make all tries of a batch, or those after `first`."""
        settings, state, delivery = self._settings, self._state, batch.delivery
        series = RetrySeries(range(len(batch)), settings.policy, began, keys=batch.keys)
        retry = BatchRetry(batch, series, state, settings, self._class_of)
        try:
            if first is not None:
                self._act(retry, first, last=False)
            while series.pending:
                is_time_up = await wait_for_turn(retry)
                if is_time_up and not delivery.is_hurried:
                    why = state.condition
                    series.stop("no time is left for another try" if why is None else why.reason)
                else:
                    self._act(retry, await self._try(retry, last=is_time_up), last=is_time_up)
        finally:
            if series.ends:
                delivery.end_retries(series.ends)
            if state.leave(batch):
                delivery.reported(state.of_items, None)
        return WriteResult.failed(batch, series.final) if series.final else None

    async def _try(self, retry: BatchRetry, *, last: bool) -> _Answer[T]:
        """Send the next items of the series."""
        series, batch = retry.series, retry.batch
        part = series.pending if last else retry.next_part()
        if len(part) < len(series.pending):
            batch.hold(set(series.pending).difference(part), tried=True)
        attempt = batch.pick(part, attempt=series.tries + 1)
        ticket, began, was_down = retry.state.evidence.begin(), retry.now, retry.state.is_down
        errors = await send(self.inner, attempt)
        return _Answer(attempt, part, errors, ticket, retry.now - began, was_down)

    def _act(self, retry: BatchRetry, answer: _Answer[T], *, last: bool) -> None:
        """Act on the answer to a try."""
        series, batch = retry.series, retry.batch
        if batch.delivery.withdrawn and _is_withdrawn(answer):
            self._decide(retry, answer, last=last)  # which says nothing about the destination
            return
        _record(retry, answer)
        if not answer.errors:
            retry.recovered()
            series.succeeded(answer.part)
            return
        failed = self._decide(retry, answer, last=last)
        if failed.may_be_of_item and self._searches(batch, unknown=failed.is_unknown):
            narrow(retry, failed, was_down=answer.was_down)
            if not series.pending and not retry.state.probe.has_others:
                retry.recovered()  # the item was at fault, and no later write can show the recovery
                return
        elif series.search.is_on:
            series.search.interrupted()
        learn(retry, failed)

    def _decide(self, retry: BatchRetry, answer: _Answer[T], *, last: bool) -> FailedTry:
        """Decide which items stay in the series; each exception is classified once."""
        part, errors = answer.part, answer.errors
        is_whole = part == range(len(part))  # its indices are those of the batch
        by_index = errors if is_whole else {part[i]: error for i, error in errors.items()}
        groups = by_error(by_index)
        kinds = {id(error): self._class_of(error) for error, _ in groups}
        retry.series.record_end((e for e, _ in groups if self._is_given_up(e)), "given_up")
        if retry.batch.delivery.withdrawn:  # items behind a withdrawn item stay
            errors = {i: e for i, e in errors.items() if not isinstance(e, WithdrawnError)}
        unknown = [error for error, _ in groups if kinds[id(error)] is ErrorClass.UNKNOWN]
        is_outage = self._takes_for_outage(retry, answer, unknown)
        policy = self._settings.policy
        behind = {part[i]: part[leader] for i, leader in leaders(answer.attempt, errors).items()}
        staying = retry.series.after(
            by_index,
            lambda error: kinds[id(error)],
            last=last,
            leaders=behind,
            sent=part,
            groups=groups,
            uncounted=policy.uncounted | _UNKNOWN if is_outage else policy.uncounted,
        )
        if retry.series.pending and retry.batch.delivery.keeps_prefix:
            retry.series.leave_behind(by_index)
        distinct, all_kinds = [error for error, _ in groups], frozenset(kinds.values())
        if is_outage:
            staying, all_kinds = _away(staying), _away(all_kinds)
        return FailedTry(part, by_index, distinct, all_kinds, staying, is_unknown=is_outage)

    def _takes_for_outage(
        self, retry: BatchRetry, answer: _Answer[T], unknown: Sequence[BaseException]
    ) -> bool:
        """Return whether these unknown outcomes are handled as an outage: the write may be
        repeated, and the destination may be down. Outside a batcher nothing would end such an
        outage.
        """
        series, evidence = retry.series, retry.state.evidence
        if (
            not unknown
            or not self._settings.policy.resend_unknown
            or self.capabilities.repeatable is None
            or not retry.batch.delivery.waits_for_repair
            or any(isinstance(error, (ResultMismatch, UnverifiableError)) for error in unknown)
        ):
            series.has_answer()
            return False
        return self._searches(retry.batch, unknown=True) or series.take_unknown(
            retry.now,
            accepted=evidence.accepted,
            next_ticket=evidence.tickets,
            was_down=answer.was_down,
        )

    def _searches(self, batch: Batch[T], *, unknown: bool) -> bool:
        """Return whether parts of a batch are sent, to find an item at fault. A batch with unknown
        outcomes is only divided if its items may be repeated in other parts.
        """
        known = self.capabilities
        if known.several_destinations or (unknown and known.repeatable != "item"):
            return False
        return batch.delivery.waits_for_repair

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"


def _away(kinds: frozenset[ErrorClass]) -> frozenset[ErrorClass]:
    """Return the classes with unknown outcomes as an outage."""
    return (kinds - _UNKNOWN) | {ErrorClass.UNAVAILABLE} if ErrorClass.UNKNOWN in kinds else kinds


def _is_withdrawn(answer: _Answer[Any]) -> bool:
    """Whether all items of a try were withdrawn."""
    errors = answer.errors.values()
    return len(errors) == len(answer.part) and all(isinstance(e, WithdrawnError) for e in errors)


def _record(retry: BatchRetry, answer: _Answer[Any]) -> None:
    """Store the evidence that an answer provides about the destination, regardless of the
    errors.
    """
    evidence, search = retry.state.evidence, retry.series.search
    retry.series.times.tried(answer.seconds)
    retry.state.tried(answer.seconds, failed=bool(answer.errors))
    if len(answer.errors) < len(answer.part):
        evidence.succeeded(answer.ticket)
        if search.is_on and search.accepted(answer.part):
            evidence.lied(retry.now)
