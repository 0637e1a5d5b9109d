"""Partitions that are added to a topic while a sink is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import NewPartitions
from tests.kafka.source.kafka_help import admin_of, end_of, new_topic

from sluicegate import PermanentError, RowBatch, send
from sluicegate.kafka import KafkaSink

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


@pytest.mark.long
async def test_a_record_for_an_added_partition_is_not_refused(broker: EmbeddedKafka) -> None:
    """The client does not know its number for up to five minutes."""
    topic = await new_topic(broker, 1)
    part: Any = lambda row: row["p"]  # noqa: E731
    async with KafkaSink(topic, bootstrap=broker.bootstrap, partition=part) as sink:
        assert await send(sink, RowBatch([{"p": 0}])) == {}
        async with admin_of(broker) as admin:
            await admin.create_partitions({topic: NewPartitions(total_count=2)})
        errors = await send(sink, RowBatch([{"p": 0}, {"p": 1}, {"p": 2}]))
        assert {at: type(error) for at, error in errors.items()} == {2: PermanentError}
        assert "has the partitions 0 to 1, not 2" in str(errors[2])
    assert await end_of(broker, topic, 1) == 1
