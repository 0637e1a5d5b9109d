"""One Kafka for all tests of this folder."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.sources.kafka.conftest import own_broker
from tests.sources.kafka.kafka_help import make_groups_ready

from penstock.testing import embedded_kafka
from penstock.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing import EmbeddedKafka

__all__ = ["own_broker"]

SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
}
"""The broker tells members with the other protocol how often they report; 5 s by default."""


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedKafka]:
    """Shared: tests that stop or kill a broker start one of their own."""
    with there_or_skip("kafka", embedded_kafka(SETTINGS)) as broker:
        with ThreadPoolExecutor(1) as beside:  # a test's loop may run here already
            beside.submit(asyncio.run, make_groups_ready(broker)).result()
        yield broker
