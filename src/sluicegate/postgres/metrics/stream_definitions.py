"""The metrics of logs of streams: one table for all exporters, read from `StreamMonitor.stats()`.

Several monitors of one log have the same values, so the greatest value per name is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...telemetry.measures import Catalogue, Family, Measure, one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Values = Mapping[tuple[str, ...], float]


def _of_log(name: str, text: str, unit: str, value: Callable[[Any], float | None]) -> Measure:
    """Return a measure with one value, which exists after a successful query."""

    def read(stats: Any) -> Values:
        found = None if stats.figures is None else value(stats.figures)
        return {} if found is None else {(): found}

    return Measure(Family(name, text, unit), read, is_greatest=True)


def _of_each(
    name: str,
    text: str,
    unit: str,
    label: str,
    values: Callable[[Any], Mapping[str, float | None]],
) -> Measure:
    """Return a measure with one value for each subscription, consumer or table."""

    def read(stats: Any) -> Values:
        if stats.figures is None:
            return {}
        return {(key,): each for key, each in values(stats.figures).items() if each is not None}

    return Measure(Family(name, text, unit, (label,)), read, is_greatest=True)


def _of_subscription(
    name: str, text: str, unit: str, value: Callable[[Any], float | None]
) -> Measure:
    return _of_each(
        name,
        text,
        unit,
        "subscription",
        lambda figures: {key: value(each) for key, each in figures.subscriptions.items()},
    )


def _of_backlog(name: str, text: str, unit: str, value: Callable[[Any], float | None]) -> Measure:
    return _of_subscription(
        name, text, unit, lambda each: None if each.backlog is None else value(each.backlog)
    )


def _of_table(name: str, text: str, unit: str, value: Callable[[Any], float]) -> Measure:
    return _of_each(
        name,
        text,
        unit,
        "table",
        lambda figures: {key: value(each) for key, each in figures.tables.items()},
    )


_STATES = (
    one(
        "stream_up",
        "1 if the last query of the log succeeded and is recent.",
        "1",
        lambda stats: stats.figures is not None,
        is_greatest=True,
    ),
    _of_log(
        "stream_last_position",
        "The last assigned position.",
        "{position}",
        lambda figures: figures.horizon.last,
    ),
    _of_log(
        "stream_horizon_distance",
        "Positions that cannot be read yet because of an open appending transaction.",
        "{position}",
        lambda figures: figures.horizon.distance,
    ),
    _of_log(
        "stream_horizon_age_seconds",
        "Seconds for which the horizon has not moved while it is behind the last position.",
        "s",
        lambda figures: figures.horizon.age,
    ),
    _of_log(
        "stream_appender_age_seconds",
        "Age of the oldest open appending transaction; missing without one.",
        "s",
        lambda figures: figures.horizon.appender_age,
    ),
    _of_backlog(
        "stream_lag_messages",
        "Messages that the subscription has not handled, counted up to a limit.",
        "{message}",
        lambda backlog: backlog.messages,
    ),
    _of_backlog(
        "stream_lag_seconds",
        "Age of the oldest message that the subscription has not handled.",
        "s",
        lambda backlog: backlog.seconds,
    ),
    _of_backlog(
        "stream_waiting_slots",
        "Slots with messages that the subscription has not handled.",
        "{slot}",
        lambda backlog: backlog.waiting_slots,
    ),
    _of_backlog(
        "stream_unowned_slots",
        "Slots with unhandled messages that no process leases; missing without leases.",
        "{slot}",
        lambda backlog: backlog.unowned_slots,
    ),
    _of_subscription(
        "stream_members",
        "Processes with leases for the subscription; missing without leases.",
        "{process}",
        lambda each: each.members,
    ),
    _of_subscription(
        "stream_paused", "1 for a paused subscription.", "1", lambda each: each.is_paused
    ),
    _of_subscription(
        "stream_paused_slots", "Paused slots.", "{slot}", lambda each: each.paused_slots
    ),
    _of_subscription(
        "stream_missed_messages",
        "Messages deleted before the subscription had handled them.",
        "{message}",
        lambda each: each.missed,
    ),
    _of_each(
        "stream_parked_keys",
        "Keys that wait for an operator, by consumer.",
        "{key}",
        "consumer",
        lambda figures: figures.parked_keys,
    ),
    _of_table(
        "stream_table_size_bytes",
        "Size of the table including its indexes.",
        "By",
        lambda table: table.size,
    ),
    _of_table(
        "stream_table_live_rows", "Live rows, as estimated.", "{row}", lambda table: table.live_rows
    ),
    _of_table(
        "stream_table_dead_rows", "Dead rows, as estimated.", "{row}", lambda table: table.dead_rows
    ),
)
_TOTALS = (
    one(
        "stream_monitor_polls",
        "Successful queries of the log.",
        "{poll}",
        lambda stats: stats.polls,
    ),
    one(
        "stream_monitor_failures",
        "Failed queries of the log, or of a subscription's backlog.",
        "{poll}",
        lambda stats: stats.failed,
    ),
)

STREAM = Catalogue("stream", (), (), (), _STATES, _TOTALS)
"""All metrics of logs of streams."""
