"""The table of metrics and alert rules of a consumer.

`source_*` count the records of the source by result; `consumer_*` describe the consumer itself.
Durations of handlers cost two clock readings per turn, and exist only if an observer has
`durations`.
"""

from __future__ import annotations

from typing import Any

from .metric import EVENT, TIMES, Alert, Catalogue, Metric, Values

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
            "errand": "in_flight.writing", "manual": "in_flight.manual",
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
_ALERTS = (
    Alert("ConsumerStalled", "critical", "1m",
          "consumer_stalled > 0",
          "nothing has been settled for stall_after seconds although there is work; the log and"
          " explain() name what it waits for"),
    Alert("ConsumerLagGrowing", "warning", "15m",
          "sum by (name) (deriv(source_lag[30m])) > 1"
          " and on (name) sum by (name) (source_lag) > 10000",
          "the lag grows by {{ $value }} messages a second; handlers are slower than the"
          " producers"),
    Alert("ConsumerBehind", "warning", "5m",
          "max by (name, topic, partition) (source_oldest_age_seconds) > 300",
          "the oldest unfinished record of {{ $labels.topic }}/{{ $labels.partition }} is {{"
          " $value }} s old"),
    Alert("ConsumerPositionStands", "warning", "1m",
          "max by (name, topic, partition) (consumer_head_age_seconds) > 600",
          "the position of {{ $labels.topic }}/{{ $labels.partition }} has not moved for ten"
          " minutes; explain() names the record that it waits for"),
    Alert("ConsumerKeysBlocked", "warning", "5m",
          'sum by (name) (consumer_messages{place="blocked"}) > 0',
          "{{ $value }} messages that cannot be handled block their keys; repair, then unblock"
          " them"),
    Alert("ConsumerKeysParked", "warning", "10m",
          "consumer_parked_keys > 0",
          "{{ $value }} keys are parked; repair, then unpark them"),
    Alert("ConsumerDeadLetters", "warning", "5m",
          "sum by (name) (rate(consumer_letters_total[5m])) > 0.1",
          "{{ $value }} dead letters per second"),
    Alert("ConsumerGivesUp", "critical", "",
          'sum by (name) (increase(source_term_total{fate="terminated"}[10m])) > 0',
          "messages were given up without a dead letter; the log names them"),
    Alert("ConsumerCommitsFail", "critical", "2m",
          "sum by (name) (increase(source_failed_total[5m])) > 0"
          " and on (name) sum by (name) (increase(source_commits_total[5m])) == 0",
          "commits fail and none succeeds; after a crash, what has been handled since would run"
          " again"),
    Alert("ConsumerMapCut", "warning", "5m",
          "max by (name, topic, partition) (consumer_map_cut) > 0",
          "the map of {{ $labels.topic }}/{{ $labels.partition }} does not fit its commit; after"
          " a crash, records behind the first unfinished one would run again"),
    Alert("ConsumerHandlersDeaf", "warning", "",
          "sum by (name) (increase(consumer_deaf_total[10m])) > 0",
          "a handler ignores its cancellation, and keeps its key until it ends; the log names its"
          " message"),
    Alert("ConsumerNotReady", "critical", "5m",
          'sum by (name) (consumer_state{state=~"opening|not_ready"}) > 0',
          "a consumer has not been ready for five minutes; health() says why"),
)
# fmt: on

CONSUMER = Catalogue(
    "consumer",
    _METRICS,
    "The health rules of a consumer. Adjust the thresholds of lag, age and dead letters to your "
    "topics.",
    _ALERTS,
)
