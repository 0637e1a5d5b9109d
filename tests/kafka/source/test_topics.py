"""Topics that appear while a source is open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kafka.source.kafka_help import fill, new_name, new_topic
from tests.kafka.source.storm_help import QUICK, member, run

from sluicegate.consumer import TopicPartition
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

OFTEN: dict[str, Any] = {**QUICK, "client": {"metadata_max_age_ms": 200}}


def test_a_topic_that_begins_to_match_the_pattern_is_read_beside_the_others(
    broker: EmbeddedKafka,
) -> None:
    """A topic that does not match is not read."""

    async def scenario() -> None:
        name, group = new_name(), new_name("group")
        for topic in (f"{name}.a", f"not-{name}.b"):
            await new_topic(broker, name=topic)
            await fill(broker, topic, 10)
        source = KafkaSource(
            pattern=f"{name}[.].*", bootstrap=broker.bootstrap, group=group, **OFTEN
        )
        async with member(source) as reader:
            await reader.handled_count(10)
            await new_topic(broker, name=f"{name}.c", partitions=2)
            await fill(broker, f"{name}.c", 10)
            await reader.handled_count(20)
            await reader.owns(3)
            assert {at.topic for at in reader.watch.owned} == {f"{name}.a", f"{name}.c"}
            assert TopicPartition(f"{name}.c", 1) in reader.watch.owned

    run(scenario())
