"""Commits of a former owner: Kafka would accept them, so they are not sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.kafka.source.kafka_help import (
    fill,
    members,
    new_name,
    new_topic,
    remove_member,
    store,
    stored,
)
from tests.kafka.source.proxy_help import Api, proxied, sent_commits
from tests.kafka.source.storm_help import QUICK, member, run

from sluicegate.consumer import Position, TopicPartition
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka


def test_a_member_that_was_evicted_unknowingly_does_not_commit_into_the_empty_group(
    broker: EmbeddedKafka,
) -> None:
    """consumer/O33, consumer/C:C3: while it is cut off, a new owner commits 500 and leaves: with
    generation -1, Kafka would accept the commit of the following revoke. consumer/C:R2, O-T8.
    """

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        partition = TopicPartition(topic, 0)
        await fill(broker, topic, 600)
        go_on = asyncio.Event()

        async def handle(message: Message) -> None:
            if message.offset == 100:
                await go_on.wait()

        async with proxied(broker) as proxy:
            source = KafkaSource(topic, bootstrap=proxy.bootstrap, group=group, **QUICK)
            async with member(source, handle, ordering="partition", concurrency=1) as evicted:
                await evicted.stored(100)
                cut_off = proxy.hold(Api.HEARTBEAT, "request")
                await cut_off.arrived.wait()
                (name,) = await members(broker, group)
                await remove_member(broker, group, name)
                await store(broker, group, {partition: Position(500)})
                evicted.consumer.pause()
                go_on.set()  # finished by a former member, whose heartbeat is in flight
                await evicted.handled_count(101)
                cut_off.open()
                await evicted.news.until(lambda: evicted.watch.count("assigned") == 2)
                assert await stored(broker, group) == {partition: Position(500)}
                assert evicted.watch.count("lost") == 1
                before = len(evicted.handled)
                evicted.consumer.resume()
                await evicted.stored(600)
                assert evicted.offsets[before:] == list(range(500, 600))
            assert min(each.generation for each in sent_commits(proxy)) > 0
            assert (await stored(broker, group))[partition].offset == 600

    run(scenario())


def test_a_commit_whose_answer_was_lost_is_not_sent_again_under_the_next_generation(
    broker: EmbeddedKafka,
) -> None:
    """consumer/C:C3, consumer/C:C6: the position stored by the new owner stays."""

    async def scenario() -> None:
        topic, group = await new_topic(broker, 2), new_name("group")
        for partition in (0, 1):
            await fill(broker, topic, 10, partition=partition)
        async with proxied(broker) as proxy:
            source = KafkaSource(
                topic,
                bootstrap=proxy.bootstrap,
                group=group,
                **QUICK,
                client={"retry_backoff_ms": 2500},
            )
            lost = proxy.hold(Api.COMMIT, "answer")
            async with member(source) as old:
                await lost.arrived.wait()
                await old.handled_count(20)
                other = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, **QUICK)
                async with member(other) as new:
                    await proxy.heard(Api.COMMIT, "answer")
                    lost.cut()
                    await new.owns(1)
                    (theirs,) = new.watch.owned
                    await old.owns(1)
                    (ours,) = old.watch.owned
                    await fill(broker, topic, 490, partition=theirs.partition)
                    await new.stored(500, theirs.partition)
                    await fill(broker, topic, 90, partition=ours.partition)
                    await old.stored(100, ours.partition)
                    both = await stored(broker, group)
                    assert both == {theirs: Position(500), ours: Position(100)}
                    sent = sent_commits(proxy)
                    newest = max(each.generation for each in sent)
                    ours_alone = [each.positions for each in sent if each.generation == newest]
                    assert {at for each in ours_alone for at in each} == {ours.partition}

    run(scenario())
