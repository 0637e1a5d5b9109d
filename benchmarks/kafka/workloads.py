"""The ways to consume a topic, by name, as turns in a process with the libraries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..workloads import Workload
from .counting import Counter
from .peers import arroyo, faststream, pyrallel
from .ways import bare, confluent_source_of, ours, recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..stopwatch import TimedTurn, Took
    from .ways import Way

OURS = "Sluicegate"
RECIPE = "task per message, lock per key"
BARE = "bare getmany loop"
CONFLUENT = "Sluicegate, over librdkafka"
OURS_BATCHES = "Sluicegate, batches of 500"
FASTSTREAM = "FastStream, one by one"
FASTSTREAM_BATCHES = "FastStream, batches of 500"
ARROYO = "arroyo, RunTask"
ARROYO_BATCHES = "arroyo, BatchStep of 500"
PYRALLEL = "pyrallel-consumer"
WIDE = "Sluicegate, 1,000 at once"

OUR_WAYS = frozenset({OURS, OURS_BATCHES, CONFLUENT})

TOPIC = "records"
LONGEST = 0.005
"""Seconds of a waiting handler."""
MESSAGES = 10_000
"""The ways that are measured with waiting handlers."""

_WAYS: dict[str, tuple[Way, int]] = {
    BARE: (bare, 100_000),
    OURS: (ours(), 100_000),
    CONFLUENT: (ours(made=confluent_source_of), 100_000),
    RECIPE: (recipe, 100_000),
    OURS_BATCHES: (ours(in_batches=True), 100_000),
    FASTSTREAM: (faststream(), 10_000),
    FASTSTREAM_BATCHES: (faststream(in_batches=True), 100_000),
    ARROYO: (arroyo(), 100_000),
    ARROYO_BATCHES: (arroyo(in_batches=True), 100_000),
    PYRALLEL: (pyrallel, 4_000),
}
_WAITING_WAYS: dict[str, Way] = {
    OURS: ours(),
    WIDE: ours(concurrency=1_000, window=2_000),
    PYRALLEL: pyrallel,
}
KEYS = (1, 2, 5, 10, 20, 50, 100, 1_000, 10_000)


def waiting_name(way: str, keys: int) -> str:
    """Return the name of the workload with waiting handlers and this number of keys."""
    return f"{way}: {keys} keys"


def waiting_topic(keys: int) -> str:
    """Return the topic with this number of keys."""
    return f"keys-{keys}"


def workloads(bootstrap: str) -> dict[str, Workload]:
    """Return all workloads for the topics of a broker."""

    def prepared(way: Way, topic: str, longest: float) -> Callable[[range], TimedTurn]:
        async def consume(items: range) -> Took:
            return await way(bootstrap, topic, Counter(len(items), longest))

        return lambda items: lambda: asyncio.run(consume(items))

    quick = {
        name: Workload(name, items, prepared(way, TOPIC, 0.0), ours=name in OUR_WAYS)
        for name, (way, items) in _WAYS.items()
    }
    waiting = {
        (name := waiting_name(line, keys)): Workload(
            name, MESSAGES, prepared(way, waiting_topic(keys), LONGEST), ours=way is not pyrallel
        )
        for line, way in _WAITING_WAYS.items()
        for keys in KEYS
    }
    return quick | waiting
