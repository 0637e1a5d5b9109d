"""The division of a fetch's capacity between partitions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.consumer.subscription_state import SubscriptionState
from tests.kafka.source.kafka_help import fill, new_name, new_topic

from sluicegate.consumer import TopicPartition
from sluicegate.kafka import KafkaSource
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.consumer import Fetched
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_partitions_with_nothing_leave_their_share_to_those_with_records(
    broker: EmbeddedKafka,
) -> None:
    topic = await new_topic(broker, 4)
    await fill(broker, topic, 400, partition=2)
    source = KafkaSource(topic, bootstrap=broker.bootstrap, group=new_name("group"))
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        claims = await host.wait_for_claims(4)
        assert taken(await source.fetch(claims, 400)) == {2: 400}


async def test_partitions_with_records_are_read_in_equal_shares(broker: EmbeddedKafka) -> None:
    topic = await new_topic(broker, 4)
    for partition in (1, 2):
        await fill(broker, topic, 400, partition=partition)
    source = KafkaSource(topic, bootstrap=broker.bootstrap, group=new_name("group"))
    host = RecordingHost()
    async with source.open(host), asyncio.timeout(100):
        await host.wait_for_claims(4)
        both = [host.claim_of(TopicPartition(topic, partition)) for partition in (1, 2)]
        first = taken(await source.fetch(both[:1], 1))  # the answer for both has arrived
        assert first == {1: 1}
        assert taken(await source.fetch(host.open, 200)) == {1: 100, 2: 100}


def taken(fetched: Sequence[Fetched] | None) -> dict[int, int]:
    """The number of records fetched of each partition."""
    return {each.claim.partition.partition: len(each.records) for each in fetched or ()}


async def test_each_partition_of_a_round_is_looked_at_once(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiokafka looks at each partition that has arrived whenever it returns one of them."""
    count, looks = 20, 0
    topic = await new_topic(broker, count)
    for partition in range(count):
        await fill(broker, topic, 2, partition=partition)
    source = KafkaSource(topic, bootstrap=broker.bootstrap, group=new_name("group"))
    host = RecordingHost()

    def is_assigned(self: SubscriptionState, partition: Any) -> bool:
        nonlocal looks
        looks += 1
        return bool(found(self, partition))

    async with source.open(host), asyncio.timeout(100):
        await host.wait_for_claims(count)
        one = [host.claim_of(TopicPartition(topic, 0))]
        assert taken(await source.fetch(one, 1)) == {0: 1}  # the answer for all has arrived
        found = SubscriptionState.is_assigned
        monkeypatch.setattr(SubscriptionState, "is_assigned", is_assigned)
        assert len(taken(await source.fetch(host.open, 1000))) == count
        assert looks < count, looks
