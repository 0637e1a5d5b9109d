"""A rate limit in items per second."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, TypeVar

from .._core import checks
from .._core.classify import by_error, classified
from .._core.clock import LOOP_CLOCK, Clock, Signal
from .._core.decorator import WrappingSink
from .._core.delivery.pacing import LONGEST_ASKED, asked_wait
from .._core.errors import ErrorClass
from .._core.keywords import known_arguments
from .._core.public import publish
from .._core.send import send
from .._core.sink import SinkDecorator, WriteResult
from .meter import Meter, Turn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .._core.batch import Batch
    from .._core.sink import Sink

T = TypeVar("T")

BURST_SECONDS = 0.1
THROTTLE_PAUSE = 5.0
"""Default throttle delay, in seconds."""


@known_arguments()
class RateLimit(SinkDecorator):
    """Limits the items per second; batches pass in order of arrival.

    Args:
        items_per_second: the rate.
        burst: items that may be saved up while the rate is not used; default the rate of a tenth of
            a second, at least 1.

    In any T seconds at most rate x T + the larger of `burst` and the largest batch pass: a batch
    larger than the burst passes when the bucket is full, and the batches behind it wait until the
    debt is paid. A waiting batch releases its flush slot.

    When the destination throttles, nothing passes until its pause is over (5 s by default), and the
    rate is halved; it recovers by a tenth of the full rate each second. A shutdown does not lift
    the limit: items still waiting at the deadline are unsent.

    Raises `ConfigError` for a bad argument.
    """

    def __init__(
        self,
        items_per_second: float,
        *,
        burst: float | None = None,
    ) -> None:
        rate = checks.optional_rate("items_per_second", items_per_second)
        if rate is None:
            raise checks.bad("items_per_second", None, "must be given")
        self.items_per_second = rate
        self.burst = _burst(burst, rate)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        return _RateLimitSink(sink, self)

    def __repr__(self) -> str:
        return f"RateLimit(items_per_second={self.items_per_second:g})"


class _RateLimitSink(WrappingSink[T]):
    _run_time: ClassVar[tuple[str, ...]] = ("_known",)

    def __init__(self, inner: Sink[T], settings: RateLimit) -> None:
        super().__init__(inner)
        self._settings = settings
        self._known: Meter | None = None

    def _make_state(self) -> None:
        self._meter(LOOP_CLOCK)

    def _meter(self, clock: Clock) -> Meter:
        if self._known is None:
            settings = self._settings
            self._known = Meter(settings.items_per_second, settings.burst, clock.now())
        return self._known

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        clock = batch.delivery.clock
        meter = self._meter(clock)
        turn = Turn(float(len(batch)), Signal())
        meter.join(turn)
        try:
            while meter.due(turn, clock.now()) > clock.now():
                until = meter.look_again_at(turn, clock.now())
                if await batch.back_off(until, turn.woken, through_stop=True):
                    break  # the required branches are done: last attempt
            meter.take(turn)
        finally:
            meter.leave(turn)

        def throttled(until: float) -> None:
            meter.throttle(until, clock.now())

        batch.delivery.listen(throttled)
        try:
            errors = await send(self.inner, batch)
        finally:
            batch.delivery.unlisten(throttled)
        if errors and (pause := self._pause(errors)) is not None:
            meter.throttle(clock.now() + pause, clock.now())
        return WriteResult.failed(batch, errors) if errors else None

    def _pause(self, errors: Mapping[int, BaseException]) -> float | None:
        """The throttle delay that these errors imply, if any."""
        throttles = [
            error
            for error, _ in by_error(errors)
            if classified(error, self.classify) is ErrorClass.THROTTLE
        ]
        if not throttles:
            return None
        asked = [
            seconds
            for error in throttles
            if (seconds := asked_wait(error, LONGEST_ASKED)) is not None
        ]
        return max(asked, default=THROTTLE_PAUSE)

    def __repr__(self) -> str:
        return f"{self._settings!r}({self.inner!r})"


def _burst(burst: object, rate: float) -> float:
    if burst is None:
        return max(1.0, rate * BURST_SECONDS)
    if isinstance(burst, bool) or not isinstance(burst, (int, float)) or not 0 <= burst < math.inf:
        raise checks.bad("burst", burst, "must be a number of at least 0")
    return float(burst)


publish("sluicegate.sinks", RateLimit)
