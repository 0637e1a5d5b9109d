"""Static membership: each member needs its own name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.source.kafka_help import new_name, new_topic

from sluicegate.kafka import KafkaSource
from sluicegate.testing.conformance.source.subject import News, RecordingHost

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka


@pytest.mark.usefixtures("real_clock")
async def test_two_members_of_one_name_are_told_that_they_evict_each_other(
    broker: EmbeddedKafka,
) -> None:
    """The broker tells each only that it is no longer a member."""
    topic, group = await new_topic(broker), new_name("group")

    def member() -> KafkaSource:
        times: dict[str, Any] = {"session_timeout": 1.0, "rebalance_timeout": 6.0}
        return KafkaSource(topic, bootstrap=broker.bootstrap, group=group, instance="a", **times)

    one, other = member(), member()
    news = News()
    hosts = [RecordingHost(news), RecordingHost(news)]
    async with one.open(hosts[0]), other.open(hosts[1]):
        await news.wait_for(lambda: any("instance='a'" in str(each.reports) for each in hosts))


@pytest.mark.usefixtures("real_clock")
async def test_a_restart_under_the_same_name_leaves_the_other_members_alone(
    broker: EmbeddedKafka,
) -> None:
    """The partitions of the name wait for it until its session expires."""
    topic, group = await new_topic(broker, 2), new_name("group")

    def named(instance: str) -> KafkaSource:
        times: dict[str, Any] = {"session_timeout": 3.0, "rebalance_timeout": 6.0}
        return KafkaSource(
            topic, bootstrap=broker.bootstrap, group=group, instance=instance, **times
        )

    staying, going = RecordingHost(), RecordingHost()
    async with named("staying").open(staying):
        await staying.wait_for_claims(2)
        async with named("going").open(going):
            (old,) = await going.wait_for_claims(1)
            (kept,) = await staying.wait_for_claims(1)
        returned = RecordingHost()
        async with named("going").open(returned):
            (new,) = await returned.wait_for_claims(1)
            assert new.partition == old.partition
            assert staying.open == [kept]
