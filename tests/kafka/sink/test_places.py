"""The partitions of records are those that Kafka's own clients choose. White box: the hash of keys
and the choice of partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from aiokafka.partitioner import (
    DefaultPartitioner,
    murmur2,
)
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import PermanentError, RefusedError
from sluicegate.consumer import TopicPartition
from sluicegate.kafka.sink.places import Placing, key_hash
from sluicegate.kafka.sink.records import Columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.kafka.client.producer import ProducerSession

NUMBERS = [0, 1, 2, 3, 4]
KEYS = [b"", b"ann", None, b"bob", b"order-00000012", None, b"ann"]


class Topics:
    """The partitions of a cluster, of which only number 3 has a leader."""

    def partitions(self, _: str) -> list[int]:
        return NUMBERS

    def available(self, _: str) -> list[int]:
        return [3]


def placing(topic: str | None, **missing: RefusedError) -> Placing:
    return Placing(cast("ProducerSession", Topics()), topic, missing)


def columns(keys: Sequence[bytes | None] | None, **others: Any) -> Columns:
    count = len(KEYS)
    return Columns(range(count), [b"value"] * count, keys, **others)


@given(st.binary(max_size=120))
def test_a_key_has_the_hash_of_the_other_clients(key: bytes) -> None:
    assert key_hash(key) == murmur2(key) & 0x7FFFFFFF


def expected(keys: Sequence[bytes | None]) -> dict[TopicPartition, list[int]]:
    partitioner: Any = DefaultPartitioner()
    found: dict[TopicPartition, list[int]] = {}
    for place, key in enumerate(keys):
        number = partitioner(key, NUMBERS, [3])
        found.setdefault(TopicPartition("orders", number), []).append(place)
    return found


def test_records_of_a_fixed_topic_and_of_a_chosen_one_go_to_the_same_partitions() -> None:
    fixed, no_errors = placing("orders").place(columns(KEYS))
    chosen, none = placing(None).place(columns(KEYS, topics=["orders"] * len(KEYS)))
    assert fixed == chosen == expected(KEYS)
    assert no_errors == none == {}


def test_records_without_keys_go_to_one_available_partition() -> None:
    placed, errors = placing("orders").place(columns(None))
    assert placed == {TopicPartition("orders", 3): [*range(len(KEYS))]}
    assert errors == {}


def test_a_partition_of_the_record_goes_before_its_key() -> None:
    wanted = [2, None, 2, 9, 0, None, 0]
    placed, errors = placing("orders").place(columns(KEYS, partitions=wanted))
    assert placed[TopicPartition("orders", 2)] == [0, 2]
    assert isinstance(errors[3], PermanentError)
    assert sorted(place for places in placed.values() for place in places) == [0, 1, 2, 4, 5, 6]


def test_records_with_keys_for_a_topic_that_is_gone_are_refused() -> None:
    placed, errors = placing("orders", orders=RefusedError("no such topic")).place(columns(KEYS))
    assert placed == {}
    assert {*map(type, errors.values())} == {RefusedError}
    assert [*errors] == [*range(len(KEYS))]
