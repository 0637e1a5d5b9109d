"""A time limit for one attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ..._core import checks
from ..._core.causes import caused
from ..._core.decorator import WrappingSink
from ..._core.delivery.delivery import GRACE
from ..._core.errors import StoppedError, TimedOutError, UnavailableError
from ..._core.outcome import Outcome
from ..._core.result import WriteResult
from ..._core.send import send

if TYPE_CHECKING:
    from datetime import timedelta

    from ..._core.batch import Batch
    from ..._core.sink import Sink

T = TypeVar("T")


class Timeout:
    """Limits every write of the wrapped sink to `seconds` (a number or a `timedelta`; usually 5).

    A longer write is cancelled. Each of its items then has its own error: an item in flight has an
    unknown outcome, an item waiting for a retry was not applied, an item waiting for its turn in a
    write in parts was not sent (`UnavailableError`), and a failed item keeps its error. A sink that
    ignores the cancellation keeps its flush slot, but its items resolve after a grace period of
    0.1 s, and nothing is sent concurrently.

    Raises `ConfigError` unless `seconds` is more than 0. Must be shorter than the batcher's
    `flush_timeout`.
    """

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = checks.seconds("seconds", seconds)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        return _TimeoutSink(sink, self.seconds)

    def __repr__(self) -> str:
        return f"Timeout({self.seconds})"


class _TimeoutSink(WrappingSink[T]):
    def __init__(self, inner: Sink[T], seconds: float) -> None:
        super().__init__(inner)
        self.stretch_limit = seconds

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        delivery = batch.delivery
        clock = delivery.clock
        when = clock.now() + self.stretch_limit
        grace = clock.call_at(when + GRACE, delivery.close)
        expired = clock.timeout_at(when)
        try:
            async with expired:
                errors = await send(self.inner, batch)
        except TimeoutError:
            return self._verdicts(batch)
        finally:
            grace.cancel()
        if expired.expired():  # the sink replaced its cancellation by another error
            return self._verdicts(batch)
        return WriteResult.failed(batch, errors) if errors else None

    def _verdicts(self, batch: Batch[T]) -> WriteResult:
        return WriteResult.failed(
            batch, {index: self._error(batch, index) for index in batch.unsettled()}
        )

    def _error(self, batch: Batch[T], index: int) -> BaseException:
        (root, *_) = batch.roots((index,))
        verdict = batch.delivery.verdict(root)
        cause = batch.delivery.error(root)
        held = batch.delivery.states.is_held(root)
        if cause is not None and (held or verdict is Outcome.REJECTED):
            return cause
        if held:
            error: BaseException = UnavailableError(
                f"cut off after {self.stretch_limit} s, before it was its turn to be sent"
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
