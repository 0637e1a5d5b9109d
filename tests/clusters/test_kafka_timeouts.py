"""A frozen leader or coordinator whose requests are cut off earlier than `request_timeout`: the next
attempt goes to its successor.

White box: the unit of a transaction.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.clusters import kafka_leaders
from tests.kafka.sink.sink_help import items
from tests.kafka.source.kafka_help import new_name, new_topic

from sluicegate import Batcher, Limits, Retry, RowBatch, Timeout, send, stack, transaction
from sluicegate._core.positions import PositionUnit
from sluicegate.consumer import Position, TopicPartition
from sluicegate.kafka import KafkaAccess, KafkaSink

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")
CUT_AFTER, REQUEST = 0.5, 4.0
AT_MOST = 90.0
"""Seconds. The broker's session takes 2, two requests to the frozen node take 8, a request of another
broker to it 30, and a busy machine the rest; without the next leader it never ends."""


async def test_a_write_cut_by_a_timeout_goes_to_the_next_leader(kafka: EmbeddedKafka) -> None:
    topic = await new_topic(kafka)
    sink = KafkaSink(topic, bootstrap=KafkaAccess(kafka.bootstrap, request_timeout=REQUEST))
    limits = Limits(max_items=10, max_delay=0.01)
    async with Batcher(
        stack(sink, Timeout(CUT_AFTER), Retry(attempts=100)), limits=limits
    ) as batcher:
        await batcher.deliver(0)
        await asyncio.to_thread(kafka.pause, kafka_leaders.leader_of(kafka, topic))
        async with asyncio.timeout(AT_MOST):
            await batcher.deliver(1)
    kafka.resume()
    async with asyncio.timeout(AT_MOST):
        while len(found := await items(kafka, topic)) < 2:
            pass  # the old leader answers until it is told of the new one
    assert found == [0, 1]


async def test_a_transaction_cut_by_a_timeout_goes_to_the_next_coordinator(
    kafka: EmbeddedKafka,
) -> None:
    topic, group = await new_topic(kafka), new_name("group")
    part = TopicPartition(await new_topic(kafka), 0)
    access = KafkaAccess(kafka.bootstrap, request_timeout=REQUEST, close_timeout=CUT_AFTER)

    async def write(number: int) -> None:
        async with transaction(sink, PositionUnit(group, part, Position(number))) as within:
            await send(within, RowBatch([number]))

    async with KafkaSink(topic, bootstrap=access) as sink:
        await sink.claim_positions(group, [part])
        await write(1)
        await asyncio.to_thread(kafka.pause, kafka_leaders.leader_of(kafka, "__transaction_state"))
        async with asyncio.timeout(AT_MOST):
            while True:
                try:
                    async with asyncio.timeout(CUT_AFTER):
                        await write(2)
                    break
                except TimeoutError:
                    continue
    kafka.resume()
