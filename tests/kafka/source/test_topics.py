"""Partitions and topics that appear while a source is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
from aiokafka.admin import NewPartitions
from tests.kafka.source.kafka_help import admin_of, fill, new_name, new_topic, producer_of
from tests.kafka.source.storm_help import QUICK, member, run

from sluicegate.consumer import TopicPartition
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

OFTEN: dict[str, Any] = {**QUICK, "client": {"metadata_max_age_ms": 200}}


@pytest.mark.parametrize("start", ["latest", pytest.param("earliest", marks=pytest.mark.soak)])
def test_a_partition_that_appears_is_read_from_its_first_record(
    broker: EmbeddedKafka, start: Literal["earliest", "latest"]
) -> None:
    """Including the records written before it was found."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, start=start, **OFTEN)
        async with member(source) as reader:
            await reader.owns(1)
            async with admin_of(broker) as admin:
                await admin.create_partitions({topic: NewPartitions(total_count=3)})
            async with producer_of(broker) as producer:
                await producer.client.force_metadata_update()
            for partition in range(3):
                await fill(broker, topic, 10, partition=partition)
            await reader.handled_count(30)
            assert len(set(reader.handled)) == len(reader.handled) == 30
            assert len(reader.watch.owned) == 3

    run(scenario(), 20)


def test_a_topic_that_begins_to_match_the_pattern_is_read_beside_the_others(
    broker: EmbeddedKafka,
) -> None:
    """A topic that does not match is not read."""

    async def scenario() -> None:
        name, group = new_name(), new_name("group")
        for topic in (f"{name}.a", f"not-{name}.b"):
            await new_topic(broker, name=topic)
            await fill(broker, topic, 10)
        source = KafkaSource(
            pattern=f"{name}[.].*", bootstrap=broker.bootstrap, group=group, **OFTEN
        )
        async with member(source) as reader:
            await reader.handled_count(10)
            await new_topic(broker, name=f"{name}.c", partitions=2)
            await fill(broker, f"{name}.c", 10)
            await reader.handled_count(20)
            await reader.owns(3)
            assert {at.topic for at in reader.watch.owned} == {f"{name}.a", f"{name}.c"}
            assert TopicPartition(f"{name}.c", 1) in reader.watch.owned

    run(scenario())
