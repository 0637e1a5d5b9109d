"""The metrics of consumers: the observer behind all exporters, and the one for Prometheus.

As for batchers, metrics belong to the registry or the meter provider. All its observers share them,
consumers with the same name add up, and a closed consumer keeps its counts but has no state.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from .._core import checks
from .._core.observer import ConsumerObserver
from ._trace import trace_id
from .consumer_definitions import CLAIMS, CONSUMER, HANDLER_SECONDS, POISON
from .families import Families
from .prometheus import require_prometheus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from prometheus_client import CollectorRegistry

    from .._core.observer import ClaimChange, ConsumerState, HandlerEnd, HandlerWatch
    from .._core.source import TopicPartition
    from .event_observer import Instruments

LAG_EVERY = 15.0
"""Default interval between two samples of the lag, in seconds."""


class ConsumerMetricsObserver(ConsumerObserver):
    """Observer that converts the events of a consumer into metrics."""

    def __init__(
        self,
        find: Callable[[], Instruments],
        *,
        name: str | None,
        durations: bool,
        exemplars: bool,
        lag_every: float | timedelta | None,
    ) -> None:
        self._find = find
        self._name = None if name is None else checks.text("name", name)
        self._durations = checks.flag("durations", durations)
        self._exemplars = checks.flag("exemplars", exemplars)
        self.lag_every = checks.optional_seconds("lag_every", lag_every, usual=checks.LONG_TIMEOUT)
        self._found: Instruments | None = None

    @property
    def _instruments(self) -> Instruments:
        if self._found is None:
            self._found = self._find()
        return self._found

    def on_open(self, name: str, stats: Callable[[], Any]) -> None:
        """Show the states of this consumer."""
        self._instruments.begin(self._name or name)
        self._instruments.watch(self._name or name, stats, tenants=0)

    def on_state(self, name: str, state: ConsumerState) -> None:
        """Stop reading a closed consumer; its counts stay."""
        if state == "closed":
            self._instruments.forget(self._name or name)
        else:
            self._instruments.refresh()

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
        ended = partial(self._ended, self._name or name)
        return lambda _: ended

    def _ended(self, name: str, end: HandlerEnd) -> None:
        trace = trace_id() if self._exemplars else None
        self._instruments.observe(HANDLER_SECONDS, (name, end.outcome), end.seconds, trace)

    def __repr__(self) -> str:
        given = "" if self._name is None else f"name={self._name!r}"
        return f"{type(self).__name__}({given})"


class PrometheusConsumerObserver(ConsumerMetricsObserver):
    """Metrics of consumers; the how-to page lists their names.

    Args:
        registry: a registry of `prometheus_client`; default: its global one.
        name: the label `name`; default: the consumer's.
        durations: whether the duration of each turn of the handler is recorded in a histogram.
            Costs 3.5 µs per message or batch; everything else costs nothing per message.
        exemplars: whether durations have the id of the current trace as an exemplar; needs a
            `ConsumerTracing` before this observer, and scrapes in OpenMetrics format.
        lag_every: seconds between two queries for the ends of the partitions, for the lag; `None`:
            no lag. Default 15.

    Raises `ConfigError` for a bad argument and `MissingExtra` without `prometheus_client`.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        name: str | None = None,
        durations: bool = False,
        exemplars: bool = False,
        lag_every: float | timedelta | None = LAG_EVERY,
    ) -> None:
        require_prometheus("PrometheusConsumerObserver")
        super().__init__(
            lambda: Families.of(registry, CONSUMER),
            name=name,
            durations=durations,
            exemplars=exemplars,
            lag_every=lag_every,
        )
