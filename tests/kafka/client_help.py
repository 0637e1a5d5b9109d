"""The sources of topics, by client and group protocol, with short timeouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.confluent.confluent_help import source_of
from tests.kafka.source.storm_help import QUICK

from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from sluicegate.kafka import ConfluentKafkaSource
    from sluicegate.testing import EmbeddedKafka

KINDS = ("aiokafka", "cooperative", "consumer")
OFTEN = 200
"""Milliseconds between two looks for new topics and partitions."""


def each_kind(first: str) -> pytest.MarkDecorator:
    """Each kind of source as the argument `kind`; all but the first in `make long` only."""
    return pytest.mark.parametrize(
        "kind",
        [pytest.param(each, marks=() if each == first else pytest.mark.long) for each in KINDS],
    )


def source_by(
    kind: str,
    broker: EmbeddedKafka,
    topic: str,
    group: str,
    *,
    client: dict[str, Any] | None = None,
    **given: Any,
) -> KafkaSource | ConfluentKafkaSource:
    """A source that reads committed records and often looks for new partitions."""
    if kind == "aiokafka":
        options = {"metadata_max_age_ms": OFTEN, "isolation_level": "read_committed"}
        return KafkaSource(
            topic,
            bootstrap=broker.bootstrap,
            group=group,
            client={**options, **(client or {})},
            **{**QUICK, **given},
        )
    options = {"topic.metadata.refresh.interval.ms": str(OFTEN)}
    return source_of(
        broker, topic, group, protocol=kind, client={**options, **(client or {})}, **given
    )
