"""One Kafka for all tests of this folder."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.sources.kafka.kafka_help import make_groups_ready
from tests.sources.kafka.own_help import own_kafka

from penstock.testing import embedded_kafka
from penstock.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sources.kafka.own_help import OwnKafka

    from penstock.testing import EmbeddedKafka


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedKafka]:
    """Shared: tests that stop, pause or kill a broker start one of their own.

    Skips without Java, unless `PENSTOCK_REQUIRE` names `kafka`.
    """
    settings = {"group.min.session.timeout.ms": "1000"}
    with there_or_skip("kafka", embedded_kafka(settings)) as broker:
        with ThreadPoolExecutor(1) as beside:  # a test's loop may run here already
            beside.submit(asyncio.run, make_groups_ready(broker)).result()
        yield broker


@pytest.fixture(scope="session")
def own_broker() -> Iterator[OwnKafka]:
    """One that may be killed and frozen, and that asks for passwords; tests leave it running."""
    with there_or_skip("kafka", own_kafka()) as broker:
        with ThreadPoolExecutor(1) as beside:
            beside.submit(asyncio.run, make_groups_ready(broker)).result()
        yield broker
