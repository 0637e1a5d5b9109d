"""Clusters, each started once: tests leave all of their nodes running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.kafka_brokers import SETTINGS

from sluicegate.testing import embedded_kafka
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.testing import EmbeddedKafka


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[EmbeddedKafka]:
    """Three brokers. Skips without Java, unless `SLUICEGATE_REQUIRE` names `kafka`."""
    with there_or_skip("kafka", embedded_kafka(SETTINGS, brokers=3)) as cluster:
        if not cluster.is_ours:
            pytest.skip("a broker that is not ours is not killed")
        yield cluster


@pytest.fixture
def kafka(kafka_cluster: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """The same, with all nodes running before and after the test."""
    kafka_cluster.resume()
    kafka_cluster.start()
    yield kafka_cluster
    kafka_cluster.resume()
