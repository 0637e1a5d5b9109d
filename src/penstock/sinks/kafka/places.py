"""The partition of each record.

1. A record with a key goes to the partition that Kafka's own clients choose: murmur2 of the key,
   modulo the number of partitions. aiokafka computes that in Python, so it is kept for recent keys.
2. Records without a key go to one partition per write, chosen at random: fewer, larger batches, as
   with the sticky partitioner of Kafka's own client (KIP-480).
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import TYPE_CHECKING

from aiokafka.partitioner import (  # pyright: ignore[reportMissingTypeStubs]
    murmur2,  # pyright: ignore[reportUnknownVariableType]
)

from ..._core.errors import PermanentError, RefusedError
from ..._core.source import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..._clients.kafka.producer import ProducerSession
    from .records import Columns

KEYS_KEPT = 65_536
"""Keys whose hashes are kept, about 10 MB."""
LONGEST_KEPT = 100
"""Bytes of a key whose hash is kept."""


def hashed(key: bytes) -> int:
    """The hash by which Kafka's own clients choose a key's partition."""
    return _kept(key) if len(key) <= LONGEST_KEPT else _murmur(key)


def _murmur(key: bytes) -> int:
    return int(murmur2(key)) & 0x7FFFFFFF


_kept = lru_cache(maxsize=KEYS_KEPT)(_murmur)


class Placing:
    """Assigns the records of one write to partitions of known topics."""

    def __init__(
        self, session: ProducerSession, topic: str | None, missing: Mapping[str, RefusedError]
    ) -> None:
        self._session = session
        self._topic = topic
        self._missing = missing
        self._counts: dict[str, list[int]] = {}
        self._chosen: dict[str, int] = {}

    def place(
        self, columns: Columns
    ) -> tuple[dict[TopicPartition, list[int]], dict[int, BaseException]]:
        """For each partition the places in the columns of its records, in order; and the errors of
        items, by their index, that have no partition.
        """
        if self._topic is not None and columns.partitions is None and columns.keys is None:
            everything = list(range(len(columns.values)))
            sticky = TopicPartition(self._topic, self._sticky(self._topic))
            return ({sticky: everything} if everything else {}), {}
        found: dict[tuple[str, int], list[int]] = {}
        errors: dict[int, BaseException] = {}
        for place in range(len(columns.values)):
            topic = self._topic if columns.topics is None else columns.topics[place]
            assert topic is not None, "a sink has a topic, or a function for it"
            number = self._number(topic, columns, place)
            if isinstance(number, int):
                found.setdefault((topic, number), []).append(place)
            else:
                errors[columns.indices[place]] = number
        return {TopicPartition(*each): places for each, places in found.items()}, errors

    def _number(self, topic: str, columns: Columns, place: int) -> int | BaseException:
        if topic in self._missing:
            missing = self._missing[topic]
            return missing if topic == self._topic else RefusedError(str(missing), of_item=True)
        numbers = self._partitions(topic)
        wanted = None if columns.partitions is None else columns.partitions[place]
        if wanted is not None:
            if wanted in numbers:
                return wanted
            text = f"{topic} has the partitions 0 to {numbers[-1]}, and no {wanted}"
            return PermanentError(text)
        key = None if columns.keys is None else columns.keys[place]
        if key is None:
            return self._sticky(topic)
        return numbers[hashed(key) % len(numbers)]

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
    """The topics that a write goes to."""
    return [topic] if topic is not None else sorted({*(columns.topics or ())})
