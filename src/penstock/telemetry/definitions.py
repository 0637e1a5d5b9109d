"""The metrics of a batcher: one table for all exporters.

1. Events are counted when they happen; states and totals are read from the batcher (`Measure`).
2. OpenTelemetry's name is the one of Prometheus with a dot after `batcher` and without its unit:
   `batcher_flush_duration_seconds` is `batcher.flush_duration` in `s`. Its exporters to Prometheus
   turn that into the same name again, so the alert rules fit both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .._core.condition import DestinationState
from .._core.errors import ErrorClass
from .._core.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Read = Callable[[Any], Mapping[tuple[str, ...], float]]
    """From a batcher's `Stats` to values by the labels after `name`."""

_SECONDS = "_seconds"


class Family(NamedTuple):
    """The definition of a metric."""

    name: str
    """For Prometheus, without `_total`."""
    text: str
    unit: str
    """In UCUM, as OpenTelemetry has it."""
    labels: tuple[str, ...] = ()
    """Those after `name`."""
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
    """A metric that is read from a batcher's `Stats`."""

    family: Family
    read: Read
    is_greatest: bool = False
    """Whether batchers of one name, or processes, show the greatest value instead of the sum."""
    series: tuple[tuple[str, ...], ...] = ((),)
    """The values of its labels, all of which it always has."""


# -- events ----------------------------------------------------------------------------------------

SIZES = Family(
    "batcher_batch_size_items",
    "Items in each written batch.",
    "{item}",
    buckets=(1, 5, 10, 50, 100, 500, 1000, 5000, 10000),
)
_TIMES = tuple(0.001 * 2**power for power in range(16))
SECONDS = Family(
    "batcher_flush_duration_seconds",
    "Seconds of each write, waits included.",
    "s",
    ("result",),
    _TIMES,
)
WAITS = Family(
    "batcher_batch_wait_seconds",
    "Seconds from the first item of each batch to the sealing of the batch.",
    "s",
    buckets=_TIMES,
)
FLUSHES = Family("batcher_flush", "Writes, by what sealed the batch.", "{flush}", ("reason",))
FAILED_FLUSHES = Family("batcher_flush_fail", "Writes in which an item failed.", "{flush}")
ERRORS = Family("batcher_flush_failure", "Items that failed, by error.", "{item}", ("error_type",))
DROPPED = Family("batcher_dropped", "Items dropped, by reason.", "{item}", ("reason",))
RETRIES = Family(
    "batcher_retries",
    "Times that a batch was sent again, by the class of the errors.",
    "{retry}",
    ("class",),
)
TENANT_ITEMS = Family(
    "batcher_tenant_items",
    "Items by tenant and how they ended; those of tenants with few items as other.",
    "{item}",
    ("tenant", "outcome"),
)
"""Exists only where an observer has `tenants`."""
HISTOGRAMS = (SIZES, SECONDS, WAITS)
COUNTERS = (FLUSHES, FAILED_FLUSHES, ERRORS, DROPPED, RETRIES)

RETRIED = (
    ErrorClass.TRANSIENT,
    ErrorClass.THROTTLE,
    ErrorClass.UNAVAILABLE,
    ErrorClass.REFUSED,
    ErrorClass.UNKNOWN,
    ErrorClass.UNLISTED,
)
"""Error classes after which a batch is sent again."""
AT_ZERO: tuple[tuple[Family, tuple[str, ...]], ...] = (
    (FAILED_FLUSHES, ()),
    (DROPPED, ("overflow",)),
    *((SECONDS, (result,)) for result in ("ok", "error")),
    *((RETRIES, (kind.value,)) for kind in RETRIED),
)
"""Series that start at 0: Prometheus sees no increase in a count of losses that starts at 5."""


# -- states ----------------------------------------------------------------------------------------


def _one(
    name: str, text: str, unit: str, value: Callable[[Any], float], *, is_greatest: bool = False
) -> Measure:
    def read(stats: Any) -> dict[tuple[str, ...], float]:
        return {(): value(stats)}

    return Measure(Family(name, text, unit), read, is_greatest)


def _by_state(stats: Any) -> dict[tuple[str, ...], float]:
    found: str = stats.destination.state
    return {(state.value,): int(state.value == found) for state in DestinationState}


def _by_outcome(stats: Any) -> dict[tuple[str, ...], float]:
    return {(outcome.value,): stats.tally.of(outcome) for outcome in Outcome}


STATES: tuple[Measure, ...] = (
    _one(
        "batcher_queue_depth",
        "Items accepted and not yet taken by a worker.",
        "{item}",
        lambda stats: stats.tally.queued,
    ),
    _one(
        "batcher_queue_capacity_items",
        "Capacity of the ledger in items.",
        "{item}",
        lambda stats: stats.capacity_items,
    ),
    _one(
        "batcher_max_items",
        "Items in a batch at most; an adaptive batcher changes it.",
        "{item}",
        lambda stats: stats.max_items,
        is_greatest=True,
    ),
    _one(
        "batcher_workers",
        "Batches in flight at most; an adaptive batcher changes it.",
        "{batch}",
        lambda stats: stats.workers,
    ),
    _one(
        "batcher_flush_in_flight",
        "Batches being written.",
        "{batch}",
        lambda stats: stats.in_flight_batches,
    ),
    _one(
        "batcher_backing_off_items",
        "Items in batches that are backing off before their next try.",
        "{item}",
        lambda stats: stats.tally.backing_off,
    ),
    _one(
        "batcher_oldest_age_seconds",
        "Age of the oldest item that no worker has taken.",
        "s",
        lambda stats: stats.oldest_age or 0.0,
        is_greatest=True,
    ),
    _one(
        "batcher_waiting_producers",
        "Producers waiting for capacity.",
        "{producer}",
        lambda stats: stats.waiting_producers,
    ),
    _one(
        "batcher_held_keys",
        "Keys held since an item of theirs failed for good.",
        "{key}",
        lambda stats: stats.held_keys,
    ),
    _one(
        "batcher_held_items",
        "Items waiting behind held keys.",
        "{item}",
        lambda stats: stats.held_items,
    ),
    _one(
        "batcher_tenants",
        "Tenants with items inside, or with a held key.",
        "{tenant}",
        lambda stats: stats.tenants,
    ),
    _one(
        "batcher_throttled_seconds",
        "Remaining throttle time, in seconds.",
        "s",
        lambda stats: stats.throttled_seconds,
        is_greatest=True,
    ),
    Measure(
        Family(
            "batcher_destination_state",
            "Whether the destination is available, throttled, behind an open circuit, "
            "unavailable or refusing: 1 for its current state.",
            "{batcher}",
            ("state",),
        ),
        _by_state,
        series=tuple((state.value,) for state in DestinationState),
    ),
)
PENDING = Family(
    "batcher_tenant_pending_items",
    "Items inside of the tenants that fill a hundredth of the ledger or more, and of "
    "all others as other.",
    "{item}",
    ("tenant",),
)
"""Exists only where an observer has `tenants`."""


# -- totals ----------------------------------------------------------------------------------------

TOTALS: tuple[Measure, ...] = (
    _one(
        "batcher_enqueued",
        "Items accepted, including those that overflow has dropped.",
        "{item}",
        lambda stats: stats.tally.accepted,
    ),
    _one(
        "batcher_flushed_ok",
        "Items delivered, duplicate, spooled or dead-lettered.",
        "{item}",
        lambda stats: stats.tally.flushed_ok,
    ),
    _one(
        "batcher_flushed_fail",
        "Items rejected, or of unknown outcome.",
        "{item}",
        lambda stats: stats.tally.flushed_fail,
    ),
    _one(
        "batcher_dropped_on_shutdown",
        "Items handed back unsent.",
        "{item}",
        lambda stats: stats.tally.dropped_on_shutdown,
    ),
    _one(
        "batcher_refused",
        "Items refused at add, never accepted.",
        "{item}",
        lambda stats: stats.tally.refused,
    ),
    _one(
        "batcher_add_blocked",
        "Adds that had to wait for capacity.",
        "{call}",
        lambda stats: stats.waits,
    ),
    Measure(
        Family("batcher_items", "Items by outcome.", "{item}", ("outcome",)),
        _by_outcome,
        series=tuple((outcome.value,) for outcome in Outcome),
    ),
)
