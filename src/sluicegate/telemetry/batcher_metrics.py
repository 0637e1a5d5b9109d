"""The table of metrics of a batcher."""

from __future__ import annotations

from typing import Any

from .._core.delivery.host import DestinationState
from .._core.errors import ErrorClass
from .._core.outcome import Outcome
from .metric import EVENT, TIMES, Catalogue, Metric, Values

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


def _by_state(stats: Any) -> Values:
    current: str = stats.destination.state
    return {(state.value,): int(state.value == current) for state in DestinationState}


def _oldest_age(stats: Any) -> Values:
    return {(): stats.oldest_age or 0.0}


def _oldest_in_spool(stats: Any) -> Values:
    return {} if stats.spool is None else {(): stats.spool.oldest_age or 0.0}


# fmt: off
SIZES = Metric(
    "batcher_batch_size_items", "histogram", "{item}", EVENT, (),
    "Items in each written batch.", buckets=(1, 5, 10, 50, 100, 500, 1000, 5000, 10000))
SECONDS = Metric(
    "batcher_flush_duration_seconds", "histogram", "s", EVENT, ("result",),
    "Duration of each write in seconds, including waits.", TIMES, label_values=("ok", "error"))
WAITS = Metric(
    "batcher_batch_wait_seconds", "histogram", "s", EVENT, (),
    "Seconds from the first item of a batch to its sealing.", TIMES)
FLUSHES = Metric(
    "batcher_flush", "counter", "{flush}", EVENT, ("reason",),
    "Writes, by the reason for sealing the batch.")
FAILED_FLUSHES = Metric(
    "batcher_flush_fail", "counter", "{flush}", EVENT, (), "Writes in which an item failed.")
ERRORS = Metric(
    "batcher_flush_failure", "counter", "{item}", EVENT, ("error_type",),
    "Items that failed, by error.")
DROPPED = Metric(
    "batcher_dropped", "counter", "{item}", EVENT, ("reason",), "Items dropped, by reason.",
    label_values=("overflow",))
RETRIES = Metric(
    "batcher_retries", "counter", "{retry}", EVENT, ("class",),
    "Retries of batches, by error class.", label_values=tuple(kind.value for kind in RETRIED))
TENANT_ITEMS = Metric(
    "batcher_tenant_items", "counter", "{item}", EVENT, ("tenant", "outcome"),
    "Items by tenant and outcome; tenants with few items count as other.")
TENANT_PENDING_ITEMS = Metric(
    "batcher_tenant_pending_items", "gauge", "{item}", EVENT, ("tenant",),
    "Items inside, by tenant; tenants that fill less than a hundredth of the ledger count as "
    "other.")

_METRICS = (
    SIZES, SECONDS, WAITS, FLUSHES, FAILED_FLUSHES, ERRORS, DROPPED, RETRIES,
    # states
    Metric("batcher_queue_depth", "gauge", "{item}", "tally.queued", (),
           "Items accepted and not yet taken by a worker."),
    Metric("batcher_queue_capacity_items", "gauge", "{item}", "capacity_items", (),
           "Capacity of the ledger in items."),
    Metric("batcher_max_items", "max", "{item}", "max_items", (),
           "Maximum number of items in a batch; an adaptive batcher changes it."),
    Metric("batcher_max_delay_seconds", "max", "s", "max_delay", (),
           "Seconds from a batch's first item until it is due."),
    Metric("batcher_workers", "gauge", "{batch}", "workers", (),
           "Maximum number of batches in flight; an adaptive batcher changes it."),
    Metric("batcher_flush_in_flight", "gauge", "{batch}", "in_flight_batches", (),
           "Batches being written."),
    Metric("batcher_backing_off_items", "gauge", "{item}", "tally.backing_off", (),
           "Items in batches that are backing off before their next try."),
    Metric("batcher_oldest_age_seconds", "max", "s", _oldest_age, (),
           "Age of the oldest item that no worker has taken."),
    Metric("batcher_waiting_producers", "gauge", "{producer}", "waiting_producers", (),
           "Producers waiting for capacity."),
    Metric("batcher_held_keys", "gauge", "{key}", "held_keys", (),
           "Keys held because one of their items failed for good."),
    Metric("batcher_held_items", "gauge", "{item}", "held_items", (),
           "Items waiting behind held keys."),
    Metric("batcher_tenants", "gauge", "{tenant}", "tenants", (),
           "Tenants with items inside, or with a held key."),
    Metric("batcher_throttled_seconds", "max", "s", "throttled_seconds", (),
           "Remaining throttle time, in seconds."),
    Metric("batcher_destination_state", "gauge", "{batcher}", _by_state, ("state",),
           "Whether the destination is available, throttled, behind an open circuit, "
           "unavailable or refusing: 1 for its current state.",
           label_values=tuple(state.value for state in DestinationState)),
    Metric("batcher_spool_items", "gauge", "{item}", "spool.items", (),
           "Unsettled items in the spool."),
    Metric("batcher_spool_bytes", "gauge", "By", "spool.bytes", (),
           "Size of the spool's files."),
    Metric("batcher_spool_fill_ratio", "max", "1", "spool.fill", (),
           "Used share of the spool's max_items or max_bytes, whichever is greater."),
    Metric("batcher_spool_oldest_age_seconds", "max", "s", _oldest_in_spool, (),
           "Age of the oldest unsettled item in the spool."),
    Metric("batcher_spool_parked_items", "gauge", "{item}", "spool.parked", (),
           "Items of the spool that could not be delivered."),
    Metric("batcher_spool_sparse_files", "gauge", "{file}", "spool.sparse_files", (),
           "Full files of the spool that at most a tenth of their items keeps on disk."),
    # totals
    Metric("batcher_enqueued", "counter", "{item}", "tally.accepted", (),
           "Items accepted, including items dropped by overflow."),
    Metric("batcher_flushed_ok", "counter", "{item}", "tally.flushed_ok", (),
           "Items delivered, duplicate, spooled or dead-lettered."),
    Metric("batcher_flushed_fail", "counter", "{item}", "tally.flushed_fail", (),
           "Items rejected or of unknown outcome."),
    Metric("batcher_dropped_on_shutdown", "counter", "{item}", "tally.dropped_on_shutdown", (),
           "Items returned unsent."),
    Metric("batcher_withdrawn", "counter", "{item}", "tally.withdrawn", (),
           "Unsent items that their source has taken back, as a pipe does when a partition moves."),
    Metric("batcher_lost", "counter", "{item}", "tally.lost", (),
           "Items rejected, unknown, dropped or unsent that no source has."),
    Metric("batcher_refused", "counter", "{item}", "tally.refused", (),
           "Items refused at add, never accepted."),
    Metric("batcher_add_blocked", "counter", "{call}", "waits", (),
           "Adds that had to wait for capacity."),
    Metric("batcher_items", "counter", "{item}",
           {outcome.value: f"tally.{outcome.value}" for outcome in Outcome},
           ("outcome",), "Items by outcome."),
)
# fmt: on

BATCHER = Catalogue(
    "batcher",
    _METRICS,
    by_tenant=(TENANT_ITEMS, TENANT_PENDING_ITEMS),
)
