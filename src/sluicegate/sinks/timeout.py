"""A time limit for one attempt."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from .._core import checks
from .._core.classify import caused
from .._core.decorator import WrappingSink
from .._core.delivery.delivery import GRACE
from .._core.errors import StoppedError, TimedOutError, UnavailableError
from .._core.keywords import known_arguments
from .._core.logs import log_safely
from .._core.outcome import Outcome
from .._core.public import publish
from .._core.send import send
from .._core.sink import SinkDecorator, WriteResult

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from types import TracebackType

    from .._core.batch import Batch
    from .._core.clock import TimerHandle
    from .._core.delivery.delivery import Delivery
    from .._core.sink import Sink


T = TypeVar("T")

logger = logging.getLogger("sluicegate.timeout")

_BLOCKED = (
    "Timeout(%g): the event loop was blocked during a write of %r, which could not be cut off; if the "
    "sink blocks, write it as a plain `def` (it then runs in a thread), or `await in_thread(...)` in "
    "it"
)


@known_arguments()
class Timeout(SinkDecorator):
    """Limits every write of the wrapped sink to `seconds` (a number or a `timedelta`; usually 5).

    A longer write is cancelled. Each of its items then has the error for its state: an item in
    flight has an unknown outcome, an item waiting for a retry was not applied, an item waiting for
    its turn in a write in parts was not sent (`UnavailableError`), and a failed item keeps its
    error. A sink that ignores the cancellation keeps its flush slot, but its items resolve after a
    grace period of 0.1 s, and nothing is sent concurrently.

    Raises `ConfigError` unless `seconds` is more than 0. Must be shorter than the batcher's
    `flush_timeout`.
    """

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = checks.seconds("seconds", seconds, usual=checks.LONG_TIMEOUT)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        return _TimeoutSink(sink, self.seconds)

    def __repr__(self) -> str:
        return f"Timeout({self.seconds})"


class _TimeoutSink(WrappingSink[T]):
    def __init__(self, inner: Sink[T], seconds: float) -> None:
        super().__init__(inner)
        self.stretch_limit = seconds
        self._has_told = False

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        errors: Mapping[int, BaseException] = {}
        limit = TimeLimit(batch.delivery, self.stretch_limit)
        with limit:
            errors = await send(self.inner, batch)
        if limit.is_exceeded:  # even if the sink replaced its cancellation with another error
            return self._verdicts(batch)
        if limit.is_missed and not self._has_told:
            self._has_told = True
            log_safely(logger, logging.WARNING, _BLOCKED, self.stretch_limit, self.inner)
        return WriteResult.failed(batch, errors) if errors else None

    def _verdicts(self, batch: Batch[T]) -> WriteResult:
        """An error per state: items cut off in the same state after the same error share one."""
        delivery = batch.delivery
        made: dict[tuple[Outcome, bool, int], BaseException] = {}
        errors: dict[int, BaseException] = {}
        for index in batch.unsettled():
            root = batch.roots((index,))[0]
            verdict, held = delivery.verdict(root), delivery.states.is_held(root)
            cause = delivery.error(root)
            state = (verdict, held, id(cause))
            error = made.get(state)
            if error is None:
                error = made[state] = self._error(verdict, cause, held=held)
            errors[index] = error
        return WriteResult.failed(batch, errors)

    def _error(self, verdict: Outcome, cause: BaseException | None, *, held: bool) -> BaseException:
        if cause is not None and (held or verdict is Outcome.REJECTED):
            return cause
        if held:
            error: BaseException = UnavailableError(
                f"cut off after {self.stretch_limit} s, before its turn to be sent"
            )
        elif verdict is Outcome.UNSENT:
            error = StoppedError(
                f"cut off after {self.stretch_limit} s while waiting to be sent again"
            )
        else:
            error = TimedOutError(f"the write was cut off after {self.stretch_limit} s")
        return error if cause is None else caused(error, cause)

    def __repr__(self) -> str:
        return f"Timeout({self.stretch_limit})({self.inner!r})"


class TimeLimit:
    """A context manager that cancels its task after `seconds`.

    `GRACE` seconds later it closes the delivery, in case the write ignores its cancellation. It
    swallows its own cancellation, as `asyncio.timeout` does, but needs only one timer for both
    times.
    """

    __slots__ = ("_cancelling", "_delivery", "_seconds", "_task", "_timer", "_when", "is_exceeded")

    def __init__(self, delivery: Delivery, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        clock = delivery.clock
        self.is_exceeded = False
        self._delivery = delivery
        self._task = task
        self._cancelling = task.cancelling()
        self._seconds = seconds
        self._when = clock.now() + seconds
        self._timer: TimerHandle = clock.call_at(self._when, self._exceed)

    def _exceed(self) -> None:
        self.is_exceeded = True
        self._task.cancel()
        delivery = self._delivery
        self._timer = delivery.clock.call_at(self._when + GRACE, delivery.close)

    @property
    def is_missed(self) -> bool:
        """Whether the task took twice its time and the timer did not run, because the loop was
        blocked.
        """
        late = self._delivery.clock.now() - self._when
        return late > self._seconds and not self.is_exceeded

    def __enter__(self) -> None:
        """Do nothing: the time is already running."""

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> bool:
        self._timer.cancel()
        if not self.is_exceeded:
            return False
        requests = self._task.uncancel()
        return kind is asyncio.CancelledError and requests <= self._cancelling


publish("sluicegate", Timeout)
