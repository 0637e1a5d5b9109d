"""Reasons for which a source does not deliver: they are reported to operators, and end with their
cause.

White box: the source looks at its brokers more often.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from tests.kafka.source.kafka_help import fill, new_name, new_topic
from tests.kafka.source.proxy_help import proxied
from tests.kafka.source.storm_help import QUICK, LogLines, Member, log_lines, member, run

from sluicegate.kafka import KafkaSource
from sluicegate.kafka.source import sessions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate.testing import EmbeddedKafka


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check for missing topics more often than every five seconds."""
    monkeypatch.setattr(sessions, "REFRESH_EVERY", 0.2)


@asynccontextmanager
async def troubled(source: KafkaSource, trouble: str) -> AsyncIterator[tuple[Member, LogLines]]:
    """A consumer of this source that has reported this trouble in every place."""
    async with log_lines() as log, member(source) as reader:
        line = await log.wait(trouble)
        _, _, told = line.partition(": ")
        explanation = reader.consumer.explain()
        assert "source trouble" in explanation.reasons
        assert told in str(explanation)
        assert reader.consumer.health().not_ready == f"its source cannot deliver: {told}"
        assert reader.consumer.alive
        yield reader, log


async def delivers(reader: Member, log: LogLines, count: int) -> None:
    """Wait until the trouble is over and these records have been handled."""
    await reader.handled_count(count)
    await log.wait("delivers again")
    await reader.consumer.wait_ready()
    assert "source trouble" not in reader.consumer.explain().reasons


def test_a_broker_that_is_down_at_the_start_is_named_and_joined_when_it_is_up(
    broker: EmbeddedKafka,
) -> None:
    """consumer/C:N5, consumer/C:B4."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await fill(broker, topic, 10)
        async with proxied(broker) as proxy:
            proxy.refuse()
            source = KafkaSource(topic, bootstrap=proxy.bootstrap, group=group, **QUICK)
            trouble = f"{group}: no broker can be reached at {proxy.bootstrap}"
            async with troubled(source, trouble) as (reader, log):
                await proxy.listen()
                await delivers(reader, log, 10)

    run(scenario())


def test_a_missing_topic_is_named_and_read_when_it_is_created(broker: EmbeddedKafka) -> None:
    """consumer/C:N5; the other topic is read meanwhile."""

    async def scenario() -> None:
        there, missing, group = await new_topic(broker), new_name(), new_name("group")
        await fill(broker, there, 10)
        source = KafkaSource(there, missing, bootstrap=broker.bootstrap, group=group, **QUICK)
        async with troubled(source, f"the topic '{missing}' does not exist") as (reader, log):
            await reader.handled_count(10)
            await new_topic(broker, name=missing)
            await fill(broker, missing, 10)
            await delivers(reader, log, 20)

    run(scenario())


def test_a_pattern_without_a_match_is_named_and_read_when_there_is_one(
    broker: EmbeddedKafka,
) -> None:
    """consumer/C:N5."""

    async def scenario() -> None:
        name, group = new_name(), new_name("group")
        pattern = f"{name}[.].*"
        source = KafkaSource(pattern=pattern, bootstrap=broker.bootstrap, group=group, **QUICK)
        async with troubled(source, "no topic matches") as (reader, log):
            await new_topic(broker, name=f"{name}.a")
            await fill(broker, f"{name}.a", 10)
            await delivers(reader, log, 10)

    run(scenario())


def test_a_group_with_another_assignor_is_named_and_joined_when_its_members_leave(
    broker: EmbeddedKafka,
) -> None:
    """consumer/C:N5."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await fill(broker, topic, 10)
        other: Any = AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, **QUICK)
        async with other:
            async with troubled(source, "another protocol or assignor") as (reader, log):
                await other.stop()
                await delivers(reader, log, 10)

    run(scenario())


def test_a_session_timeout_that_the_broker_refuses_is_named(broker: EmbeddedKafka) -> None:
    """With the argument of the source, and the broker settings that decide."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, session_timeout=0.5)
        async with troubled(source, r"session_timeout=0\.5; see its group\.min"):
            pass

    run(scenario())


def test_a_member_without_partitions_is_ready(broker: EmbeddedKafka) -> None:
    """It is a standby member without a trouble. O-T10."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, **QUICK)
        spare = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, **QUICK)
        async with member(source) as one, member(spare) as two:
            await one.consumer.wait_ready()
            await two.consumer.wait_ready()
            owners = [asyncio.ensure_future(each.watch.owns(1)) for each in (one, two)]
            _, waits = await asyncio.wait(owners, return_when=asyncio.FIRST_COMPLETED)
            assert sorted([len(one.watch.owned), len(two.watch.owned)]) == [0, 1]
            for each in waits:
                each.cancel()

    run(scenario())
