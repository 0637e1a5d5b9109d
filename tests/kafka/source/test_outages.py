"""Brokers that crash, freeze or do not answer: nothing is lost or repeated, and `stop` ends."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer
from tests.kafka.access_help import kafka_args
from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.source.storm_help import QUICK, log_lines, member, run
from tests.kafka.source.truth_help import Truth

from sluicegate.consumer import Commits, Position, TopicPartition
from sluicegate.kafka import KafkaSource

if TYPE_CHECKING:
    from tests.kafka.source.own_help import OwnKafka

    from sluicegate import Message
    from sluicegate.testing import EmbeddedKafka

BOUNDED: dict[str, Any] = {
    **QUICK,
    "session_timeout": 3.0,
    "close_timeout": 0.5,
    "commit_timeout": 0.5,
}
"""A source that ends within a second."""
AT_MOST = 30.0
"""Seconds for such an end on a busy machine; a bare client takes 40 s, or never ends."""


@pytest.mark.long
def test_a_broker_that_is_killed_and_started_again_costs_neither_records_nor_repeats(
    own_broker: OwnKafka,
) -> None:
    """Records finished during the outage are committed after it. consumer/C:C6, consumer/C:N12."""

    async def scenario() -> None:
        topic, group = await new_topic(own_broker), new_name("group")
        await fill(own_broker, topic, 100)
        down = asyncio.Event()

        async def handle(message: Message) -> None:
            if message.offset >= 50:
                await down.wait()

        times: dict[str, Any] = {**QUICK, "session_timeout": 30}
        source = KafkaSource(topic, bootstrap=own_broker.bootstrap, group=group, **times)
        async with log_lines() as log, member(source, handle, ordering="unordered") as reader:
            await reader.handled_count(50)
            await asyncio.to_thread(own_broker.kill)
            down.set()
            await reader.handled_count(100)
            await log.wait(f"no broker can be reached at {own_broker.bootstrap}")
            assert "source trouble" in reader.consumer.explain().reasons
            await asyncio.to_thread(own_broker.start)
            await log.wait("delivers again")
            await fill(own_broker, topic, 20)
            await reader.stored(120)
            assert sorted(reader.offsets) == list(range(120))
        assert (await stored(own_broker, group))[TopicPartition(topic, 0)] == Position(120)

    run(scenario())


def test_a_broker_that_is_frozen_for_a_while_costs_neither_records_nor_repeats(
    own_broker: OwnKafka,
) -> None:
    """Commits fail at their own deadline meanwhile, and each is followed by a newer one.
    consumer/C:C6.
    """

    async def scenario() -> None:
        topic, group = await new_topic(own_broker), new_name("group")
        await fill(own_broker, topic, 100)
        frozen = asyncio.Event()

        async def handle(message: Message) -> None:
            if message.offset >= 50:
                await frozen.wait()

        times: dict[str, Any] = {**QUICK, "commit_timeout": 0.5, "session_timeout": 30}
        source = KafkaSource(topic, bootstrap=own_broker.bootstrap, group=group, **times)
        async with log_lines() as log, member(source, handle, ordering="unordered") as reader:
            await reader.stored(50)
            own_broker.pause()
            try:
                frozen.set()
                await log.wait(r"a commit failed \(TimeoutError: the commit was not answered")
            finally:
                own_broker.resume()
            await fill(own_broker, topic, 20)
            await reader.stored(120)
            assert sorted(reader.offsets) == list(range(120))
            assert reader.watch.count("lost") == 0

    run(scenario())


def test_a_full_window_with_slow_handlers_stays_a_member_beyond_the_longest_poll_interval(
    broker: EmbeddedKafka,
) -> None:
    """consumer/O5, consumer/O6: a bare client that joined later and fetches as little has left the
    group by then. O-T4, consumer/C:B1.
    """

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await fill(broker, topic, 100)
        slow, full = asyncio.Event(), asyncio.Event()

        async def handle(message: Message) -> None:
            full.set()
            await slow.wait()

        async with proxied(broker) as proxy, proxied(broker) as theirs:
            times: dict[str, Any] = {**QUICK, "commit_timeout": 0.5, "max_poll_interval": 1.5}
            source = KafkaSource(topic, bootstrap=proxy.bootstrap, group=group, **times)
            async with member(source, handle, in_flight=5, drain=0.5) as reader:
                await full.wait()
                bare: Any = AIOKafkaConsumer(
                    topic,
                    bootstrap_servers=theirs.bootstrap,
                    group_id=new_name("group"),
                    max_poll_interval_ms=1_500,
                    heartbeat_interval_ms=300,
                    session_timeout_ms=6_000,
                )
                async with bare:
                    await theirs.heard(Api.LEAVE, "request")
                assert proxy.count(Api.LEAVE, "request") == 0
                assert proxy.count(Api.JOIN, "request") <= 2  # the first one requests a name
                slow.set()
                await reader.stored(100)
                assert sorted(reader.offsets) == list(range(100))
                assert [change for change, _ in reader.watch.claims] == ["assigned"]

    run(scenario())


@pytest.mark.parametrize("how", ["down", "frozen"])
def test_a_stop_has_an_end_while_the_broker_is(broker: EmbeddedKafka, how: str) -> None:
    """No task of the client is left behind. consumer/C:B3."""

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        await fill(broker, topic, 10)
        async with proxied(broker) as proxy:
            before = asyncio.all_tasks()
            source = KafkaSource(
                topic, **kafka_args(KafkaSource, proxy.bootstrap, group=group, **BOUNDED)
            )
            async with member(source) as reader:
                await reader.stored(10)
                if how == "down":
                    proxy.refuse()
                else:
                    for api in Api:
                        proxy.hold(api, "answer")
                async with asyncio.timeout(AT_MOST):
                    await reader.stop()
            proxy.refuse()
            assert await _left(before) == []

    run(scenario())


@pytest.mark.filterwarnings("ignore:Unclosed AIOKafkaConnection:ResourceWarning")
@pytest.mark.parametrize(
    "api",
    [
        Api.METADATA,
        Api.JOIN,
        *[pytest.param(api, marks=pytest.mark.soak) for api in (Api.COORDINATOR, Api.SYNC)],
        pytest.param(Api.POSITIONS, marks=pytest.mark.soak),
    ],
)
def test_a_stop_in_the_middle_of_a_start_has_an_end(broker: EmbeddedKafka, api: Api) -> None:
    """Whichever answer the client waits for. consumer/C:B3.

    aiokafka leaves its very first connection to the garbage collector in this case.
    """

    async def scenario() -> None:
        topic, group = await new_topic(broker), new_name("group")
        async with proxied(broker) as proxy:
            held = proxy.hold(api, "answer")
            before = asyncio.all_tasks()
            source = KafkaSource(
                topic, **kafka_args(KafkaSource, proxy.bootstrap, group=group, **BOUNDED)
            )
            async with member(source) as reader:
                await held.arrived.wait()
                async with asyncio.timeout(AT_MOST):
                    await reader.stop()
            proxy.refuse()
            assert await _left(before) == []

    run(scenario())
    gc.collect()


def test_a_stop_has_an_end_while_the_group_waits_for_another_member(
    broker: EmbeddedKafka,
) -> None:
    """A third member joins, and the second one does not notice. consumer/C:B3, consumer/C:R4."""

    async def scenario() -> None:
        topic, group = await new_topic(broker, 3), new_name("group")
        async with proxied(broker) as one, proxied(broker) as other:

            def source(bootstrap: str) -> KafkaSource:
                return KafkaSource(
                    topic, **kafka_args(KafkaSource, bootstrap, group=group, **BOUNDED)
                )

            async with member(source(one.bootstrap)) as leaving:
                async with member(source(other.bootstrap)) as deaf:
                    await deaf.news.until(lambda: deaf.watch.owned)
                    await leaving.news.until(lambda: 0 < len(leaving.watch.owned) < 3)
                    held = other.hold(Api.HEARTBEAT, "answer")
                    await held.arrived.wait()
                    joins = one.count(Api.JOIN, "request")
                    async with member(source(broker.bootstrap)):
                        await one.heard(Api.JOIN, "request", joins + 1)
                        async with asyncio.timeout(AT_MOST):
                            await leaving.stop()
                        held.open()

    run(scenario())


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_outages_of_every_kind_one_after_another_cost_nothing(
    own_broker: OwnKafka, seed: int
) -> None:
    """Killed, frozen or cut off while handlers finish; every commit is correct when it is sent."""
    chance, truth = random.Random(seed), Truth()

    async def handle(message: Message) -> None:
        truth.started("m", message)
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        truth.ended(message, finished=True)

    async def scenario() -> None:
        topic, group = await new_topic(own_broker, 3), new_name("group")
        async with proxied(own_broker, truth.check) as proxy:
            times: dict[str, Any] = {**QUICK, "session_timeout": 30, "commit_timeout": 0.5}
            source = KafkaSource(topic, bootstrap=proxy.bootstrap, group=group, **times)
            async with member(source, handle, commits=Commits(every=0.02)) as reader:
                for turn in range(1, 9):
                    for partition in range(3):
                        await fill(own_broker, topic, 300, partition=partition, keys=40)
                    await reader.handled_count(900 * (turn - 1) + chance.randrange(900))
                    how = chance.choice(["kill", "freeze", "cut"])
                    if how == "kill":
                        await asyncio.to_thread(own_broker.restart_at_once)
                    elif how == "freeze":
                        own_broker.pause()
                        await reader.failed_commit_or_handled(900 * turn)
                        own_broker.resume()
                    else:
                        proxy.cut()
                    await reader.handled_count(900 * turn)
                for partition in range(3):
                    await reader.stored(2_400, partition)
        assert truth.overlaps == []
        assert truth.untrue == []
        assert set(truth.starts.values()) == {1}
        assert {at.offset for at in (await stored(own_broker, group)).values()} == {2_400}

    run(scenario(), seconds=170)


async def _left(before: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """The client's remaining tasks, once those that are ending have ended."""
    for _ in range(10):
        await asyncio.sleep(0)
    after = asyncio.all_tasks() - before
    return [each for each in after if "aiokafka" in repr(each) and not each.done()]
