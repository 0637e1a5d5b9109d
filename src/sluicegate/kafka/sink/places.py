"""The partition of each record, and the order of records of one key in several partitions.

1. A record with a key goes to the partition that Kafka's own clients choose: murmur2 of the key,
   modulo the number of partitions. The hashes of recent keys are cached, since they are computed in
   Python.
2. Records without a key go to one partition per write, chosen at random: fewer, larger batches, as
   with the sticky partitioner of Kafka's own client (KIP-480).
3. If the batcher's key does not determine the partition, a write could store a later record of a
   key in one partition while an earlier record fails in another. So the later record waits for the
   next wave. Without such keys there is one wave.
"""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import groupby
from struct import unpack_from
from typing import TYPE_CHECKING

from ..._core.errors import PermanentError, RefusedError
from ..._core.order.keys import accepted
from ..._core.source import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..client.producer import Producer
    from .records import Columns

    Placed = Mapping[TopicPartition, Sequence[int]]

KEYS_KEPT = 65_536
"""Number of cached hashes, about 10 MB."""
LONGEST_KEPT = 100
"""Longest key, in bytes, whose hash is cached."""
_WORD = 0xFFFFFFFF
_MIX = 0x5BD1E995
_SEED = 0x9747B28C


def key_hash(key: bytes) -> int:
    """The hash that Kafka's own clients use to choose a key's partition."""
    return _cached_hash(key) if len(key) <= LONGEST_KEPT else _murmur(key)


def _murmur(key: bytes) -> int:
    """murmur2 without its sign, word by word. aiokafka's implementation works byte by byte and
    takes twice as long for a key of 36 bytes.
    """
    length = len(key)
    found = _SEED ^ length
    for word in unpack_from(f"<{length // 4}I", key):
        mixed = word * _MIX & _WORD
        mixed = (mixed ^ mixed >> 24) * _MIX & _WORD
        found = (found * _MIX & _WORD) ^ mixed
    if rest := key[length & ~3 :]:
        found = (found ^ int.from_bytes(rest, "little")) * _MIX & _WORD
    found = (found ^ found >> 13) * _MIX & _WORD
    return (found ^ found >> 15) & 0x7FFFFFFF


_cached_hash = lru_cache(maxsize=KEYS_KEPT)(_murmur)


class Placing:
    """Assigns the records of one write to partitions of known topics."""

    def __init__(
        self, session: Producer, topic: str | None, missing: Mapping[str, RefusedError]
    ) -> None:
        self._session = session
        self._topic = topic
        self._missing = missing
        self._counts: dict[str, list[int]] = {}
        self._chosen: dict[str, int] = {}

    def has_unknown(self, columns: Columns) -> bool:
        """Whether a record names a partition that is not known: it may have been added meanwhile."""
        for place, wanted in enumerate(columns.partitions or ()):
            topic = self._topic if columns.topics is None else columns.topics[place]
            if topic is None or topic in self._missing or wanted is None:
                continue
            if wanted not in self._partitions(topic):
                return True
        return False

    def place(
        self, columns: Columns
    ) -> tuple[dict[TopicPartition, list[int]], dict[int, BaseException]]:
        """For each partition the places of its records in the columns, in order, and the errors of
        items without a partition, by index.
        """
        if self._topic is not None and columns.partitions is None and columns.keys is None:
            everything = list(range(len(columns.values)))
            sticky = TopicPartition(self._topic, self._sticky(self._topic))
            return ({sticky: everything} if everything else {}), {}
        if (
            self._topic is not None
            and self._topic not in self._missing
            and columns.partitions is None
            and columns.keys is not None
        ):
            return self._by_key(self._topic, columns.keys), {}
        found: dict[tuple[str, int], list[int]] = {}
        errors: dict[int, BaseException] = {}
        for place in range(len(columns.values)):
            topic = self._topic if columns.topics is None else columns.topics[place]
            assert topic is not None, "a sink has a topic or a function for it"
            number = self._number(topic, columns, place)
            if isinstance(number, int):
                found.setdefault((topic, number), []).append(place)
            else:
                errors[columns.indices[place]] = number
        return {TopicPartition(*each): places for each, places in found.items()}, errors

    def _by_key(self, topic: str, keys: Sequence[bytes | None]) -> dict[TopicPartition, list[int]]:
        """The same for a single topic whose records have keys and do not choose partitions."""
        numbers = self._partitions(topic)
        count = len(numbers)
        found: list[list[int]] = [[] for _ in numbers]
        for place, key in enumerate(keys):
            if key is None:
                found[numbers.index(self._sticky(topic))].append(place)
            else:
                found[key_hash(key) % count].append(place)
        pairs = zip(numbers, found, strict=True)
        return {TopicPartition(topic, number): places for number, places in pairs if places}

    def _number(self, topic: str, columns: Columns, place: int) -> int | BaseException:
        if topic in self._missing:
            missing = self._missing[topic]
            return missing if topic == self._topic else RefusedError(str(missing), of_item=True)
        numbers = self._partitions(topic)
        wanted = None if columns.partitions is None else columns.partitions[place]
        if wanted is not None:
            if wanted in numbers:
                return wanted
            text = f"{topic} has the partitions 0 to {numbers[-1]}, not {wanted}"
            return PermanentError(text)
        key = None if columns.keys is None else columns.keys[place]
        if key is None:
            return self._sticky(topic)
        return numbers[key_hash(key) % len(numbers)]

    def _partitions(self, topic: str) -> list[int]:
        found = self._counts.get(topic)
        if found is None:
            found = self._counts[topic] = self._session.partitions(topic) or [0]
        return found

    def _sticky(self, topic: str) -> int:
        if topic not in self._chosen:
            self._chosen[topic] = random.choice(self._session.available(topic) or [0])
        return self._chosen[topic]


def topics_of(topic: str | None, columns: Columns) -> Sequence[str]:
    """The topics of a write."""
    return [topic] if topic is not None else sorted({*(columns.topics or ())})


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


def move_places(placed: Placed, to: Mapping[int, TopicPartition]) -> Placed:
    """Move these places to the partitions to which their records were sent before."""
    found = {each: [p for p in places if p not in to] for each, places in placed.items()}
    for place, partition in to.items():
        found.setdefault(partition, []).append(place)
    return {each: sorted(places) for each, places in found.items()}
