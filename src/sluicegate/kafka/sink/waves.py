"""Order for records of one key in several partitions: one partition after another.

If the batcher's key does not determine the partition, a write could store a later record of a key
in one partition while an earlier record fails in another. So the later record has to wait. Without
such keys there is one wave.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ..._core.order.keys import accepted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..._core.source import TopicPartition

    Placed = Mapping[TopicPartition, Sequence[int]]


def waves(placed: Placed, keys: Sequence[object]) -> list[Placed]:
    """Split records by partition into waves to be sent one after another; `keys` is by place.

    In a wave, a key has records in only one partition. Each partition keeps its order over all
    waves.
    """
    partition_of = {place: partition for partition, places in placed.items() for place in places}
    last_of_key: dict[object, tuple[TopicPartition, int]] = {}
    last_of_partition = dict.fromkeys(placed, 0)
    found: dict[TopicPartition, list[int]] = {partition: [] for partition in placed}
    for place in sorted(partition_of):
        partition, key = partition_of[place], accepted(keys[place])
        before, wave = last_of_key.get(key, (partition, 0))
        wave = max(wave + (before != partition), last_of_partition[partition])
        last_of_key[key] = partition, wave
        last_of_partition[partition] = wave
        found[partition].append(wave)
    count = max(last_of_partition.values(), default=0) + 1
    if count == 1:
        return [placed]
    split: list[dict[TopicPartition, list[int]]] = [{} for _ in range(count)]
    for partition, numbers in found.items():
        pairs = zip(numbers, sorted(placed[partition]), strict=True)
        for wave, each in groupby(pairs, lambda pair: pair[0]):
            split[wave][partition] = [place for _, place in each]
    return [*split]


def moved(placed: Placed, to: Mapping[int, TopicPartition]) -> Placed:
    """Move these places to the partitions to which their records were sent before."""
    found = {each: [p for p in places if p not in to] for each, places in placed.items()}
    for place, partition in to.items():
        found.setdefault(partition, []).append(place)
    return {each: sorted(places) for each, places in found.items()}
