"""A rate limit in items and bytes per second."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakSet

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
from .split import keep, measured

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
    """Limits the items and bytes per second; batches pass in order of arrival.

    Args:
        items_per_second: default no limit.
        bytes_per_second: default no limit. Sizes come from `size_of`, or else from the batcher, or
            else from the length of bytes-like items; an unmeasurable item fails alone.
        burst: items that may be saved up while the rate is not used; default the rate of a tenth of
            a second, at least 1.
        burst_bytes: the same for bytes.
        key: a function from an item to its target (hashable), each with its own buckets; default
            one target. A batch is then written in parts: ready items at once, in the batch's order,
            the others later. An item for which it raises fails alone.
        max_keys: limit on remembered targets, default 10,000; beyond it, the least recently used
            one is forgotten and starts again with full buckets.
        size_of: a function from an item to its size in bytes.

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
        items_per_second: float | None = None,
        *,
        bytes_per_second: float | None = None,
        burst: float | None = None,
        burst_bytes: float | None = None,
        key: Callable[[Any], Hashable] | None = None,
        max_keys: int = 10_000,
        size_of: Callable[[Any], int] | None = None,
    ) -> None:
        if items_per_second is None and bytes_per_second is None:
            raise checks.bad(
                "items_per_second",
                None,
                "must be given, or bytes_per_second; nothing would be limited otherwise",
            )
        self.items_per_second = checks.optional_rate("items_per_second", items_per_second)
        """Change it with `set_rate`."""
        self.bytes_per_second = checks.optional_rate("bytes_per_second", bytes_per_second)
        """Change it with `set_rate`."""
        self.burst = _burst("burst", burst, "items_per_second", items_per_second)
        self.burst_bytes = _burst("burst_bytes", burst_bytes, "bytes_per_second", bytes_per_second)
        for name, function in (("key", key), ("size_of", size_of)):
            if function is not None and not callable(function):
                raise checks.bad(name, function, "must be a function of an item")
        if size_of is not None and bytes_per_second is None:
            raise checks.bad("size_of", size_of, "goes with bytes_per_second")
        self.key = key
        self.max_keys = checks.count("max_keys", max_keys)
        self.size_of = size_of
        self._applied: WeakSet[_RateLimitSink[Any]] = WeakSet()

    @property
    def rates(self) -> tuple[Rate, ...]:
        """The rate and burst of each limited bucket: items, then bytes."""
        limits = ((self.items_per_second, self.burst), (self.bytes_per_second, self.burst_bytes))
        return tuple(
            Rate(rate, max(1.0, rate * BURST_SECONDS) if burst is None else burst)
            for rate, burst in limits
            if rate is not None
        )

    def set_rate(
        self, items_per_second: float | None = None, *, bytes_per_second: float | None = None
    ) -> None:
        """Change the rates of every sink this was applied to and wake waiting batches. `None` keeps
        a rate.

        A default burst follows its rate. Call it on the loop's thread. Does not suspend.

        Raises `ConfigError` for a bad rate, and for one that was not limited before.
        """
        changes = {"items_per_second": items_per_second, "bytes_per_second": bytes_per_second}
        for name, value in changes.items():
            if value is not None and getattr(self, name) is None:
                raise checks.bad(
                    name,
                    value,
                    "was not limited before, and cannot be limited later; give it at construction",
                )
        checked = {name: checks.optional_rate(name, value) for name, value in changes.items()}
        for name, rate in checked.items():
            if rate is not None:
                setattr(self, name, rate)
        for sink in self._applied:
            sink.rates_changed()

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        made = _RateLimitSink(sink, self)
        self._applied.add(made)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_applied"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _applied=WeakSet())

    def __repr__(self) -> str:
        rates = {
            "items_per_second": self.items_per_second,
            "bytes_per_second": self.bytes_per_second,
        }
        return f"RateLimit({', '.join(f'{name}={rate:g}' for name, rate in rates.items() if rate is not None)})"


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

    def rates_changed(self) -> None:
        """Apply the changed rates of the settings."""
        if self._known is not None:
            meters, clock = self._known
            meters.set_rates(self._settings.rates, clock.now())

    def _make_state(self) -> None:
        self._meters(LOOP_CLOCK)

    def _meters(self, clock: Clock) -> Meters:
        if self._known is None:
            self._known = (Meters(self._settings.rates, self._settings.max_keys), clock)
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
        settings = self._settings
        sizes: Sequence[int] = ()
        if settings.bytes_per_second is not None:
            sizes, errors = measured(batch, settings.size_of)
            refused.update(errors)
        groups = self._groups(batch, refused)
        meters = self._meters(batch.delivery.clock)
        turns: list[Turn] = []
        for key, indices in groups.items():
            items = () if settings.items_per_second is None else (float(len(indices)),)
            in_bytes = (
                ()
                if settings.bytes_per_second is None
                else (float(sum(sizes[index] for index in indices)),)
            )
            turn = Turn(meters.of(key, now), indices, items + in_bytes, woken)
            turn.meter.join(turn)
            turns.append(turn)
        return turns

    def _groups(
        self, batch: Batch[T], refused: dict[int, BaseException]
    ) -> Mapping[Hashable, Sequence[int]]:
        key = self._settings.key
        if key is None:
            every = range(len(batch))
            return {None: [index for index in every if index not in refused] if refused else every}
        groups: dict[Hashable, list[int]] = {}
        for index, item in enumerate(batch):
            if index in refused:
                continue
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


def _burst(name: str, burst: object, rate_name: str, rate: float | None) -> float | None:
    if burst is None:
        return None
    if rate is None:
        raise checks.bad(name, burst, f"goes with {rate_name}")
    if isinstance(burst, bool) or not isinstance(burst, (int, float)) or not 0 <= burst < math.inf:
        raise checks.bad(name, burst, "must be a number of at least 0")
    return float(burst)


def _no_target(error: Exception) -> PermanentError:
    return caused(PermanentError(f"key= raised for this item: {error!r}"), error)


publish("sluicegate.sinks", RateLimit)
