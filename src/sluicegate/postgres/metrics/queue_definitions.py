"""The metrics of queues: one table for all exporters, read from `QueueMonitor.stats()`.

Several monitors of one schema have the same values, so the greatest value per name is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...telemetry.measures import Catalogue, Family, Measure, one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Values = Mapping[tuple[str, ...], float]


def _of_each(
    name: str, text: str, unit: str, label: str, values: Callable[[Any], Mapping[str, float | None]]
) -> Measure:
    """Return a measure with one value for each queue or table."""

    def read(stats: Any) -> Values:
        if stats.figures is None:
            return {}
        return {(key,): each for key, each in values(stats.figures).items() if each is not None}

    return Measure(Family(name, text, unit, (label,)), read, is_greatest=True)


def _of_queue(name: str, text: str, unit: str, value: Callable[[Any], float | None]) -> Measure:
    return _of_each(
        name,
        text,
        unit,
        "queue",
        lambda figures: {
            key: None if each is None else value(each) for key, each in figures.queues.items()
        },
    )


_STATES = (
    one(
        "queue_up",
        "1 if the last query of the queues succeeded and is recent.",
        "1",
        lambda stats: stats.figures is not None,
        is_greatest=True,
    ),
    _of_each("queue_paused", "1 for a paused queue.", "1", "queue", lambda each: each.paused),
    _of_queue(
        "queue_jobs",
        "Jobs that are not done, counted up to a limit.",
        "{job}",
        lambda queue: queue.jobs,
    ),
    _of_queue(
        "queue_ready_keys",
        "Keys and keyless jobs that a claim may lease.",
        "{key}",
        lambda queue: queue.ready,
    ),
    _of_queue(
        "queue_unmerged_bells",
        "New keys that no claim has merged into lanes yet.",
        "{key}",
        lambda queue: queue.bells,
    ),
    _of_queue(
        "queue_oldest_ready_seconds",
        "Seconds for which the longest-waiting key has been ready.",
        "s",
        lambda queue: queue.oldest_seconds,
    ),
    _of_queue("queue_delayed_jobs", "Jobs that are due later.", "{job}", lambda each: each.delayed),
    _of_queue("queue_leases", "Leases of consumers.", "{lease}", lambda queue: queue.leased),
    _of_queue(
        "queue_blocked_keys",
        "Blocked keys and keyless jobs.",
        "{key}",
        lambda queue: queue.blocked,
    ),
    _of_queue(
        "queue_parked_keys",
        "Parked keys and keyless jobs.",
        "{key}",
        lambda queue: queue.parked,
    ),
    _of_queue("queue_dead_letters", "Dead letters.", "{letter}", lambda queue: queue.dead),
    _of_queue(
        "queue_members",
        "Live consumers of the queue.",
        "{consumer}",
        lambda queue: queue.members,
    ),
    _of_queue(
        "queue_unowned_slots",
        "Slots without a live owner; missing unless the queue is sticky.",
        "{slot}",
        lambda queue: queue.unowned_slots,
    ),
    _of_queue(
        "queue_keys_without_lane",
        "Keys with jobs that no claim finds, since they were inserted without the trigger.",
        "{key}",
        lambda queue: queue.without_lane,
    ),
    _of_each(
        "queue_table_size_bytes",
        "Size of the table including its indexes.",
        "By",
        "table",
        lambda figures: figures.sizes,
    ),
    _of_each(
        "queue_table_dead_rows",
        "Dead rows, as estimated.",
        "{row}",
        "table",
        lambda figures: figures.dead_rows,
    ),
)
_TOTALS = (
    one(
        "queue_monitor_polls",
        "Successful queries of the queues.",
        "{poll}",
        lambda stats: stats.polls,
    ),
    one(
        "queue_monitor_failures",
        "Failed queries of the queues, or of one of them.",
        "{poll}",
        lambda stats: stats.failed,
    ),
)

QUEUES = Catalogue("queue", (), (), (), _STATES, _TOTALS)
"""All metrics of queues."""
