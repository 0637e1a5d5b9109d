"""Rebalances of real groups: no record lost or repeated, no key at two members at once."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.source.storm_help import QUICK, Member, member, run
from tests.kafka.source.truth_help import Truth

from sluicegate.consumer import Commits, TopicPartition
from sluicegate.kafka import KafkaAccess, KafkaSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

PARTITIONS = 6


def test_records_that_arrive_before_their_stored_position_are_not_lost(
    broker: EmbeddedKafka,
) -> None:
    """The stored position and its map are delayed while aiokafka, which has read the position for
    itself, fetches: the claim begins at the position, and the map's records are skipped.
    consumer/C:N1, consumer/C:C4, O-T10.
    """

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await fill(broker, topic, 100, keys=50)
        forever = asyncio.Event()

        async def stuck_at_5(message: Message) -> None:
            if message.offset == 5:
                await forever.wait()

        direct = KafkaSource(topic, bootstrap=broker.bootstrap, group=group, **QUICK)
        async with member(direct, stuck_at_5, drain=0.0) as first:
            await first.handled_count(98)
        at = (await stored(broker, group))[TopicPartition(topic, 0)]
        assert (at.offset, bool(at.metadata)) == (5, True)
        async with proxied(broker) as proxy:
            # once both have lost their answers, aiokafka is the first to repeat its own request
            lost = proxy.hold(Api.POSITIONS, "answer")
            again = iter([False, True])
            source = KafkaSource(
                topic,
                bootstrap=proxy.bootstrap,
                group=group,
                **QUICK,
                client={"retry_backoff_ms": 10},
            )
            async with member(source) as second:
                await lost.arrived.wait()
                held = proxy.hold(Api.POSITIONS, "answer", lambda _: next(again, False))
                lost.cut()
                await held.arrived.wait()
                await proxy.heard(Api.FETCH, "answer")
                assert not second.watch.owned
                assert not second.consumer.ready
                held.open()
                await fill(broker, topic, 20, keys=20)
                await second.stored(120)
                assert set(second.offsets) == {5, 55, *range(100, 120)}
                assert len(second.offsets) == 22

    run(scenario())


@pytest.mark.long
def test_members_that_join_and_leave_share_no_key_and_repeat_only_what_was_cut(
    broker: EmbeddedKafka,
) -> None:
    """Three members; some handlers outlast the drain, others end within it: no overlap of a key, no
    duplicate of a handler that ends in time, and every commit is correct when it is sent.
    consumer/C:N12, consumer/C:R1, consumer/C:R4, consumer/C:C3, consumer/C:C4, consumer/C:C5, O-T7,
    O-T8.
    """
    run(_churn(broker, random.Random(20), "join join leave", records=600))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_members_that_join_and_leave_for_long_share_no_key(
    broker: EmbeddedKafka, seed: int
) -> None:
    """As above, with more records and changes."""
    changes = "join join leave join leave leave join join leave join leave"
    run(_churn(broker, random.Random(seed), changes, records=2_000), seconds=170)


async def _churn(
    broker: EmbeddedKafka, chance: random.Random, changes: str, *, records: int
) -> None:
    """Change the members of a group while they handle records; check what their handlers saw."""
    topic, group, truth = await new_topic(broker, PARTITIONS), new_name("group"), Truth()
    stage = _Stage(truth, chance)
    async with AsyncExitStack() as stack:
        members: list[Member] = []

        async def join() -> None:
            proxy = await stack.enter_async_context(proxied(broker, truth.check))
            times: dict[str, Any] = {"session_timeout": 3.0, "rebalance_timeout": 8.0}
            source = KafkaSource(topic, bootstrap=proxy.bootstrap, group=group, **times)
            name = f"m{stage.number}"
            handle = stage.handler(name)
            options = {
                "drain": 0.3,
                "commits": Commits(every=0.02),
                "concurrency": 200,
                "name": name,
            }
            members.append(await stack.enter_async_context(member(source, handle, **options)))

        await join()
        await members[0].owns(PARTITIONS)
        for change in changes.split():
            stage.begin()
            for partition in range(PARTITIONS):
                await fill(broker, topic, records // PARTITIONS, partition=partition, keys=40)
            await truth.news.until(lambda: stage.slow >= 20)
            if change == "join":
                told = [each.watch.told("revoked") for each in members]
                await join()
                await asyncio.gather(*told)
                stage.in_time.set()
            else:
                leaving = members.pop(chance.randrange(len(members)))
                asyncio.get_running_loop().call_soon(stage.in_time.set)
                await leaving.stop()
            for each in members:
                await each.owns(PARTITIONS // len(members))
            stage.over.set()
            total = stage.number * PARTITIONS * (records // PARTITIONS)
            await truth.have_finished(total)
    assert truth.overlaps == []
    assert truth.untrue == []
    assert {at for at, times in truth.starts.items() if times != 1 + truth.cuts[at]} == set()
    assert set(truth.finished.values()) == {1}
    assert truth.cuts
    assert truth.commits > len(changes.split())
    end = stage.number * (records // PARTITIONS)
    assert {at.offset for at in (await stored(broker, group)).values()} == {end}


class _Stage:
    """One change of the members, and the events that handlers wait for during it."""

    def __init__(self, truth: Truth, chance: random.Random) -> None:
        self._truth = truth
        self._chance = chance
        self.number = 0
        self.slow = 0
        self.begin()
        self.number = 0

    def begin(self) -> None:
        """Begin the next stage."""
        self.number += 1
        self.slow = 0
        self.in_time, self.over = asyncio.Event(), asyncio.Event()

    def handler(self, name: str) -> Callable[[Message], Awaitable[None]]:
        """The handler of a member: quick, within the drain, or until the change is over."""

        async def handle(message: Message) -> None:
            self._truth.started(name, message)
            finished = False
            try:
                await self._wait(message)
                finished = True
            finally:
                self._truth.ended(message, finished=finished)

        return handle

    async def _wait(self, message: Message) -> None:
        kind = self._chance.random()
        if kind < 0.05:
            self.slow += 1
            self._truth.news.tell()
            await (self.in_time if kind < 0.03 else self.over).wait()
        for _ in range(self._chance.randrange(10)):
            await asyncio.sleep(0)


def test_a_joining_member_whose_connections_are_cut_during_a_drain_repeats_nothing(
    broker: EmbeddedKafka,
) -> None:
    """It joins again each time. consumer/C:N12, consumer/C:R1."""

    async def scenario() -> None:
        topic, group = await new_topic(broker, 2), new_name("group")
        for partition in (0, 1):
            await fill(broker, topic, 50, partition=partition)
        slow, full = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            if message.offset == 25:
                full.set()
                await slow.wait()

        async with proxied(broker) as proxy:

            def source(bootstrap: str) -> KafkaSource:
                access = KafkaAccess(bootstrap, request_timeout=1.0)
                return KafkaSource(topic, bootstrap=access, group=group, session_timeout=30.0)

            async with member(source(broker.bootstrap), handle, drain=30.0) as old:
                await old.handled_count(90)
                async with member(source(proxy.bootstrap)) as new:
                    await old.watch.told("revoked")
                    for joins in (2, 3, 4):
                        await proxy.heard(Api.JOIN, "request", joins)
                        proxy.cut()
                    slow.set()
                    await new.owns(1)
                    await old.owns(1)
                    await fill(broker, topic, 10, partition=0)
                    await fill(broker, topic, 10, partition=1)
                    ours, theirs = ([each.partition for each in m.watch.owned] for m in (old, new))
                    await old.stored(60, ours[0])
                    await new.stored(60, theirs[0])
                    handled = old.handled + new.handled
                    assert len(handled) == len(set(handled)) == 120

    run(scenario())
