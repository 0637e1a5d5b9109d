"""Observers that convert events of batchers, sinks and consumers into metrics, for all exporters.

1. Events are counted when they happen; states and totals are read from the batcher or consumer.
2. The metrics belong to the registry or the meter provider: all its observers share them, and
   batchers or consumers with the same name add up.
3. A closed batcher or consumer keeps its counts, but has no state.
4. An observer keeps no batcher alive: a batcher that is garbage-collected with pending items must
   be able to warn.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .._core import checks
from .._core.decorator import WrappingSink
from .._core.observer import ConsumerObserver, Observer, Observers
from .._core.send import send
from .._core.sink import WriteResult
from .batcher_metrics import (
    DROPPED,
    ERRORS,
    FAILED_FLUSHES,
    FLUSHES,
    RETRIES,
    SECONDS,
    SIZES,
    WAITS,
)
from .consumer_metrics import CLAIMS, HANDLER_SECONDS, POISON

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from .._core.batch import Batch
    from .._core.observer import ClaimChange, ConsumerState, HandlerEnd, HandlerWatch
    from .._core.outcome import Outcome
    from .._core.sink import Sink
    from .._core.source import TopicPartition
    from .metric import Labels, Metric

T = TypeVar("T")

LAG_EVERY = 15.0
"""Default interval between two samples of the lag, in seconds."""


class Observed:
    """Report every write of the wrapped sink to `observer`: `on_flush_start` before it and
    `on_flushed` after it, with its seconds and the errors of its failed items. A cancelled write
    has the `CancelledError` for each unsettled item.

    Around a `Retry` it measures a whole series of attempts including waits; inside a `Retry` it
    measures each attempt. Raises `ConfigError` unless `observer` is an `Observer`.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = _check_observer(observer)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        return _ObservedSink(sink, self.observer)

    def __repr__(self) -> str:
        return f"Observed({self.observer!r})"


def _check_observer(observer: object) -> Observer:
    if not isinstance(observer, Observer):
        raise checks.bad("observer", observer, "must be an Observer")
    return observer


class _ObservedSink(WrappingSink[T]):
    def __init__(self, inner: Sink[T], observer: Observer) -> None:
        super().__init__(inner)
        self._observers = Observers([observer])

    async def write(self, batch: Batch[T]) -> WriteResult | None:
        clock = batch.delivery.clock
        began = clock.now()
        self._observers.tell(lambda observer: observer.on_flush_start(batch))
        errors: Mapping[int, BaseException] = {}
        try:
            errors = await send(self.inner, batch)
        except BaseException as cut:  # a hanging write that is cancelled matters most
            errors = dict.fromkeys(batch.unsettled(), cut)
            raise
        finally:
            seconds = clock.now() - began
            self._observers.tell(lambda observer: observer.on_flushed(batch, seconds, errors))
        return WriteResult.failed(batch, errors) if errors else None

    def __repr__(self) -> str:
        return f"Observed({self.inner!r})"


class Instruments(Protocol):
    """The metrics of one registry or meter provider. The first label is the name."""

    def begin(self, name: str) -> None:
        """Start the loss counters at 0."""

    def count(self, metric: Metric, labels: Labels, number: int) -> None:
        """Add to a counter."""

    def observe(
        self, metric: Metric, labels: Labels, value: float, trace: str | None = None
    ) -> None:
        """Add a value to a histogram."""

    def count_tenant(
        self, name: str, tenant: object, outcome: Outcome, items: int, most: int
    ) -> None:
        """Count items of a tenant by outcome; at most `most` tenants of a name are shown."""

    def watch(self, name: str, stats: Callable[[], Any], *, tenants: int) -> None:
        """Start showing the states of this batcher."""

    def forget(self, name: str) -> None:
        """Stop showing the states of the closed batchers of this name."""

    def refresh(self) -> None:
        """Update the states for exporters that do not read them at a scrape."""


class ExportingObserver:
    """Base of the observers that show an object as metrics; `find` returns those of the registry or
    provider, which are created at the first use.
    """

    _tenants = 0

    def __init__(self, find: Callable[[], Instruments], name: str | None) -> None:
        self._find = find
        self._name = None if name is None else checks.text("name", name)
        self._found: Instruments | None = None

    @property
    def _instruments(self) -> Instruments:
        if self._found is None:
            self._found = self._find()
        return self._found

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_found": None}

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """Show the states of this object."""
        self._instruments.begin(self._name or name)
        self._instruments.watch(self._name or name, stats, tenants=self._tenants)

    def _follow(self, name: str, state: str) -> None:
        if state == "closed":
            self._instruments.forget(self._name or name)
        else:
            self._instruments.refresh()

    def __repr__(self) -> str:
        given = "" if self._name is None else f"name={self._name!r}"
        return f"{type(self).__name__}({given})"


class MetricsObserver(ExportingObserver, Observer):
    """Observer that converts events of batchers into metrics."""

    def __init__(
        self, find: Callable[[], Instruments], name: str | None, *, exemplars: bool, tenants: int
    ) -> None:
        super().__init__(find, name)
        self._exemplars = checks.flag("exemplars", exemplars)
        self._tenants = checks.count("tenants", tenants, least=0)

    def on_state(self, name: str, state: str) -> None:
        """Stop reading a closed batcher; its counts stay."""
        self._follow(name, state)

    def on_flushed(
        self, batch: Batch[Any], seconds: float, errors: Mapping[int, BaseException]
    ) -> None:
        """Count one write."""
        metrics, name = self._instruments, self._name or batch.name
        trace = trace_id() if self._exemplars else None
        metrics.observe(SIZES, (name,), len(batch))
        metrics.observe(SECONDS, (name, "error" if errors else "ok"), seconds, trace)
        metrics.count(FLUSHES, (name, batch.reason.value), 1)
        if batch.sealed_at is not None and batch.oldest_at is not None:
            metrics.observe(WAITS, (name,), batch.sealed_at - batch.oldest_at)
        if errors:
            metrics.count(FAILED_FLUSHES, (name,), 1)
            for kind, number in Counter(type(error).__name__ for error in errors.values()).items():
                metrics.count(ERRORS, (name, kind), number)

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        """Count a tenant's items, unless `tenants=0`."""
        if self._tenants and batch.tenant is not None:
            self._instruments.count_tenant(
                self._name or batch.name, batch.tenant, outcome, len(indices), self._tenants
            )

    def on_retry(self, batch: Batch[Any], error_class: str, items: int, delay: float) -> None:
        """Count one retry."""
        self._instruments.count(RETRIES, (self._name or batch.name, error_class), 1)

    def on_destination(self, name: str, state: str, reason: str) -> None:
        """Show the new state."""
        self._instruments.refresh()

    def on_dropped(self, name: str, items: Sequence[Any], reason: str) -> None:
        """Count dropped items."""
        self._instruments.count(DROPPED, (self._name or name, reason), len(items))

    def on_adapted(self, name: str, workers: int, max_items: int) -> None:
        """Show the new limits."""
        self._instruments.refresh()


class ConsumerMetricsObserver(ExportingObserver, ConsumerObserver):
    """Observer that converts the events of consumers into metrics."""

    def __init__(
        self,
        find: Callable[[], Instruments],
        *,
        name: str | None,
        durations: bool,
        exemplars: bool,
        lag_every: float | timedelta | None,
    ) -> None:
        super().__init__(find, name)
        self._durations = checks.flag("durations", durations)
        self._exemplars = checks.flag("exemplars", exemplars)
        self.lag_every = checks.optional_seconds("lag_every", lag_every, usual=checks.LONG_TIMEOUT)

    def on_state(self, name: str, state: ConsumerState) -> None:
        """Stop reading a closed consumer; its counts stay."""
        self._follow(name, state)

    def on_claims(
        self, name: str, change: ClaimChange, partitions: Sequence[TopicPartition]
    ) -> None:
        """Count partitions."""
        self._instruments.count(CLAIMS, (self._name or name, change), len(partitions))

    def on_poison(self, name: str, message: Any, error: BaseException, action: str) -> None:
        """Count a poison message."""
        labels = (self._name or name, action, type(error).__name__)
        self._instruments.count(POISON, labels, 1)

    def handling(self, name: str, *, is_batch: bool) -> HandlerWatch | None:
        """Return a watch of the handler's turns, if durations are enabled."""
        if not self._durations:
            return None
        end = partial(self._observe_end, self._name or name)
        return lambda _: end

    def _observe_end(self, name: str, end: HandlerEnd) -> None:
        trace = trace_id() if self._exemplars else None
        self._instruments.observe(HANDLER_SECONDS, (name, end.outcome), end.seconds, trace)


def trace_id() -> str | None:
    """Return the current trace's id as 32 hexadecimal digits; `None` outside a trace, or if
    OpenTelemetry is not loaded.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None
