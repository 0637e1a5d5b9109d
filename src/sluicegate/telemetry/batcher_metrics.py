"""The table of metrics and alert rules of a batcher."""

from __future__ import annotations

from typing import Any

from .._core.delivery.host import DestinationState
from .._core.errors import ErrorClass
from .._core.outcome import Outcome
from .metric import EVENT, TIMES, Alert, Catalogue, Metric, Values

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
_ALERTS = (
    Alert("BatcherBatchesSmall", "info", "10m",
          "histogram_quantile(0.5, rate(batcher_batch_size_items_bucket[10m])) < 0.1 *"
          " (batcher_max_items <= 100000)"
          " and rate(batcher_enqueued_total[10m]) > 1000"
          ' unless sum without (reason) (rate(batcher_flush_total{reason="bytes"}[10m])) > 0'
          " unless batcher_spool_items",
          "half of the batches hold less than a tenth of max_items although there are many items;"
          " try a longer max_delay or a smaller max_items"),
    Alert("BatcherBatchesLarge", "info", "10m",
          "histogram_quantile(0.5, rate(batcher_batch_size_items_bucket[10m])) > 0.5 *"
          " batcher_max_items"
          " and rate(batcher_batch_size_items_sum[10m]) /"
          " rate(batcher_batch_size_items_count[10m]) > 0.5 * batcher_max_items"
          " and rate(batcher_enqueued_total[10m]) > 1000",
          "half of the batches hold more than half of max_items; there is no room for a burst"),
    Alert("BatcherFlushSlow", "info", "10m",
          "histogram_quantile(0.99, sum without (result)"
          " (rate(batcher_flush_duration_seconds_bucket[10m]))) > (batcher_max_delay_seconds > 0)"
          " and sum without (reason) (increase(batcher_flush_total[10m])) > 100"
          " unless batcher_spool_items",
          "one write in a hundred takes longer than max_delay, so batches wait for a worker",
          "how-to/runbook.md#a-slow-destination"),
    Alert("BatcherOnlySizeTrigger", "info", "30m",
          'sum without (reason) (rate(batcher_flush_total{reason=~"size|bytes"}[30m])) / sum'
          " without (reason) (rate(batcher_flush_total[30m])) > 0.99"
          " and rate(batcher_enqueued_total[30m]) > 1000",
          "every batch is full; the producers are at the limit of the destination"),
    Alert("BatcherOnlyTimeTrigger", "info", "30m",
          'sum without (reason) (rate(batcher_flush_total{reason="time"}[30m])) / sum without'
          " (reason) (rate(batcher_flush_total[30m])) > 0.99"
          " and rate(batcher_enqueued_total[30m]) > 1000 unless batcher_spool_items",
          "no batch is full although there are many items; is max_items out of reach, or"
          " max_delay too short?"),
    Alert("BatcherQueueFilling", "info", "5m",
          "batcher_queue_depth / batcher_queue_capacity_items > 0.5",
          "the ledger is more than half full",
          "how-to/runbook.md#a-slow-destination"),
    Alert("BatcherLosing", "critical", "",
          "sum by (name) (increase(batcher_lost_total[10m])) > 0",
          "items were rejected, dropped, returned unsent or left in an unknown state, and no"
          " source has them",
          "how-to/operate.md#items-fail"),
    Alert("BatcherDeadLetters", "warning", "5m",
          'sum by (name) (rate(batcher_items_total{outcome="dead_lettered"}[5m])) > 0.1',
          "{{ $value }} dead letters per second",
          "how-to/runbook.md#a-flood-of-dead-letters"),
    Alert("BatcherKeysHeld", "warning", "10m",
          "batcher_held_keys > 0",
          "{{ $value }} keys are held since an item of them failed; repair, bring its letters"
          " back, and let them go",
          "how-to/bring-dead-letters-back.md#in-order-per-key"),
    Alert("BatcherTenantFilling", "warning", "5m",
          'batcher_tenant_pending_items{tenant!="other"} / on (name) group_left'
          " batcher_queue_capacity_items > 0.5",
          "tenant {{ $labels.tenant }} fills more than half of the ledger; give tenants a cap",
          "how-to/share-between-tenants.md#what-happens-when-it-is-full"),
    Alert("BatcherDestinationUnavailable", "warning", "2m",
          'batcher_destination_state{state=~"unavailable|circuit_open"} > 0',
          "the destination is down, locked or silent; the log has the error of the last attempt",
          "how-to/runbook.md#nothing-is-delivered"),
    Alert("BatcherOutage", "critical", "3m",
          # a batch is not backing off while it probes the destination
          "max_over_time(batcher_backing_off_items[2m]) > 0"
          " and on (name) rate(batcher_flushed_ok_total[2m]) == 0",
          "nothing was delivered for five minutes, and items wait for another try",
          "how-to/runbook.md#nothing-is-delivered"),
    Alert("BatcherDestinationRefuses", "critical", "1m",
          'batcher_destination_state{state="refused"} > 0',
          "the destination refuses every write until an operator repairs it; the log says what to"
          " do",
          "how-to/runbook.md#a-refusal"),
    Alert("BatcherSpoolFilling", "warning", "5m",
          "batcher_spool_fill_ratio > 0.8",
          "the spool is more than four fifths full; at its bound producers wait or are refused",
          "how-to/runbook.md#nothing-is-delivered"),
    Alert("BatcherSpoolOld", "warning", "5m",
          "batcher_spool_oldest_age_seconds > 3600",
          "the oldest item in the spool has not been sent for more than an hour; see the"
          " destination of the batcher that sends it",
          "how-to/runbook.md#nothing-is-delivered"),
    Alert("BatcherSpoolParked", "warning", "10m",
          "batcher_spool_parked_items > 0",
          "{{ $value }} items of the spool could not be delivered; repair and replay them",
          "how-to/spool.md#parked-items"),
)
# fmt: on

BATCHER = Catalogue(
    "batcher",
    _METRICS,
    "Rules for batchers. The rules of severity info say whether batching pays, in each process; "
    "their floors of traffic keep them silent for a quiet service, whose batches are small and "
    "whose writes are few.",
    _ALERTS,
    by_tenant=(TENANT_ITEMS, TENANT_PENDING_ITEMS),
)
