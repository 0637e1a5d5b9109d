"""Closing a source in any state: none of its tasks continues, and it can be opened again. White
box: the client's options and session.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.source import kafka_help

from sluicegate import ClosedError, ConfigError
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Position, TopicPartition
from sluicegate.kafka import KafkaAccess, KafkaSource
from sluicegate.kafka.client.options import MemberOptions
from sluicegate.kafka.client.session import Session
from sluicegate.testing.conformance.source.subject import News, RecordingHost

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka


async def test_closing_at_any_moment_leaves_no_claim_and_no_task(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """While it connects, joins, or reads its positions."""
    topic = await kafka_help.new_topic(broker, 2)
    before = asyncio.all_tasks()
    for rounds in range(0, 240, 8):
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=topic, session_timeout=30.0)
        host = RecordingHost()
        async with source.open(host):
            for _ in range(rounds):
                await real_clock.sleep(0)
        assert host.open == []
        assert asyncio.all_tasks() == before


async def test_a_closed_source_opens_again_and_continues(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """With another host, at the stored position; but not while it is open."""
    topic = await kafka_help.new_topic(broker)
    await kafka_help.fill(broker, topic, 3)
    source = KafkaSource(topic, bootstrap=broker.bootstrap, group=topic, session_timeout=30.0)
    for start in range(3):
        host = RecordingHost()
        async with source.open(host):
            (claim,) = await host.wait_for_claims(1)
            assert claim.start == Position(start)
            [fetched] = await source.fetch([claim], 1) or []
            assert [record.offset for record in fetched.records] == [start]
            assert list(await source.commit({claim: Position(start + 1)})) == [claim]
            with pytest.raises(ConfigError, match="already open"):
                await source.open(RecordingHost()).__aenter__()
            assert not claim.is_closed
        assert claim.is_closed
    with pytest.raises(ClosedError):
        await source.fetch([], 1)


async def test_two_sources_of_one_process_share_a_group(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """Each has half of the partitions, and its own end."""
    topic = await kafka_help.new_topic(broker, 4)
    one, other = (
        KafkaSource(topic, bootstrap=broker.bootstrap, group=topic, session_timeout=30.0)
        for _ in range(2)
    )
    news = News()
    host, second = RecordingHost(news), RecordingHost(news)
    async with one.open(host):
        await host.wait_for_claims(4)
        async with other.open(second):
            await news.wait_for(lambda: len(host.open) == len(second.open) == 2)
            held = {claim.partition for claim in host.open + second.open}
            assert len(held) == 4
        assert second.open == []
        await host.wait_for_claims(4)


async def test_a_seek_of_what_is_not_assigned_has_no_effect(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """For example after a concurrent rebalance: aiokafka raises an AssertionError then."""
    topic = await kafka_help.new_topic(broker)
    session = Session.of(
        MemberOptions.of(
            access=KafkaAccess(broker.bootstrap, close_timeout=2.0),
            group=topic,
            instance=None,
            session_timeout=30.0,
            rebalance_timeout=5.0,
            max_poll_interval=10.0,
            commit_timeout=2.0,
            client={},
        )
    )
    await session.start(2.0)
    session.seek(TopicPartition(topic, 0), 3)
    session.pause(TopicPartition(topic, 0))
    await session.stop(2.0)


async def test_a_session_that_dies_is_followed_by_another_one_and_told(
    broker: EmbeddedKafka, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    """By an error at which aiokafka gives up: the claims end and begin again."""
    topic = await kafka_help.new_topic(broker)
    source = KafkaSource(topic, bootstrap=broker.bootstrap, group=topic, session_timeout=30.0)
    host = RecordingHost()

    async def broken() -> None:
        raise ZeroDivisionError("as a bug would")

    async with source.open(host):
        (first,) = await host.wait_for_claims(1)
        fetch = asyncio.get_running_loop().create_task(source.fetch([first], 1))
        sessions: Any = source._sessions
        coordinator = sessions._session._client._coordinator
        coordinator.ensure_coordinator_known = broken
        coordinator.request_rejoin()
        await host.news.wait_for(lambda: first.is_closed and host.open)
        fetch.cancel()
        await host.news.wait_for(lambda: host.reports[-1] is None)
    assert any("as a bug would" in (trouble or "") for trouble in host.reports)
    ours = [each for each in caplog.records if each.name == "sluicegate.kafka"]
    assert not [each for each in ours if each.levelname == "ERROR"], "nothing was lost"
