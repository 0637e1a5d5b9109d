"""Decorators that report the writes of a sink inside a stack to an observer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .._core.checks import bad
from .._core.decorator import WrappingSink
from .._core.observer import Observer, Observers
from .._core.send import send
from .._core.sink import WriteResult
from .prometheus import PrometheusObserver

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import CollectorRegistry

    from .._core.batch import Batch
    from .._core.sink import Sink

T = TypeVar("T")


class Observed:
    """Report every write of the wrapped sink to `observer`: `on_flush_start` before it and
    `on_flushed` after it, with its seconds and the errors of its failed items. A cancelled write
    has the `CancelledError` for each unsettled item.

    Around a `Retry` it measures a whole series of tries including waits; inside a `Retry` it
    measures each try. Raises `ConfigError` unless `observer` is an `Observer`.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = _checked(observer)

    def __call__(self, sink: Sink[T]) -> Sink[T]:
        """Wrap `sink`."""
        return _ObservedSink(sink, self.observer)

    def __repr__(self) -> str:
        return f"Observed({self.observer!r})"


class Metrics(Observed):
    """`Observed(PrometheusObserver(name=...))`: sizes, durations, reasons and failures of the
    writes of the wrapped sink.

    Args:
        name: the label `name`; must differ from the batcher's if the batcher also has a
            `PrometheusObserver`.
        registry: a registry of `prometheus_client`; default: its global one.
        exemplars: whether durations have the id of the current trace as an exemplar; needs a
            `Tracing` further out in the stack, and scrapes in OpenMetrics format.

    Raises `ConfigError` for a bad argument and `MissingExtra` without `prometheus_client`.
    """

    def __init__(
        self, name: str, *, registry: CollectorRegistry | None = None, exemplars: bool = False
    ) -> None:
        super().__init__(PrometheusObserver(registry, name=name, exemplars=exemplars))


def _checked(observer: object) -> Observer:
    if not isinstance(observer, Observer):
        raise bad("observer", observer, "must be an Observer")
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
