"""Closing a source at any moment of its life: nothing of it goes on, and it can be opened again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.sources.kafka import kafka_help

from penstock import LoopClock
from penstock.sources.kafka import KafkaSource
from penstock.testing.conformance.source.host import RecordingHost

if TYPE_CHECKING:
    from penstock.testing import EmbeddedKafka


async def test_closing_at_any_moment_leaves_no_claim_and_no_task(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """While it connects, joins, or reads its positions."""
    topic = await kafka_help.new_topic(broker, 2)
    before = asyncio.all_tasks()
    for rounds in range(0, 240, 4):
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=topic, session_timeout=3.0)
        host = RecordingHost()
        async with source.open(host):
            for _ in range(rounds):
                await real_clock.sleep(0)
        assert host.open == []
        assert asyncio.all_tasks() == before
