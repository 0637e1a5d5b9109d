"""A pipe that forwards records to another topic: its position follows what the broker has
stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka_piping import kafka_source, pipe_member
from tests.kafka.source.kafka_help import end_of, fill, new_name, new_topic, produce, stored
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.source.storm_help import run

from sluicegate import Backoff, Batcher, Limits, Retry, RetryPolicy, stack
from sluicegate.consumer import Position, TopicPartition
from sluicegate.kafka import KafkaSink

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedKafka

RECORDS = 200


def _value(record: Any) -> bytes:
    value: bytes = record.value
    return value


def _batcher(topic: str, bootstrap: str) -> Batcher[Any]:
    sink = KafkaSink(topic, bootstrap=bootstrap, value=_value)
    limits = Limits(max_items=50, max_delay=0.01)
    retry = Retry(backoff=Backoff(base=0.05, jitter="none"))
    return Batcher(stack(sink, retry), key=lambda record: record.key, limits=limits)


def test_a_position_waits_for_the_answers_of_the_other_topic(broker: EmbeddedKafka) -> None:
    """The answers are delayed and then lost: nothing is committed until new ones arrive, and each
    record is forwarded once. consumer/G-T20.
    """

    async def main() -> None:
        source, target = await new_topic(broker), await new_topic(broker)
        group, at = new_name("group"), TopicPartition(source, 0)
        await fill(broker, source, RECORDS)
        async with proxied(broker) as proxy:
            answers = proxy.hold(Api.PRODUCE, "answer")
            pipe = pipe_member(
                kafka_source(source, group, broker.bootstrap), _batcher(target, proxy.bootstrap)
            )
            async with pipe as member:
                await answers.arrived.wait()
                assert await end_of(broker, target) > 0, "the records had arrived"
                await member.pipe.commit()
                assert await stored(broker, group) in ({}, {at: Position(0)})
                answers.cut()
                await member.watch.stored(RECORDS)
        assert await stored(broker, group) == {at: Position(RECORDS)}
        assert await end_of(broker, target) == RECORDS, "sent again, and stored once"

    run(main())


def test_a_record_that_the_other_topic_refuses_keeps_the_position(broker: EmbeddedKafka) -> None:
    """consumer/G-T20."""

    async def main() -> None:
        source = await new_topic(broker)
        target = await new_topic(broker, settings={"max.message.bytes": "2000"})
        group, at = new_name("group"), TopicPartition(source, 0)
        await fill(broker, source, 5)
        await produce(broker, source, (b"large", bytes(5_000)))
        await fill(broker, source, 5)
        pipe = pipe_member(
            kafka_source(source, group, broker.bootstrap),
            _batcher(target, broker.bootstrap),
            poison="block",
            retry=RetryPolicy(attempts=1),
        )
        async with pipe as member:
            await member.poisoned(1)
            await member.watch.news.until(lambda: member.pipe.stats().source.counts.acked == 10)
        found = (await stored(broker, group))[at]
        assert found.offset == 5
        assert await end_of(broker, target) == 10, "those behind it have other keys"

    run(main())
