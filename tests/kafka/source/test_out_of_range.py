"""A position that is out of range beside partitions with records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.kafka.source.kafka_help import delete_records, fill, new_name, new_topic, store

from sluicegate.consumer import Position, TopicPartition
from sluicegate.kafka import KafkaSource
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.consumer import Fetched
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


async def test_a_cancelled_fetch_loses_no_records_while_another_partition_is_out_of_range(
    broker: EmbeddedKafka,
) -> None:
    """consumer/C:C5: the lookup of the first partition suspends, so it precedes any take from the
    other: a claim that begins meanwhile cancels the fetch.
    """
    topic, group = await new_topic(broker, 2), new_name("group")
    healthy, gone = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for partition in (healthy, gone):
        await fill(broker, topic, 10, partition=partition.partition)
    await delete_records(broker, topic, 5, partition=1)
    await store(broker, group, {healthy: Position(0), gone: Position(2)})
    source, host = KafkaSource(topic, bootstrap=broker.bootstrap, group=group), RecordingHost()
    async with source.open(host):
        await host.wait_for_claims(2)
        both = [host.claim_of(healthy), host.claim_of(gone)]
        offsets = offsets_of(await source.fetch(both[:1], 1))  # the answer for both has arrived
        fetch = asyncio.create_task(source.fetch(both, 100))
        await asyncio.sleep(0)  # it takes the arrived records, or suspends
        fetch.cancel()
        await asyncio.wait([fetch])
        if not fetch.cancelled():
            offsets += offsets_of(fetch.result())
        while len(offsets) < 10:
            offsets += offsets_of(await source.fetch(both[:1], 4))
    assert offsets == list(range(10))


def offsets_of(fetched: Sequence[Fetched] | None) -> list[int]:
    return [record.offset for each in fetched or () for record in each.records]
