"""Replicas that are missing, and records that the cluster itself loses."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from logging import ERROR
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import NewTopic
from tests.kafka.confluent.confluent_help import source_of
from tests.kafka.sink.sink_help import items
from tests.kafka.source.kafka_help import admin_of, new_name, new_topic, producer_of
from tests.kafka.source.storm_help import log_lines, member

from sluicegate import Batcher, Limits, Retry, stack
from sluicegate.kafka import KafkaAccess, KafkaSink, KafkaSource

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


async def in_sync(kafka: EmbeddedKafka, topic: str, replicas: set[int]) -> None:
    """Wait until these replicas are in sync."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(kafka.in_sync, topic) != replicas:
            pass  # each is a request to a broker


def batcher_of(kafka: EmbeddedKafka, topic: str) -> Batcher[Any]:
    access = KafkaAccess(kafka.bootstrap, request_timeout=2.0)
    sink = KafkaSink(topic, bootstrap=access)
    return Batcher(stack(sink, Retry(attempts=3)), limits=Limits(max_items=50, max_delay=0.01))


async def test_too_few_replicas_in_sync_are_an_outage(kafka: EmbeddedKafka) -> None:
    """It uses up no attempt, is told, and ends when the replica is back."""
    topic = await new_topic(kafka, settings={"min.insync.replicas": "3"})
    async with log_lines() as log, batcher_of(kafka, topic) as batcher:
        await batcher.deliver(0)
        follower = next(each for each in kafka.running if each != kafka.leader_of(topic))
        await asyncio.to_thread(kafka.pause, follower)
        await in_sync(kafka, topic, {1, 2, 3} - {follower})
        receipts = [await batcher.submit(number) for number in range(1, 100)]
        await log.wait("the destination has been unavailable")
        assert not any(each.done for each in receipts)
        await asyncio.to_thread(kafka.resume, follower)
        async with asyncio.timeout(30):
            for each in receipts:
                await each
    assert await items(kafka, topic) == [*range(100)]


@pytest.mark.long
@pytest.mark.parametrize("has_grown", [False, True])
async def test_records_lost_by_an_unclean_election_are_told(
    kafka: EmbeddedKafka, has_grown: bool
) -> None:
    """The only replica in sync is lost, and an older one leads: 50 acknowledged records are gone,
    and the positions of consumers are behind the end of the log. They begin again at `start`. If the
    log has grown beyond the positions by then, only librdkafka detects it.
    """
    first, second, _ = kafka.running
    topic = new_name("unclean")
    settings = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    async with admin_of(kafka) as admin:
        assigned = NewTopic(topic, -1, -1, {0: [first, second]}, topic_configs=settings)
        await admin.create_topics([assigned])
    async with producer_of(kafka) as producer:
        await producer.partitions_for(topic)
    grown = range(150, 250) if has_grown else ()
    kept = [*range(100), *grown, *range(250, 300)]
    names = ["confluent"] if has_grown else ["aiokafka", "confluent"]
    groups = {name: new_name(name) for name in names}
    times: dict[str, Any] = {"session_timeout": 15.0, "rebalance_timeout": 20.0}
    seen: dict[str, list[int]] = {name: [] for name in groups}

    def handler(name: str) -> Any:
        async def handle(message: Any) -> None:
            seen[name].append(json.loads(message.value))

        return handle

    async with AsyncExitStack() as contexts:
        log = await contexts.enter_async_context(log_lines())
        access = KafkaAccess(kafka.bootstrap, request_timeout=2.0)
        sources: dict[str, Any] = {
            "aiokafka": lambda group: KafkaSource(topic, bootstrap=access, group=group, **times),
            "confluent": lambda group: source_of(kafka, topic, group, bootstrap=access, **times),
        }
        members = [
            await contexts.enter_async_context(member(sources[name](group), handler(name)))
            for name, group in groups.items()
        ]
        batcher = await contexts.enter_async_context(batcher_of(kafka, topic))

        async def write(*numbers: int) -> None:
            for each in [await batcher.submit(number) for number in numbers]:
                await each

        await write(*range(100))
        await asyncio.to_thread(kafka.pause, second)
        await in_sync(kafka, topic, {first})
        await write(*range(100, 150))
        for each in members:
            await each.stored(150)
        await asyncio.to_thread(kafka.kill, first)
        writing = asyncio.ensure_future(write(*grown))
        await asyncio.to_thread(kafka.resume, second)
        for name in groups.values():
            await log.wait(f"{name}: {topic}/0 .* reading begins again at 0", ERROR)
        await writing
        await write(*range(250, 300))
        for each in members:
            await each.handled_count(150 + len(kept))
    await asyncio.to_thread(kafka.start, first)
    assert [*seen.values()] == [[*range(150), *kept]] * len(names)
    assert await items(kafka, topic) == kept
