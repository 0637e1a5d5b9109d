"""Static membership: members with a name of their own that they keep over restarts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.sources.kafka.kafka_help import new_name, new_topic

from penstock.sources.kafka import KafkaSource
from penstock.testing.conformance.source.host import RecordingHost

if TYPE_CHECKING:
    from penstock.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


def member(broker: EmbeddedKafka, topic: str, group: str, instance: str) -> KafkaSource:
    return KafkaSource(
        topic,
        bootstrap=broker.bootstrap,
        group=group,
        instance=instance,
        session_timeout=3.0,
        rebalance_timeout=6.0,
    )


class Host(RecordingHost):
    """A host that can wait for a trouble."""

    def __init__(self, wanted: str, seen: asyncio.Future[None]) -> None:
        super().__init__()
        self._wanted, self._seen = wanted, seen

    def reported(self, trouble: str | None) -> None:
        super().reported(trouble)
        if trouble is not None and self._wanted in trouble and not self._seen.done():
            self._seen.set_result(None)


async def test_two_members_with_one_instance_name_are_told(broker: EmbeddedKafka) -> None:
    """The broker gives the name to the last one, and aiokafka takes it back for
    ever.
    """
    topic, group = await new_topic(broker), new_name("group")
    seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    first = Host("instance='one' is used by two members", seen)
    async with member(broker, topic, group, "one").open(first):
        await first.wait_for_claims(1)
        async with member(broker, topic, group, "one").open(RecordingHost()):
            await seen


async def test_a_restart_under_the_same_name_leaves_the_other_members_alone(
    broker: EmbeddedKafka,
) -> None:
    """The name's partitions wait for it, for as long as its session lasts."""
    topic, group = await new_topic(broker, 2), new_name("group")
    staying, going = RecordingHost(), RecordingHost()
    async with member(broker, topic, group, "staying").open(staying):
        await staying.wait_for_claims(2)
        async with member(broker, topic, group, "going").open(going):
            (old,) = await going.wait_for_claims(1)
            (kept,) = await staying.wait_for_claims(1)
        returned = RecordingHost()
        async with member(broker, topic, group, "going").open(returned):
            (new,) = await returned.wait_for_claims(1)
            assert new.partition == old.partition
            assert staying.open == [kept]
