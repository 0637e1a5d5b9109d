"""A rate limit in items and bytes per second."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .._core import checks
from .._core.classify import by_error, caused, classified
from .._core.clock import LOOP_CLOCK, Clock, Signal
from .._core.decorator import WrappingSink
from .._core.delivery.pacing import LONGEST_ASKED, asked_wait
from .._core.errors import ErrorClass, PermanentError
from .._core.keywords import known_arguments
from .._core.public import publish
from .._core.send import send
from .._core.sink import SinkDecorator, WriteResult
from .meter import Meters, Rate, Turn
from .split import keep

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from .._core.batch import Batch
    from .._core.sink import Capabilities, Sink

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
        key: a function from an item to its target (hashable), each with its own bucket; default
            one target. A batch is then written in parts: ready items at once, in the batch's order,
            the others later. An item for which it raises fails alone.
        max_keys: limit on remembered targets, default 10,000; beyond it, the least recently used
            one is forgotten and starts again with a full bucket.

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
        key: Callable[[Any], Hashable] | None = None,
        max_keys: int = 10_000,
    ) -> None:
        rate = checks.optional_rate("items_per_second", items_per_second)
        if rate is None:
            raise checks.bad("items_per_second", None, "must be given")
        self.items_per_second = rate
        self.burst = _burst(burst, rate)
        if key is not None and not callable(key):
            raise checks.bad("key", key, "must be a function of an item")
        self.key = key
        self.max_keys = checks.count("max_keys", max_keys)

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
        self._known: tuple[Meters, Clock] | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The wrapped sink's, except that with `key` a later item of an order key may overtake an
        earlier one.
        """
        found = super().capabilities
        return found if self._settings.key is None else replace(found, key_prefix_safe=False)

    def _make_state(self) -> None:
        self._meters(LOOP_CLOCK)

    def _meters(self, clock: Clock) -> Meters:
        if self._known is None:
            settings = self._settings
            self._known = (
                Meters(Rate(settings.items_per_second, settings.burst), settings.max_keys),
                clock,
            )
        return self._known[0]

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        clock = batch.delivery.clock
        final: dict[int, BaseException] = {}
        woken = Signal()
        waiting = self._turns(batch, clock.now(), woken, final)
        if len(waiting) > 1 or final:
            batch.hold(range(len(batch)))
        try:
            while waiting:
                ready = await self._ready(batch, waiting, clock, woken)
                waiting = [turn for turn in waiting if turn not in ready]
                for turn in ready:
                    turn.meter.take(turn)
                for turn in waiting:
                    turn.step_aside()
                errors = await self._send(batch, ready, clock)
                if errors:
                    keep(final, batch, range(len(batch)), errors, self.classify)
                for turn in waiting:
                    turn.step_back()
        finally:
            for turn in waiting:
                turn.meter.leave(turn)
        return WriteResult.failed(batch, final) if final else None

    def _turns(
        self, batch: Batch[T], now: float, woken: Signal, refused: dict[int, BaseException]
    ) -> list[Turn]:
        """Join the queue of each target in the batch."""
        meters = self._meters(batch.delivery.clock)
        turns: list[Turn] = []
        for key, indices in self._groups(batch, refused).items():
            turn = Turn(meters.of(key, now), indices, float(len(indices)), woken)
            turn.meter.join(turn)
            turns.append(turn)
        return turns

    def _groups(
        self, batch: Batch[T], refused: dict[int, BaseException]
    ) -> Mapping[Hashable, Sequence[int]]:
        key = self._settings.key
        if key is None:
            return {None: range(len(batch))}
        groups: dict[Hashable, list[int]] = {}
        for index, item in enumerate(batch):
            try:
                groups.setdefault(key(item), []).append(index)
            except Exception as error:
                refused[index] = _no_target(error)
        return groups

    @staticmethod
    async def _ready(
        batch: Batch[T], waiting: list[Turn], clock: Clock, woken: Signal
    ) -> list[Turn]:
        """Wait until some turns may pass; return them."""
        while True:
            now = clock.now()
            ready = [turn for turn in waiting if turn.meter.due(turn, now) <= now]
            if ready:
                return ready
            until = min(turn.meter.look_again_at(turn, now) for turn in waiting)
            pending = batch.pick(_indices(waiting))
            if await pending.back_off(until, woken, through_stop=True):
                return list(waiting)  # the required branches are done: last attempt

    async def _send(
        self, batch: Batch[T], turns: Sequence[Turn], clock: Clock
    ) -> dict[int, BaseException]:
        indices = _indices(turns)

        def throttled(until: float) -> None:
            for turn in turns:
                turn.meter.throttle(until, clock.now())

        batch.delivery.listen(throttled)
        try:
            found = await send(
                self.inner, batch if len(indices) == len(batch) else batch.pick(indices)
            )
        finally:
            batch.delivery.unlisten(throttled)
        errors = {indices[index]: error for index, error in found.items()}
        for turn in turns if errors else ():
            pause = self._pause({i: errors[i] for i in turn.indices if i in errors})
            if pause is not None:
                turn.meter.throttle(clock.now() + pause, clock.now())
        return errors

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


def _indices(turns: Sequence[Turn]) -> Sequence[int]:
    """The indices of the turns' items, in the batch's order."""
    return (
        turns[0].indices
        if len(turns) == 1
        else sorted(index for turn in turns for index in turn.indices)
    )


def _burst(burst: object, rate: float) -> float:
    if burst is None:
        return max(1.0, rate * BURST_SECONDS)
    if isinstance(burst, bool) or not isinstance(burst, (int, float)) or not 0 <= burst < math.inf:
        raise checks.bad("burst", burst, "must be a number of at least 0")
    return float(burst)


def _no_target(error: Exception) -> PermanentError:
    return caused(PermanentError(f"key= raised for this item: {error!r}"), error)


publish("sluicegate.sinks", RateLimit)
