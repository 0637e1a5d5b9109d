"""The table of metrics of queues, read from `QueueMonitor.stats()`.

Several monitors of one schema have the same values, so the greatest value per name is shown.
"""

from __future__ import annotations

from typing import Any

from ...telemetry.metric import Catalogue, Metric, Values


def _is_up(stats: Any) -> Values:
    return {(): stats.figures is not None}


# fmt: off
_METRICS = (
    Metric("queue_up", "max", "1", _is_up, (),
           "1 if the last query of the queues succeeded and is recent."),
    Metric("queue_paused", "max", "1", "figures.paused.*", ("queue",),
           "1 for a paused queue."),
    Metric("queue_jobs", "max", "{job}", "figures.queues.*.jobs", ("queue",),
           "Jobs that are not done, counted up to a limit."),
    Metric("queue_ready_keys", "max", "{key}", "figures.queues.*.ready", ("queue",),
           "Keys and keyless jobs that a claim may lease."),
    Metric("queue_unmerged_bells", "max", "{key}", "figures.queues.*.bells", ("queue",),
           "New keys that no claim has merged into lanes yet."),
    Metric("queue_oldest_ready_seconds", "max", "s", "figures.queues.*.oldest_seconds", ("queue",),
           "Seconds for which the longest-waiting key has been ready."),
    Metric("queue_delayed_jobs", "max", "{job}", "figures.queues.*.delayed", ("queue",),
           "Jobs that are due later."),
    Metric("queue_leases", "max", "{lease}", "figures.queues.*.leased", ("queue",),
           "Leases of consumers."),
    Metric("queue_blocked_keys", "max", "{key}", "figures.queues.*.blocked", ("queue",),
           "Blocked keys and keyless jobs."),
    Metric("queue_parked_keys", "max", "{key}", "figures.queues.*.parked", ("queue",),
           "Parked keys and keyless jobs."),
    Metric("queue_dead_letters", "max", "{letter}", "figures.queues.*.dead", ("queue",),
           "Dead letters."),
    Metric("queue_members", "max", "{consumer}", "figures.queues.*.members", ("queue",),
           "Live consumers of the queue."),
    Metric("queue_unowned_slots", "max", "{slot}", "figures.queues.*.unowned_slots", ("queue",),
           "Slots without a live owner; missing unless the queue is sticky."),
    Metric("queue_keys_without_lane", "max", "{key}", "figures.queues.*.without_lane", ("queue",),
           "Keys with jobs that no claim finds, since they were inserted without the trigger."),
    Metric("queue_table_size_bytes", "max", "By", "figures.sizes.*", ("table",),
           "Size of the table including its indexes."),
    Metric("queue_table_dead_rows", "max", "{row}", "figures.dead_rows.*", ("table",),
           "Dead rows, as estimated."),
    # totals
    Metric("queue_monitor_polls", "counter", "{poll}", "polls", (),
           "Successful queries of the queues."),
    Metric("queue_monitor_failures", "counter", "{poll}", "failed", (),
           "Failed queries of the queues, or of one of them."),
)
# fmt: on

QUEUES = Catalogue(
    "queue",
    _METRICS,
)
