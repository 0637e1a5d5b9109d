"""The items in the benchmarks of writing to a topic."""

from __future__ import annotations

import pytest
from benchmarks.kafka.producer_workloads import (
    EVENTS,
    KEYED,
    NEW_KEYS,
    PLAIN,
    WAYS,
    WORKS,
    batches_of,
    workload_name,
    workloads,
)

from sluicegate.kafka import KafkaSink


@pytest.mark.parametrize("work", [*WORKS])
def test_a_turn_has_all_items_and_one_before_the_time_runs(work: str) -> None:
    first, *batches = batches_of(WORKS[work], range(6_001))
    assert len(first) == 1
    assert sum(map(len, batches)) == 6_001
    assert {*map(len, batches[:-1])} == {WORKS[work].size}


def test_records_are_the_same_by_hand_and_by_the_sink() -> None:
    """The sink's arguments are the functions that the peers call for an item."""
    pairs, events = WORKS[KEYED].form, WORKS[EVENTS].form
    assert (pairs.key, pairs.value) == (pairs.of_sink["key"], pairs.of_sink["value"])
    item = WORKS[EVENTS].make(7)
    assert (events.key(item), events.of_sink) == (b"N7", {"key": "tail"})
    assert WORKS[PLAIN].form.key(b"item") is None
    for work in WORKS.values():
        KafkaSink(work.topic, bootstrap="nowhere:9092", **work.form.of_sink)


def test_new_keys_never_come_again() -> None:
    work = WORKS[NEW_KEYS]
    turns = [batches_of(work, range(100)) for _ in range(2)]
    keys = [work.form.key(item) for turn in turns for batch in turn for item in batch]
    assert len({*keys}) == len(keys) == 202


def test_every_way_does_every_work() -> None:
    assert [*workloads("nowhere:9092")] == [
        workload_name(way, work) for work in WORKS for way in WAYS
    ]
