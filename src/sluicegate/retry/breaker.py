"""The circuit breaker around a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from .._core import checks
from .._core.classify import by_error, classified, first_answer
from .._core.clock import Signal
from .._core.decorator import WrappingSink
from .._core.delivery.host import Condition, DestinationState
from .._core.errors import (
    CircuitOpenError,
    ErrorClass,
    StoppedError,
    StoredRowDiffers,
    TransactionLost,
)
from .._core.keywords import known_arguments
from .._core.runtime.cuts import is_cut
from .._core.send import send
from .._core.sink import SinkDecorator, WriteResult
from .circuit import Circuit, CircuitRules, CircuitState, Ticket, Verdict
from .series import stopped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from .._core.batch import Batch
    from .._core.classify import Classifier
    from .._core.sink import Sink

T = TypeVar("T")

WhenOpen = Literal["wait", "raise"]

FAILURES = frozenset(
    {
        ErrorClass.TRANSIENT,
        ErrorClass.UNAVAILABLE,
        ErrorClass.REFUSED,
        ErrorClass.UNKNOWN,
        ErrorClass.UNLISTED,
    }
)
"""Classes that count as a failure of the destination. A permanent error is a valid response, and so
are a deadlock and `StoredRowDiffers`.
"""
NO_ANSWER = frozenset({ErrorClass.THROTTLE, ErrorClass.STOPPED})
"""Classes that do not show whether the destination works."""
FINAL = frozenset({ErrorClass.PERMANENT, ErrorClass.UNKNOWN, ErrorClass.STOPPED})
"""Classes that a last try may end with. After any other class, the item was not applied."""

OPEN = Condition(DestinationState.CIRCUIT_OPEN, "too many calls failed or were slow")


@known_arguments()
class CircuitBreaker(SinkDecorator):
    """Stop calling a destination that fails or is slow too often, and probe it for recovery later.

    Args:
        failure_rate: the share of failed calls (0 to 1) in the window at which the circuit opens;
            `None` ignores it. Default 0.5.
        slow_rate: the share of slow calls in the window at which it opens; default `None`. Needs
            `slow_after`.
        slow_after: seconds (or a `timedelta`) after which a call counts as slow, even if it is then
            cancelled; default: no call is slow.
        consecutive: failures in a row that open the circuit, even with fewer than `min_calls`
            calls; default `None`.
        window: seconds over which calls are counted; default 30.
        min_calls: calls in the window below which the rates are ignored; default 20.
        open_for: seconds for which the circuit stays open, doubled after each failed probe. Default
            5.
        longest_open: upper limit of that time, in seconds; default 60.
        when_open: `"wait"` holds batches back, without their flush slots, until a call is admitted;
            `"raise"` gives them up immediately with `CircuitOpenError`, which a `Retry` outside
            waits for without counting an attempt, and a `DeadLetter` outside takes. Default
            `"wait"`.
        classify: a function from an exception to its `ErrorClass`, or `None` if it does not know
            the exception; called before the sink's own.

    A call is one write of a batch. It fails when at least half of its items end in an error that is
    transient, unavailable, refused, unknown or unlisted, or when its transaction is lost. Permanent
    errors are responses of a working destination. Throttling and cancellation are not counted,
    except that a call cancelled after `slow_after` is slow. A probe that is not counted is replaced
    by another call.

    The state belongs to one wrapped sink, from its opening to its closing. Inside a `Retry` every
    attempt is a call; around a `Retry`, each series of attempts is one call. When a shutdown
    begins, a waiting batch is tried immediately, and again after shortened waits while an attempt
    fits before the deadline. The remaining items are unsent.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self,
        failure_rate: float | None = 0.5,
        *,
        slow_rate: float | None = None,
        slow_after: float | timedelta | None = None,
        consecutive: int | None = None,
        window: float | timedelta = 30.0,
        min_calls: int = 20,
        open_for: float | timedelta = 5.0,
        longest_open: float | timedelta = 60.0,
        when_open: WhenOpen = "wait",
        classify: Classifier | None = None,
    ) -> None:
        self.rules = CircuitRules(
            failure_rate=checks.optional_share("failure_rate", failure_rate),
            slow_rate=checks.optional_share("slow_rate", slow_rate),
            slow_after=checks.optional_seconds("slow_after", slow_after, usual=checks.LONG_DELAY),
            consecutive=checks.optional_count("consecutive", consecutive),
            window=checks.seconds("window", window, usual=checks.LONG_PERIOD),
            min_calls=checks.count("min_calls", min_calls),
            open_for=checks.seconds("open_for", open_for, usual=checks.LONG_TIMEOUT),
            longest_open=checks.seconds("longest_open", longest_open, usual=checks.LONG_PERIOD),
        )
        self._check_rules()
        self.when_open = checks.choice("when_open", when_open, ("wait", "raise"))
        if classify is not None and not callable(classify):
            raise checks.bad("classify", classify, "must be a function")
        self.classify = classify

    def _check_rules(self) -> None:
        rules = self.rules
        if (rules.slow_rate is None) != (rules.slow_after is None):
            raise checks.bad(
                "slow_rate",
                rules.slow_rate,
                f"must be given with slow_after ({rules.slow_after!r}); give both or neither",
            )
        if rules.failure_rate is None and rules.slow_rate is None and rules.consecutive is None:
            raise checks.bad(
                "failure_rate",
                None,
                "must be given, or slow_rate or consecutive; nothing would open the circuit "
                "otherwise",
            )
        if rules.longest_open < rules.open_for:
            raise checks.bad(
                "longest_open", rules.longest_open, f"must be at least open_for={rules.open_for}"
            )

    def __call__(self, sink: Sink[T]) -> BreakerSink[T]:
        """Wrap `sink`; the returned sink has `state`."""
        return BreakerSink(sink, self)

    def __repr__(self) -> str:
        given = {
            name: getattr(self.rules, name) for name in ("failure_rate", "slow_rate", "consecutive")
        }
        shown = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        return f"CircuitBreaker({shown})"


class _Shared:
    """State shared by all batches of one opened breaker."""

    def __init__(self, rules: CircuitRules) -> None:
        self.circuit = Circuit(rules)
        self.changed = Signal()
        """Fires when a probe has ended, so that waiting batches request admission again."""
        self.has_told = False
        """Whether a batcher was ever notified of an open circuit, so that the closing is reported
        to all.
        """

    def note_report(self, *, is_closed: bool) -> None:
        """Record that the circuit's state was reported."""
        self.has_told = self.has_told or not is_closed


class BreakerSink(WrappingSink[T]):
    """A sink behind a circuit breaker, created by applying a `CircuitBreaker`."""

    _run_time: ClassVar[tuple[str, ...]] = ("_known",)

    def __init__(self, inner: Sink[T], settings: CircuitBreaker) -> None:
        super().__init__(inner)
        self._settings = settings
        self._known: _Shared | None = None

    def _make_state(self) -> None:
        self._known = self._shared

    @property
    def _shared(self) -> _Shared:
        if self._known is None:
            self._known = _Shared(self._settings.rules)
        return self._known

    @property
    def state(self) -> CircuitState:
        """The circuit's state. An open circuit becomes half open with the first call after its time
        is up.
        """
        return self._shared.circuit.state

    def classify(self, error: BaseException) -> ErrorClass | None:
        """Return the class of an error: the breaker's own classifier decides, else the wrapped
        sink.
        """
        return first_answer(error, self._settings.classify, super().classify)

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        """Write the batch if the circuit admits it; otherwise wait, or raise `CircuitOpenError`.
        Cancellation is not counted.

        Once a shutdown has begun, an open circuit no longer holds a batch back: the batch is tried
        immediately, then after shortened waits.
        """
        circuit = self._shared.circuit
        if circuit.state is CircuitState.CLOSED:
            ticket = circuit.admit(batch.delivery.clock.now())
            assert ticket is not None
            errors = await self._send_admitted(batch, ticket)
            return WriteResult.failed(batch, errors) if errors else None
        return await self._write_when_admitted(batch)

    async def _write_when_admitted(self, batch: Batch[T]) -> WriteResult | None:
        final: dict[int, BaseException] = {}
        pending: Sequence[int] = range(len(batch))
        lasted = 0.0
        clock = batch.delivery.clock
        while True:
            ticket, is_time_up = await self._admission(batch, lasted)
            last = is_time_up and batch.delivery.is_hurried
            if is_time_up and not last:
                final.update(dict.fromkeys(pending, self._stopped()))
                return WriteResult.failed(batch, final)
            part = batch if len(pending) == len(batch) else batch.pick(pending)
            began = clock.now()
            found = await (
                send(self.inner, part) if ticket is None else self._send_admitted(part, ticket)
            )
            errors = {pending[i]: error for i, error in found.items()}
            if ticket is not None:
                return WriteResult.failed(batch, final | errors) if final or errors else None
            lasted = clock.now() - began
            left, again = self._sorted(errors, last=last)
            final |= left
            if not again:
                return WriteResult.failed(batch, final) if final else None
            pending = sorted(again)
            batch.delivery.retrying(
                classified(next(iter(again.values())), self.classify), len(pending), 0.0
            )

    def _sorted(
        self, errors: Mapping[int, BaseException], *, last: bool
    ) -> tuple[dict[int, BaseException], dict[int, BaseException]]:
        """Split the errors of a try without admission into final ones and those of items to send
        again.
        """
        final: dict[int, BaseException] = {}
        again: dict[int, BaseException] = {}
        for error, indices in by_error(errors):
            if classified(error, self.classify) in FINAL:
                final.update(dict.fromkeys(indices, error))
            elif last:
                left = stopped(error, "the circuit breaker's last try")
                final.update(dict.fromkeys(indices, left))
            else:
                again.update(dict.fromkeys(indices, error))
        return final, again

    async def _send_admitted(self, batch: Batch[T], ticket: Ticket) -> dict[int, BaseException]:
        """Make an admitted call, and report its end to the circuit."""
        clock = batch.delivery.clock
        try:
            errors = await send(self.inner, batch)
        except BaseException:
            self._cancelled(batch, ticket, clock.now())
            raise
        if is_cut():  # the sink returned a result although it was cancelled
            self._cancelled(batch, ticket, clock.now())
        else:
            verdict = self._verdict(len(batch), errors) if errors else Verdict.SUCCESS
            self._ended(batch, ticket, clock.now(), verdict)
        return errors

    async def _admission(self, batch: Batch[T], lasted: float) -> tuple[Ticket | None, bool]:
        """Wait until the call is admitted; return its ticket, and whether time is up. The ticket is
        `None` for a try without admission during a shutdown.
        """
        shared = self._shared
        circuit = shared.circuit
        clock = batch.delivery.clock
        while True:
            before = circuit.state
            ticket = circuit.admit(clock.now())
            if before is not CircuitState.CLOSED:
                self._tell(batch)
            if ticket is not None:
                return ticket, False
            if self._settings.when_open == "raise":
                raise self._open_error(clock.now())
            is_time_up = await batch.back_off(circuit.retry_at(), shared.changed, lasts=lasted)
            if is_time_up or (batch.stopping and circuit.retry_at() > clock.now()):
                return None, is_time_up

    @staticmethod
    def _stopped() -> StoppedError:
        return StoppedError(
            "given up because the batcher is stopping, and the circuit breaker was open until "
            "its deadline"
        )

    def _open_error(self, now: float) -> CircuitOpenError:
        circuit = self._shared.circuit
        if circuit.state is CircuitState.HALF_OPEN:
            return CircuitOpenError(
                "not sent: the circuit breaker waits for the end of a probe", retry_after=0.0
            )
        left = max(0.0, circuit.opened_until - now)
        return CircuitOpenError(
            f"not sent: the circuit breaker is open for another {left:.3g} s", retry_after=left
        )

    def _verdict(self, size: int, errors: Mapping[int, BaseException]) -> Verdict:
        failed = silent = 0
        for error, indices in by_error(errors):
            kind = classified(error, self.classify)
            is_failure = kind in FAILURES and not isinstance(error, StoredRowDiffers)
            failed += (isinstance(error, TransactionLost) + is_failure) * len(indices)
            silent += (kind in NO_ANSWER) * len(indices)
        if 2 * failed >= size:
            return Verdict.FAILURE
        return Verdict.NEUTRAL if silent == size else Verdict.SUCCESS

    def _ended(self, batch: Batch[T], ticket: Ticket, now: float, verdict: Verdict) -> None:
        circuit = self._shared.circuit
        before = circuit.state
        circuit.ended(ticket, now, verdict)
        self._after(batch, ticket, before)

    def _cancelled(self, batch: Batch[T], ticket: Ticket, now: float) -> None:
        circuit = self._shared.circuit
        before = circuit.state
        circuit.cancelled(ticket, now)
        self._after(batch, ticket, before)

    def _after(self, batch: Batch[T], ticket: Ticket, before: CircuitState) -> None:
        shared = self._shared
        if shared.has_told or shared.circuit.state is not before:
            self._tell(batch)
        if ticket.is_probe:
            shared.changed.fire()

    def _tell(self, batch: Batch[T]) -> None:
        """Report the circuit's state to the batcher."""
        is_closed = self.state is CircuitState.CLOSED
        self._shared.note_report(is_closed=is_closed)
        batch.delivery.reported(self._shared, None if is_closed else OPEN)

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"
