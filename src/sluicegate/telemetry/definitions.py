"""The metrics of a batcher: one table for all exporters.

1. Events are counted when they happen; states and totals are read from the batcher (`Measure`).
2. OpenTelemetry's name is the Prometheus name with a dot after `batcher` and without the unit:
   `batcher_flush_duration_seconds` is `batcher.flush_duration` in `s`. OpenTelemetry's exporters to
   Prometheus convert it back to the same name, so the alert rules work for both.
"""

from __future__ import annotations

from typing import Any

from .._core.delivery.host import DestinationState
from .._core.errors import ErrorClass
from .._core.outcome import Outcome
from .measures import TIMES, Catalogue, Family, Measure, one

# -- events ----------------------------------------------------------------------------------------

SIZES = Family(
    "batcher_batch_size_items",
    "Items in each written batch.",
    "{item}",
    buckets=(1, 5, 10, 50, 100, 500, 1000, 5000, 10000),
)
SECONDS = Family(
    "batcher_flush_duration_seconds",
    "Duration of each write in seconds, including waits.",
    "s",
    ("result",),
    TIMES,
)
WAITS = Family(
    "batcher_batch_wait_seconds",
    "Seconds from the first item of a batch to its sealing.",
    "s",
    buckets=TIMES,
)
FLUSHES = Family(
    "batcher_flush", "Writes, by the reason for sealing the batch.", "{flush}", ("reason",)
)
FAILED_FLUSHES = Family("batcher_flush_fail", "Writes in which an item failed.", "{flush}")
ERRORS = Family("batcher_flush_failure", "Items that failed, by error.", "{item}", ("error_type",))
DROPPED = Family("batcher_dropped", "Items dropped, by reason.", "{item}", ("reason",))
RETRIES = Family(
    "batcher_retries",
    "Retries of batches, by error class.",
    "{retry}",
    ("class",),
)
TENANT_ITEMS = Family(
    "batcher_tenant_items",
    "Items by tenant and outcome; tenants with few items count as other.",
    "{item}",
    ("tenant", "outcome"),
)
"""Exists only if an observer has `tenants`."""
HISTOGRAMS = (SIZES, SECONDS, WAITS)
COUNTERS = (FLUSHES, FAILED_FLUSHES, ERRORS, DROPPED, RETRIES)

RETRIED = (
    ErrorClass.TRANSIENT,
    ErrorClass.THROTTLE,
    ErrorClass.UNAVAILABLE,
    ErrorClass.REFUSED,
    ErrorClass.DEADLOCK,
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
"""Series that start at 0: Prometheus does not see the increase in a loss counter that
starts at 5.
"""


# -- states ----------------------------------------------------------------------------------------


def _by_state(stats: Any) -> dict[tuple[str, ...], float]:
    found: str = stats.destination.state
    return {(state.value,): int(state.value == found) for state in DestinationState}


def _by_outcome(stats: Any) -> dict[tuple[str, ...], float]:
    return {(outcome.value,): stats.tally.of(outcome) for outcome in Outcome}


STATES: tuple[Measure, ...] = (
    one(
        "batcher_queue_depth",
        "Items accepted and not yet taken by a worker.",
        "{item}",
        lambda stats: stats.tally.queued,
    ),
    one(
        "batcher_queue_capacity_items",
        "Capacity of the ledger in items.",
        "{item}",
        lambda stats: stats.capacity_items,
    ),
    one(
        "batcher_max_items",
        "Maximum number of items in a batch; an adaptive batcher changes it.",
        "{item}",
        lambda stats: stats.max_items,
        is_greatest=True,
    ),
    one(
        "batcher_max_delay_seconds",
        "Seconds from a batch's first item until it is due.",
        "s",
        lambda stats: stats.max_delay,
        is_greatest=True,
    ),
    one(
        "batcher_workers",
        "Maximum number of batches in flight; an adaptive batcher changes it.",
        "{batch}",
        lambda stats: stats.workers,
    ),
    one(
        "batcher_flush_in_flight",
        "Batches being written.",
        "{batch}",
        lambda stats: stats.in_flight_batches,
    ),
    one(
        "batcher_backing_off_items",
        "Items in batches that are backing off before their next try.",
        "{item}",
        lambda stats: stats.tally.backing_off,
    ),
    one(
        "batcher_oldest_age_seconds",
        "Age of the oldest item that no worker has taken.",
        "s",
        lambda stats: stats.oldest_age or 0.0,
        is_greatest=True,
    ),
    one(
        "batcher_waiting_producers",
        "Producers waiting for capacity.",
        "{producer}",
        lambda stats: stats.waiting_producers,
    ),
    one(
        "batcher_held_keys",
        "Keys held because one of their items failed for good.",
        "{key}",
        lambda stats: stats.held_keys,
    ),
    one(
        "batcher_held_items",
        "Items waiting behind held keys.",
        "{item}",
        lambda stats: stats.held_items,
    ),
    one(
        "batcher_tenants",
        "Tenants with items inside, or with a held key.",
        "{tenant}",
        lambda stats: stats.tenants,
    ),
    one(
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
    "Items inside, by tenant; tenants that fill less than a hundredth of the ledger count "
    "as other.",
    "{item}",
    ("tenant",),
)
"""Exists only if an observer has `tenants`."""


# -- totals ----------------------------------------------------------------------------------------

TOTALS: tuple[Measure, ...] = (
    one(
        "batcher_enqueued",
        "Items accepted, including items dropped by overflow.",
        "{item}",
        lambda stats: stats.tally.accepted,
    ),
    one(
        "batcher_flushed_ok",
        "Items delivered, duplicate, spooled or dead-lettered.",
        "{item}",
        lambda stats: stats.tally.flushed_ok,
    ),
    one(
        "batcher_flushed_fail",
        "Items rejected or of unknown outcome.",
        "{item}",
        lambda stats: stats.tally.flushed_fail,
    ),
    one(
        "batcher_dropped_on_shutdown",
        "Items returned unsent.",
        "{item}",
        lambda stats: stats.tally.dropped_on_shutdown,
    ),
    one(
        "batcher_withdrawn",
        "Unsent items that their source has taken back, as a pipe does when a partition moves.",
        "{item}",
        lambda stats: stats.tally.withdrawn,
    ),
    one(
        "batcher_lost",
        "Items rejected, unknown, dropped or unsent that no source has.",
        "{item}",
        lambda stats: stats.tally.lost,
    ),
    one(
        "batcher_refused",
        "Items refused at add, never accepted.",
        "{item}",
        lambda stats: stats.tally.refused,
    ),
    one(
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

BATCHER = Catalogue("batcher", HISTOGRAMS, COUNTERS, AT_ZERO, STATES, TOTALS, has_tenants=True)
"""All metrics of a batcher."""
