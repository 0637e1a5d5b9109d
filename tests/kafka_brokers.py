"""Two Kafka brokers for all tests of a process; each takes seconds to start and much memory."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka.source.own_help import OwnKafka

    from sluicegate.testing import EmbeddedKafka

SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "30000",
}
"""The broker's report interval for members with the newer protocol; 5 s by default."""


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedKafka]:
    """A shared broker: tests that stop, pause or kill a broker use `own_broker`.

    Skips without Java, unless `SLUICEGATE_REQUIRE` names `kafka`.
    """
    from sluicegate.testing import embedded_kafka

    with there_or_skip("kafka", embedded_kafka(SETTINGS)) as broker:
        _make_ready(broker)
        yield broker


@pytest.fixture(scope="session")
def own_broker() -> Iterator[OwnKafka]:
    """A broker that may be killed and frozen, and that requires passwords; tests leave it
    running.
    """
    from tests.kafka.source.own_help import own_kafka

    with there_or_skip("kafka", own_kafka()) as broker:
        _make_ready(broker)
        yield broker


def _make_ready(broker: EmbeddedKafka) -> None:
    from tests.kafka.source.kafka_help import make_groups_ready

    with ThreadPoolExecutor(1) as beside:  # a test's loop may already run here
        beside.submit(asyncio.run, make_groups_ready(broker)).result()
