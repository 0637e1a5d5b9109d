"""Definitions of metrics, and catalogues of all metrics of one kind of object, for all
exporters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Read = Callable[[Any], Mapping[tuple[str, ...], float]]
    """From the `stats()` of a batcher or consumer to values by the labels after `name`."""

_SECONDS = "_seconds"

TIMES = tuple(0.001 * 2**power for power in range(16))
"""The buckets of histograms of seconds: 1 ms, doubled 15 times."""


class Family(NamedTuple):
    """The definition of a metric."""

    name: str
    """For Prometheus, without `_total`."""
    text: str
    unit: str
    """In UCUM, as used by OpenTelemetry."""
    labels: tuple[str, ...] = ()
    """The labels after `name`."""
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The names of all labels."""
        return ("name", *self.labels)

    @property
    def otel_name(self) -> str:
        """The name for OpenTelemetry."""
        return self.name.removesuffix(_SECONDS).replace("_", ".", 1)


class Measure(NamedTuple):
    """A metric that is read from the `stats()` of a batcher or consumer."""

    family: Family
    read: Read
    is_greatest: bool = False
    """Whether several instances or processes with one name show the greatest value instead of the
    sum.
    """
    series: tuple[tuple[str, ...], ...] = ((),)
    """The values of its labels that always exist."""


class Catalogue(NamedTuple):
    """All metrics of one kind of object."""

    name: str
    histograms: tuple[Family, ...]
    counters: tuple[Family, ...]
    at_zero: tuple[tuple[Family, tuple[str, ...]], ...]
    """Series that start at 0: Prometheus does not see the increase in a loss counter that starts at
    5.
    """
    states: tuple[Measure, ...]
    totals: tuple[Measure, ...]
    has_tenants: bool = False


def one(
    name: str, text: str, unit: str, value: Callable[[Any], float], *, is_greatest: bool = False
) -> Measure:
    """Return a measure with one value per name."""

    def read(stats: Any) -> dict[tuple[str, ...], float]:
        return {(): value(stats)}

    return Measure(Family(name, text, unit), read, is_greatest)
