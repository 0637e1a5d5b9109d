"""Metrics as rows of a table: one table for each kind of watched object.

1. All exporters, the dashboards and the reference page are made from the rows.
2. A row without a `value` is counted when its event happens; the value of any other is read from
   the object's `stats()` on demand, and costs nothing until then.
3. OpenTelemetry's name is the Prometheus name with a dot after its first word and without the unit:
   `batcher_flush_duration_seconds` is `batcher.flush_duration` in `s`. OpenTelemetry's exporters to
   Prometheus convert it back to the same name, so the alert rules work for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

Labels: TypeAlias = tuple[str, ...]
Values: TypeAlias = Mapping[Labels, float]
"""Values by the labels after `name`."""

TIMES = tuple(0.001 * 2**power for power in range(16))
"""The buckets of histograms of seconds: 1 ms, doubled 15 times."""
EVENT = ""
"""The `value` of a metric that is counted when its event happens."""


class Metric(NamedTuple):
    """A row: the definition of a metric."""

    name: str
    """For Prometheus, without `_total`."""
    kind: Literal["histogram", "counter", "gauge", "max"]
    """Several objects or processes of one name show the sum of their values; of a `max`, which is a
    gauge as well, they show the greatest one.
    """
    unit: str
    """In UCUM, as used by OpenTelemetry."""
    value: str | Mapping[str, str] | Callable[[Any], Values]
    """Where its value is in the `stats()`, or a function that reads it there; or `EVENT`.

    A path of attributes, in which `*` stands for each key of a mapping; the keys are its labels. Or
    such a path for each value of its label. A value that is `None`, or behind a `None`, is missing.
    """
    labels: Labels
    """The labels after `name`."""
    text: str
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram."""
    label_values: tuple[str, ...] = ()
    """The values of its label that exist from the start, at 0, like a counter without labels:
    Prometheus does not see the increase in a loss counter that starts at 5.
    """

    @property
    def is_event(self) -> bool:
        """Whether it is counted when its event happens."""
        return self.value == EVENT

    @property
    def all_labels(self) -> Labels:
        """The names of all labels."""
        return ("name", *self.labels)

    @property
    def otel_name(self) -> str:
        """The name for OpenTelemetry."""
        return self.name.removesuffix("_seconds").replace("_", ".", 1)

    @property
    def first_series(self) -> tuple[Labels, ...]:
        """The series that start at 0, by their labels after `name`."""
        if not self.labels:
            return ((),) if self.kind == "counter" else ()
        value = self.value
        known = self.label_values if isinstance(value, str) or callable(value) else tuple(value)
        return tuple((each,) for each in known)

    def read(self, stats: Any) -> Values:
        """Return its values in the `stats()` of a watched object."""
        if callable(self.value):
            return self.value(stats)
        if isinstance(self.value, str):
            return _follow(stats, self.value.split("."))
        return {
            (label,): value
            for label, path in self.value.items()
            for value in _follow(stats, path.split(".")).values()
        }


class Catalogue(NamedTuple):
    """The table of one kind of watched object."""

    name: str
    metrics: tuple[Metric, ...]
    by_tenant: tuple[Metric, ...] = ()
    """Exist only if an observer has `tenants`: a counter of items, and a gauge of pending items."""

    @property
    def events(self) -> tuple[Metric, ...]:
        """The histograms and counters of events."""
        return tuple(metric for metric in self.metrics if metric.is_event)

    @property
    def states(self) -> tuple[Metric, ...]:
        """The gauges."""
        return tuple(metric for metric in self.metrics if metric.kind in {"gauge", "max"})

    @property
    def totals(self) -> tuple[Metric, ...]:
        """The counters that are read."""
        return tuple(
            metric for metric in self.metrics if metric.kind == "counter" and not metric.is_event
        )


def _follow(value: Any, path: list[str]) -> dict[Labels, Any]:
    """Return the values at the end of a path."""
    for index, name in enumerate(path):
        if value is None:
            return {}
        if name == "*":
            return {
                (key,) if isinstance(key, str) else tuple(map(str, key)): found
                for key, each in value.items()
                for found in _follow(each, path[index + 1 :]).values()
            }
        value = getattr(value, name)
    return {} if value is None else {(): value}
