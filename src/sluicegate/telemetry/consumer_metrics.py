"""The table of metrics of a consumer.

`source_*` count the records of the source by result; `consumer_*` describe the consumer itself.
Durations of handlers cost two clock readings per turn, and exist only if an observer has
`durations`.
"""

from __future__ import annotations

from typing import Any

from .metric import EVENT, TIMES, Catalogue, Metric, Values

PARTITION = ("topic", "partition")
STATES = ("opening", "ready", "not_ready", "draining")


def _partitions(stats: Any) -> Values:
    return {(): len(stats.partitions)}


def _head_ages(stats: Any) -> Values:
    return {
        (partition.topic, str(partition.partition)): each.stood or 0.0
        for partition, each in stats.partitions.items()
    }


def _by_state(stats: Any) -> Values:
    current: str = stats.state
    if current == "running":
        current = "ready" if stats.is_ready else "not_ready"
    return {(state,): float(state == current) for state in STATES}


# fmt: off
HANDLER_SECONDS = Metric(
    "consumer_handler_duration_seconds", "histogram", "s", EVENT, ("outcome",),
    "Duration of each turn of a handler, including its steps, in seconds.", TIMES)
CLAIMS = Metric(
    "consumer_claims", "counter", "{partition}", EVENT, ("change",),
    "Partitions that were assigned, revoked or lost.", label_values=("assigned", "revoked", "lost"))
POISON = Metric(
    "consumer_poison", "counter", "{message}", EVENT, ("action", "error_type"),
    "Messages that could not be handled, by the consumer's action and by error.")

_METRICS = (
    HANDLER_SECONDS, CLAIMS, POISON,
    # states
    Metric("source_lag", "gauge", "{message}", "lags.*.messages", PARTITION,
           "End of a partition minus the position of its first unfinished record."),
    Metric("source_oldest_age_seconds", "max", "s", "lags.*.seconds", PARTITION,
           "Age of the oldest unfinished record of a partition, by its timestamp."),
    Metric("source_position", "gauge", "{offset}", "partitions.*.position", PARTITION,
           "Offset of the first unfinished record of a partition."),
    Metric("source_committed", "gauge", "{offset}", "partitions.*.committed", PARTITION,
           "Stored position of a partition."),
    Metric("consumer_head_age_seconds", "max", "s", _head_ages, PARTITION,
           "Seconds for which the first unfinished record of a partition has not changed."),
    Metric("consumer_map_bytes", "gauge", "By", "partitions.*.map_bytes", PARTITION,
           "Size of the stored map of settled records beyond the position."),
    Metric("consumer_map_cut", "gauge", "{partition}", "partitions.*.is_map_cut", PARTITION,
           "Whether the last map was cut: records cut from it run again after a crash."),
    Metric("consumer_paused", "gauge", "{partition}", "partitions.*.is_paused", PARTITION,
           "Whether fetching from a partition is paused."),
    Metric("consumer_partitions", "gauge", "{partition}", _partitions, (),
           "Partitions that this process owns."),
    Metric("consumer_messages", "gauge", "{message}",
           {"ready": "in_flight.ready", "running": "in_flight.running",
            "writing": "in_flight.writing", "manual": "in_flight.manual",
            "backing_off": "in_flight.backing_off", "blocked": "in_flight.blocked",
            "waiting": "in_flight.waiting", "batched": "in_flight.batched"},
           ("place",), "Messages inside, by place."),
    Metric("consumer_in_flight_messages", "gauge", "{message}", "in_flight.messages", (),
           "Messages inside, in all places."),
    Metric("consumer_in_flight_bytes", "gauge", "By", "in_flight.bytes", (),
           "Size of the messages inside."),
    Metric("consumer_max_in_flight_messages", "gauge", "{message}", "in_flight.max_messages", (),
           "Maximum number of messages inside."),
    Metric("consumer_max_in_flight_bytes", "gauge", "By", "in_flight.max_bytes", (),
           "Maximum size of the messages inside."),
    Metric("consumer_parked_keys", "gauge", "{key}", "parked_keys", (),
           "Keys whose records are written to the park store."),
    Metric("consumer_stalled", "gauge", "{consumer}", "is_stalled", (),
           "Whether nothing has been settled for a while although there is work."),
    Metric("consumer_state", "gauge", "{consumer}", _by_state, ("state",),
           "Whether the consumer is opening, ready, not ready or draining: "
           "1 for its current state.",
           label_values=STATES),
    # totals
    Metric("source_received", "counter", "{message}", "deliveries.received", (),
           "Records delivered by the source."),
    Metric("source_acked", "counter", "{message}", "counts.acked", (),
           "Messages that were handled."),
    Metric("source_nak", "counter", "{message}", "counts.naks", (),
           "Failed tries of any kind."),
    Metric("source_term", "counter", "{message}",
           {"dead_lettered": "counts.dead_lettered", "parked": "counts.parked",
            "terminated": "counts.terminated"},
           ("fate",), "Messages settled without being handled, by result."),
    Metric("source_dropped", "counter", "{message}",
           {"skipped": "counts.skipped", "settled_before": "deliveries.skipped",
            "redelivered": "deliveries.redelivered", "left": "counts.dropped",
            "stale": "counts.stale"},
           ("reason",), "Messages that were not handled here, by reason."),
    Metric("source_replayed", "counter", "{message}", "deliveries.replayed", (),
           "Records delivered again after a crash or a rebalance, and handled again."),
    Metric("source_commits", "counter", "{commit}", "commits", (),
           "Commits that succeeded."),
    Metric("source_failed", "counter", "{commit}", "commit_failures", (),
           "Commits that failed."),
    Metric("source_batches", "counter", "{batch}", "counts.batches", (),
           "Batches that were handled or tried."),
    Metric("consumer_split_batches", "counter", "{batch}", "counts.split_batches", (),
           "Batches that failed and were retried in smaller batches."),
    Metric("consumer_miscounted_batches", "counter", "{batch}", "counts.miscounted_batches", (),
           "Batches whose handler returned a wrong number of results."),
    Metric("consumer_letters", "counter", "{letter}", "counts.letters", (),
           "Dead letters written, including those of messages that then block their key."),
    Metric("consumer_unparked", "counter", "{message}", "counts.unparked", (),
           "Messages that were handled after unpark."),
    Metric("consumer_deaf", "counter", "{handler}", "counts.deaf", (),
           "Handlers that did not end although they were cancelled."),
)
# fmt: on

CONSUMER = Catalogue(
    "consumer",
    _METRICS,
)
