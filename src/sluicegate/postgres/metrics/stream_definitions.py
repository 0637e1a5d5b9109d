"""The table of metrics and alert rules of logs of streams, read from `StreamMonitor.stats()`.

Several monitors of one log have the same values, so the greatest value per name is shown.
"""

from __future__ import annotations

from typing import Any

from ...telemetry.metric import Alert, Catalogue, Metric, Values


def _is_up(stats: Any) -> Values:
    return {(): stats.figures is not None}


# fmt: off
_METRICS = (
    Metric("stream_up", "max", "1", _is_up, (),
           "1 if the last query of the log succeeded and is recent."),
    Metric("stream_last_position", "max", "{position}", "figures.horizon.last", (),
           "The last assigned position."),
    Metric("stream_horizon_distance", "max", "{position}", "figures.horizon.distance", (),
           "Positions that cannot be read yet because of an open appending transaction."),
    Metric("stream_horizon_age_seconds", "max", "s", "figures.horizon.age", (),
           "Seconds for which the horizon has not moved while it is behind the last position."),
    Metric("stream_appender_age_seconds", "max", "s", "figures.horizon.appender_age", (),
           "Age of the oldest open appending transaction; missing without one."),
    Metric("stream_lag_messages", "max", "{message}", "figures.subscriptions.*.backlog.messages",
           ("subscription",),
           "Messages that the subscription has not handled, counted up to a limit."),
    Metric("stream_lag_seconds", "max", "s", "figures.subscriptions.*.backlog.seconds",
           ("subscription",), "Age of the oldest message that the subscription has not handled."),
    Metric("stream_waiting_slots", "max", "{slot}", "figures.subscriptions.*.backlog.waiting_slots",
           ("subscription",), "Slots with messages that the subscription has not handled."),
    Metric("stream_unowned_slots", "max", "{slot}", "figures.subscriptions.*.backlog.unowned_slots",
           ("subscription",),
           "Slots with unhandled messages that no process leases; missing without leases."),
    Metric("stream_members", "max", "{process}", "figures.subscriptions.*.members",
           ("subscription",),
           "Processes with leases for the subscription; missing without leases."),
    Metric("stream_paused", "max", "1", "figures.subscriptions.*.is_paused", ("subscription",),
           "1 for a paused subscription."),
    Metric("stream_paused_slots", "max", "{slot}", "figures.subscriptions.*.paused_slots",
           ("subscription",), "Paused slots."),
    Metric("stream_missed_messages", "max", "{message}", "figures.subscriptions.*.missed",
           ("subscription",), "Messages deleted before the subscription had handled them."),
    Metric("stream_parked_keys", "max", "{key}", "figures.parked_keys.*", ("consumer",),
           "Keys that wait for an operator, by consumer."),
    Metric("stream_table_size_bytes", "max", "By", "figures.tables.*.size", ("table",),
           "Size of the table including its indexes."),
    Metric("stream_table_live_rows", "max", "{row}", "figures.tables.*.live_rows", ("table",),
           "Live rows, as estimated."),
    Metric("stream_table_dead_rows", "max", "{row}", "figures.tables.*.dead_rows", ("table",),
           "Dead rows, as estimated."),
    # totals
    Metric("stream_monitor_polls", "counter", "{poll}", "polls", (),
           "Successful queries of the log."),
    Metric("stream_monitor_failures", "counter", "{poll}", "failed", (),
           "Failed queries of the log, or of a subscription's backlog."),
)
_ALERTS = (
    Alert("StreamLagging", "warning", "5m",
          "max by (name, subscription) (stream_lag_seconds) > 300"
          " unless on (name, subscription) max by (name, subscription) (stream_paused) > 0",
          "the oldest message that {{ $labels.subscription }} has not handled is {{ $value }} s"
          " old"),
    Alert("StreamWithoutMembers", "critical", "5m",
          "max by (name, subscription) (stream_lag_messages) > 0"
          " and on (name, subscription) max by (name, subscription) (stream_members) == 0"
          " unless on (name, subscription) max by (name, subscription) (stream_paused) > 0",
          "no process serves {{ $labels.subscription }}, which has messages to handle"),
    Alert("StreamMessagesMissed", "critical", "",
          "max by (name, subscription) (delta(stream_missed_messages[15m])) > 0",
          "messages were deleted before {{ $labels.subscription }} had handled them"),
    Alert("StreamHorizonStands", "warning", "1m",
          "max by (name) (stream_horizon_age_seconds) > 60",
          "an open transaction that appends has held the horizon for {{ $value }} s, and all"
          " subscriptions with it; the view appender names its pid"),
    Alert("StreamKeysParked", "warning", "10m",
          "max by (name, consumer) (stream_parked_keys) > 0",
          "{{ $value }} keys of {{ $labels.consumer }} are parked; repair, then unpark them"),
    Alert("StreamTableBloated", "warning", "10m",
          "max by (name, table)"
          ' (stream_table_dead_rows{table=~"subscription_slot|subscription_member"}) > 50000',
          "{{ $labels.table }} has {{ $value }} dead rows that vacuum does not remove; look for"
          " an old open transaction or replication slot"),
    Alert("StreamLagUnknown", "warning", "10m",
          "max by (name, subscription) (stream_paused)"
          " unless on (name, subscription) max by (name, subscription) (stream_lag_messages)",
          "what {{ $labels.subscription }} has not handled cannot be counted in time, so its"
          " other alerts are silent; the monitor's log says why"),
    Alert("StreamWatchFails", "warning", "5m",
          "max by (name) (stream_up) == 0",
          "the log cannot be polled, so its other alerts are silent; the process's own log says"
          " why"),
)
# fmt: on

STREAM = Catalogue(
    "stream",
    _METRICS,
    "The health rules of a log of streams. Adjust the thresholds to your subscriptions.",
    _ALERTS,
)
