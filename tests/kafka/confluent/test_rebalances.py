"""Rebalances of three members, with both protocols: partitions that stay continue, and nothing is
lost or repeated.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from tests.kafka.confluent.confluent_help import PROTOCOLS, lose, source_of, stored
from tests.kafka.source.kafka_help import fill, new_name, new_topic, produce, store
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.source.storm_help import Member, member, run

from sluicegate.consumer import Commits, Position, TopicPartition

if TYPE_CHECKING:
    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

PARTITIONS = 6
SLOW = 20
"""In each partition, the offset of the record whose handler waits."""
HEARTBEATS = {"cooperative": Api.HEARTBEAT, "consumer": Api.GROUP_HEARTBEAT}
"""The heartbeats of a protocol."""


@pytest.mark.long
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_that_stay_handle_new_records_while_those_that_move_drain(
    broker: EmbeddedKafka, protocol: str
) -> None:
    """consumer/C:R3, consumer/C:N12, O-T7: a handler of each moving partition waits until records
    of all staying partitions that arrive during the drain have been handled and committed. There
    are three members at the end; every record is handled once.
    """
    run(_moved(broker, protocol))


@pytest.mark.soak
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("turn", range(15))
def test_partitions_that_stay_go_on_every_time(
    broker: EmbeddedKafka, protocol: str, turn: int
) -> None:
    """As above."""
    run(_moved(broker, protocol))


async def _moved(broker: EmbeddedKafka, protocol: str) -> None:
    topic, group = await new_topic(broker, PARTITIONS), new_name("group")
    for partition in range(PARTITIONS):
        await fill(broker, topic, 40, partition=partition)
    slow = asyncio.Event()
    waiting: set[int] = set()

    async def handle(message: Message) -> None:
        if message.offset == SLOW:
            waiting.add(message.partition)
            await slow.wait()

    async with AsyncExitStack() as stack:

        async def join() -> Member:
            source = source_of(broker, topic, group, protocol=protocol)
            options = {"drain": 25.0, "commits": Commits(every=0.05), "ordering": "unordered"}
            return await stack.enter_async_context(member(source, handle, **options))

        first = await join()
        await first.handled_count(39 * PARTITIONS)
        assert waiting == set(range(PARTITIONS))
        before = {*first.watch.owned}
        begun = first.watch.told("revoked")
        second = await join()
        await begun
        moving = {
            each for change, parts in first.watch.claims if change == "revoked" for each in parts
        }
        staying = before - moving
        assert moving
        assert staying
        sent = len(first.watch.commits)  # the late records may be committed as soon as handled
        for partition in range(PARTITIONS):
            await produce(broker, topic, (b"late", b""), partition=partition)
        late = {(each.partition, 40) for each in staying}
        await first.news.until(lambda: late <= {*first.handled})
        await first.news.until(
            lambda: any(
                error is None and staying & offsets.keys()
                for offsets, error in first.watch.commits[sent:]
            )
        )
        assert not slow.is_set()
        assert not second.handled
        slow.set()
        await second.owns(len(moving))
        third = await join()
        await asyncio.gather(*(each.owns(PARTITIONS // 3) for each in (first, second, third)))
        for partition in range(PARTITIONS):
            await produce(broker, topic, (b"last", b""), partition=partition)
        members = (first, second, third)
        total = 42 * PARTITIONS
        news = [
            asyncio.ensure_future(each.news.until(lambda: _count(members) >= total))
            for each in members
        ]
        await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
        for each in news:
            each.cancel()
    handled = [at for each in (first, second, third) for at in each.handled]
    assert len(handled) == len({*handled}) == total
    assert {at.offset for at in (await stored(broker, group)).values()} == {42}


def _count(members: tuple[Member, ...]) -> int:
    return sum(len(each.handled) for each in members)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_that_was_evicted_unknowingly_commits_nothing_into_the_empty_group(
    broker: EmbeddedKafka, protocol: str
) -> None:
    """consumer/C:C3, consumer/C:R2, O-T8: the position stored meanwhile stays, and the member
    continues there.
    """

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        partition = TopicPartition(topic, 0)
        await fill(broker, topic, 600)
        go_on = asyncio.Event()

        async def handle(message: Message) -> None:
            if message.offset == 100:
                await go_on.wait()

        options = {"ordering": "partition", "concurrency": 1, "commits": Commits(every=0.02)}
        # a busy machine may take longer to evict it than the quick session lasts
        times = {"session_timeout": 30.0} if protocol == "cooperative" else {}
        async with proxied(broker) as proxy:
            source = source_of(
                broker, topic, group, protocol=protocol, bootstrap=proxy.bootstrap, **times
            )
            async with member(source, handle, **options) as evicted:
                await evicted.stored(100)
                cut_off = proxy.hold(HEARTBEATS[protocol], "request")
                await cut_off.arrived.wait()
                await lose(broker, group, source)
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

    run(scenario())
