"""The table of metrics of logs of streams, read from `StreamMonitor.stats()`.

Several monitors of one log have the same values, so the greatest value per name is shown.
"""

from __future__ import annotations

from typing import Any

from ...telemetry.metric import Catalogue, Metric, Values


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
# fmt: on

STREAM = Catalogue(
    "stream",
    _METRICS,
)
