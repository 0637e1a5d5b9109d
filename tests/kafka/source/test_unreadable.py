"""A partition that was unreadable for a while and has no later records. White box: the session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiokafka.errors import TopicAuthorizationFailedError
from tests.kafka.source.kafka_help import new_name, new_topic

from sluicegate.kafka import KafkaSource
from sluicegate.kafka.client.session import Session
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.consumer import SourceRecord, TopicPartition
    from sluicegate.testing import EmbeddedKafka


@pytest.mark.usefixtures("real_clock")
async def test_a_passing_error_of_an_idle_partition_is_over_with_the_next_answer(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """consumer/C:B4: otherwise a consumer of a quiet topic would never be ready again."""
    topic, host = await new_topic(broker), RecordingHost()
    errors = [TopicAuthorizationFailedError(topic)]

    async def take(self: Session, partition: TopicPartition, most: int) -> Sequence[SourceRecord]:
        if errors:
            raise errors.pop()
        return ()

    monkeypatch.setattr(Session, "has_arrived", lambda self, partition: True)
    monkeypatch.setattr(Session, "take", take)
    source = KafkaSource(topic, bootstrap=broker.bootstrap, group=new_name("group"))
    async with source.open(host):
        claims = await host.wait_for_claims(1)
        fetching = asyncio.create_task(source.fetch(claims, 10))
        await host.news.wait_for(lambda: len(host.reports) >= 2)
        fetching.cancel()
    told, over = host.reports[-2:]
    assert topic in str(told)
    assert over is None
