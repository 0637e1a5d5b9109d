"""The metrics of a consumer: one table for all exporters, like `definitions` for a batcher.

1. `source_*` count the records of the source by result; `consumer_*` describe the consumer itself.
2. Counts and levels are read from `Consumer.stats()` on demand, at no cost per message. Only rare
   events are counted when they happen: claims and poison messages.
3. Durations of handlers cost two clock readings per turn, and exist only if an observer has
   `durations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .measures import TIMES, Catalogue, Family, Measure, one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Values = Mapping[tuple[str, ...], float]

PARTITION = ("topic", "partition")

# -- events ----------------------------------------------------------------------------------------

HANDLER_SECONDS = Family(
    "consumer_handler_duration_seconds",
    "Duration of each turn of a handler, including its steps, in seconds.",
    "s",
    ("outcome",),
    TIMES,
)
"""Exists only if an observer has `durations`."""
CLAIMS = Family(
    "consumer_claims",
    "Partitions that were assigned, revoked or lost.",
    "{partition}",
    ("change",),
)
POISON = Family(
    "consumer_poison",
    "Messages that could not be handled, by the consumer's action and by error.",
    "{message}",
    ("action", "error_type"),
)
_AT_ZERO = tuple((CLAIMS, (change,)) for change in ("assigned", "revoked", "lost"))

# -- readers ---------------------------------------------------------------------------------------


def _labelled(
    name: str,
    text: str,
    unit: str,
    label: str,
    values: Mapping[str, Callable[[Any], float]],
) -> Measure:
    """Return a measure with one value for each of these values of a label."""

    def read(stats: Any) -> Values:
        return {(value,): get(stats) for value, get in values.items()}

    series = tuple((value,) for value in values)
    return Measure(Family(name, text, unit, (label,)), read, series=series)


def _of_partition(
    name: str,
    text: str,
    unit: str,
    value: Callable[[Any], float | None],
    *,
    is_greatest: bool = False,
) -> Measure:
    """Return a measure with one value for each partition that this process owns."""

    def read(stats: Any) -> Values:
        found = {partition: value(each) for partition, each in stats.partitions.items()}
        return _by_partition(found)

    return Measure(Family(name, text, unit, PARTITION), read, is_greatest)


def _of_lag(
    name: str,
    text: str,
    unit: str,
    value: Callable[[Any], float | None],
    *,
    is_greatest: bool = False,
) -> Measure:
    """Return a measure with one value for each partition whose lag was sampled."""

    def read(stats: Any) -> Values:
        return _by_partition({partition: value(lag) for partition, lag in stats.lags.items()})

    return Measure(Family(name, text, unit, PARTITION), read, is_greatest)


def _by_partition(found: Mapping[Any, float | None]) -> Values:
    return {
        (partition.topic, str(partition.partition)): value
        for partition, value in found.items()
        if value is not None
    }


def _state(name: str) -> Callable[[Any], float]:
    return lambda stats: float(_shown_state(stats) == name)


def _shown_state(stats: Any) -> str:
    state: str = stats.state
    if state != "running":
        return state
    return "ready" if stats.is_ready else "not_ready"


# -- states ----------------------------------------------------------------------------------------

_STATES = (
    _of_lag(
        "source_lag",
        "End of a partition minus the position of its first unfinished record.",
        "{message}",
        lambda lag: lag.messages,
    ),
    _of_lag(
        "source_oldest_age_seconds",
        "Age of the oldest unfinished record of a partition, by its timestamp.",
        "s",
        lambda lag: lag.seconds,
        is_greatest=True,
    ),
    _of_partition(
        "source_position",
        "Offset of the first unfinished record of a partition.",
        "{offset}",
        lambda each: each.position,
    ),
    _of_partition(
        "source_committed",
        "Stored position of a partition.",
        "{offset}",
        lambda each: each.committed,
    ),
    _of_partition(
        "consumer_head_age_seconds",
        "Seconds for which the first unfinished record of a partition has not changed.",
        "s",
        lambda each: each.stood or 0.0,
        is_greatest=True,
    ),
    _of_partition(
        "consumer_map_bytes",
        "Size of the stored map of settled records beyond the position.",
        "By",
        lambda each: each.map_bytes,
    ),
    _of_partition(
        "consumer_map_cut",
        "Whether the last map was cut: records cut from it run again after a crash.",
        "{partition}",
        lambda each: each.is_map_cut,
    ),
    _of_partition(
        "consumer_paused",
        "Whether fetching from a partition is paused.",
        "{partition}",
        lambda each: each.is_paused,
    ),
    one(
        "consumer_partitions",
        "Partitions that this process owns.",
        "{partition}",
        lambda stats: len(stats.partitions),
    ),
    _labelled(
        "consumer_messages",
        "Messages inside, by place.",
        "{message}",
        "place",
        {
            "ready": lambda stats: stats.in_flight.ready,
            "running": lambda stats: stats.in_flight.running,
            "writing": lambda stats: stats.in_flight.writing,
            "manual": lambda stats: stats.in_flight.manual,
            "backing_off": lambda stats: stats.in_flight.backing_off,
            "blocked": lambda stats: stats.in_flight.blocked,
            "waiting": lambda stats: stats.in_flight.waiting,
            "batched": lambda stats: stats.in_flight.batched,
        },
    ),
    one(
        "consumer_in_flight_messages",
        "Messages inside, in all places.",
        "{message}",
        lambda stats: stats.in_flight.messages,
    ),
    one(
        "consumer_in_flight_bytes",
        "Size of the messages inside.",
        "By",
        lambda stats: stats.in_flight.bytes,
    ),
    one(
        "consumer_max_in_flight_messages",
        "Maximum number of messages inside.",
        "{message}",
        lambda stats: stats.in_flight.max_messages,
    ),
    one(
        "consumer_max_in_flight_bytes",
        "Maximum size of the messages inside.",
        "By",
        lambda stats: stats.in_flight.max_bytes,
    ),
    one(
        "consumer_parked_keys",
        "Keys whose records are written to the park store.",
        "{key}",
        lambda stats: stats.parked_keys,
    ),
    one(
        "consumer_stalled",
        "Whether nothing has been settled for a while although there is work.",
        "{consumer}",
        lambda stats: stats.is_stalled,
    ),
    _labelled(
        "consumer_state",
        "Whether the consumer is opening, ready, not ready or draining: 1 for its current state.",
        "{consumer}",
        "state",
        {state: _state(state) for state in ("opening", "ready", "not_ready", "draining")},
    ),
)

# -- totals ----------------------------------------------------------------------------------------

_TOTALS = (
    one(
        "source_received",
        "Records delivered by the source.",
        "{message}",
        lambda stats: stats.deliveries.received,
    ),
    one(
        "source_acked",
        "Messages that were handled.",
        "{message}",
        lambda stats: stats.counts.acked,
    ),
    one(
        "source_nak",
        "Failed tries of any kind.",
        "{message}",
        lambda stats: stats.counts.naks,
    ),
    _labelled(
        "source_term",
        "Messages settled without being handled, by result.",
        "{message}",
        "fate",
        {
            "dead_lettered": lambda stats: stats.counts.dead_lettered,
            "parked": lambda stats: stats.counts.parked,
            "terminated": lambda stats: stats.counts.terminated,
        },
    ),
    _labelled(
        "source_dropped",
        "Messages that were not handled here, by reason.",
        "{message}",
        "reason",
        {
            "skipped": lambda stats: stats.counts.skipped,
            "settled_before": lambda stats: stats.deliveries.skipped,
            "redelivered": lambda stats: stats.deliveries.redelivered,
            "left": lambda stats: stats.counts.dropped,
            "stale": lambda stats: stats.counts.stale,
        },
    ),
    one(
        "source_replayed",
        "Records delivered again after a crash or a rebalance, and handled again.",
        "{message}",
        lambda stats: stats.deliveries.replayed,
    ),
    one("source_commits", "Commits that succeeded.", "{commit}", lambda stats: stats.commits),
    one("source_failed", "Commits that failed.", "{commit}", lambda stats: stats.commit_failures),
    one(
        "source_batches",
        "Batches that were handled or tried.",
        "{batch}",
        lambda stats: stats.counts.batches,
    ),
    one(
        "consumer_split_batches",
        "Batches that failed and were retried in smaller batches.",
        "{batch}",
        lambda stats: stats.counts.split_batches,
    ),
    one(
        "consumer_miscounted_batches",
        "Batches whose handler returned a wrong number of results.",
        "{batch}",
        lambda stats: stats.counts.miscounted_batches,
    ),
    one(
        "consumer_letters",
        "Dead letters written, including those of messages that then block their key.",
        "{letter}",
        lambda stats: stats.counts.letters,
    ),
    one(
        "consumer_unparked",
        "Messages that were handled after unpark.",
        "{message}",
        lambda stats: stats.counts.unparked,
    ),
    one(
        "consumer_deaf",
        "Handlers that did not end although they were cancelled.",
        "{handler}",
        lambda stats: stats.counts.deaf,
    ),
)

CONSUMER = Catalogue("consumer", (HANDLER_SECONDS,), (CLAIMS, POISON), _AT_ZERO, _STATES, _TOTALS)
"""All metrics of a consumer."""
