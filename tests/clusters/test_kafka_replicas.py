"""Replicas that are missing, and records that the cluster itself loses."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from logging import ERROR, WARNING
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import NewTopic
from tests.clusters import kafka_leaders
from tests.kafka.confluent.confluent_help import source_of
from tests.kafka.sink.sink_help import items
from tests.kafka.source.kafka_help import admin_of, new_name, new_topic, producer_of
from tests.kafka.source.storm_help import Watch, log_lines, member
from tests.kafka.state.state_counted import Counted
from tests.kafka.state.state_topics import all_committed, settled_state

from sluicegate import Batcher, Consumer, Limits, Retry, flow, stack
from sluicegate.consumer import Commits, TopicPartition
from sluicegate.kafka import KafkaAccess, KafkaSink, KafkaSource, KafkaState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")


async def in_sync(kafka: EmbeddedKafka, topic: str, replicas: set[int]) -> None:
    """Wait until these replicas are in sync."""
    async with asyncio.timeout(100):
        while await asyncio.to_thread(kafka_leaders.in_sync, kafka, topic) != replicas:
            pass  # each is a request to a broker


def batcher_of(kafka: EmbeddedKafka, topic: str) -> Batcher[Any]:
    access = KafkaAccess(kafka.bootstrap, request_timeout=2.0)
    sink = KafkaSink(topic, bootstrap=access)
    return Batcher(stack(sink, Retry(attempts=3)), limits=Limits(max_items=50, max_delay=0.01))


async def test_too_few_replicas_in_sync_are_an_outage(kafka: EmbeddedKafka) -> None:
    """It uses up no attempt, is told, and ends when the replica is back."""
    topic = await new_topic(kafka, settings={"min.insync.replicas": "3"})
    async with log_lines() as log, batcher_of(kafka, topic) as batcher:
        await batcher.deliver(0)
        follower = next(
            each for each in kafka.running if each != kafka_leaders.leader_of(kafka, topic)
        )
        await asyncio.to_thread(kafka.pause, follower)
        await in_sync(kafka, topic, {1, 2, 3} - {follower})
        receipts = [await batcher.submit(number) for number in range(1, 100)]
        await log.wait("the destination has been unavailable")
        assert not any(each.done for each in receipts)
        await asyncio.to_thread(kafka.resume, follower)
        async with asyncio.timeout(100):
            for each in receipts:
                await each
    assert await items(kafka, topic) == [*range(100)]


async def unclean_topic(kafka: EmbeddedKafka, **settings: str) -> str:
    """A topic of the first two nodes, which may lose acknowledged records."""
    first, second, _ = kafka.running
    topic = new_name("unclean")
    given = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1", **settings}
    async with admin_of(kafka) as admin:
        assigned = NewTopic(topic, -1, -1, {0: [first, second]}, topic_configs=given)
        await admin.create_topics([assigned])
    async with producer_of(kafka) as producer:
        await producer.partitions_for(topic)
    return topic


async def written(batcher: Batcher[Any], numbers: Iterable[int]) -> None:
    """Write these numbers through connections that exist: a new one may wait for a frozen node."""
    for each in [await batcher.submit(number) for number in numbers]:
        await each


@asynccontextmanager
async def losing(kafka: EmbeddedKafka, topic: str) -> AsyncIterator[None]:
    """Lose the acknowledged records that are written inside."""
    first, second, _ = kafka.running
    await asyncio.to_thread(kafka.pause, second)
    await in_sync(kafka, topic, {first})
    yield
    await asyncio.to_thread(kafka.kill, first)
    await asyncio.to_thread(kafka.resume, second)


@pytest.mark.long
@pytest.mark.parametrize(("has_grown", "is_closed"), [(False, False), (True, False), (True, True)])
async def test_records_lost_by_an_unclean_election_are_told(
    kafka: EmbeddedKafka, has_grown: bool, is_closed: bool
) -> None:
    """The only replica in sync is lost, and an older one leads: 50 acknowledged records are gone,
    and the positions of consumers are behind the end of the log. They begin again at `start`. If the
    log has grown beyond the positions by then, only librdkafka detects it, also if the consumer was
    closed meanwhile.
    """
    first, second, _ = kafka.running
    topic = await unclean_topic(kafka)
    grown = range(150, 250) if has_grown else ()
    kept = [*range(100), *grown, *range(250, 300)]
    names = ["confluent"] if has_grown else ["aiokafka", "confluent"]
    groups = {name: new_name(name) for name in names}
    times: dict[str, Any] = {"session_timeout": 15.0, "rebalance_timeout": 20.0}
    seen: dict[str, list[int]] = {name: [] for name in groups}

    def handler(name: str) -> Any:
        async def handle(message: Any) -> None:
            seen[name].append(json.loads(message.value))

        return handle

    async with AsyncExitStack() as contexts:
        log = await contexts.enter_async_context(log_lines())
        access = KafkaAccess(kafka.bootstrap, request_timeout=2.0)
        sources: dict[str, Any] = {
            "aiokafka": lambda group: KafkaSource(topic, bootstrap=access, group=group, **times),
            "confluent": lambda group: source_of(kafka, topic, group, bootstrap=access, **times),
        }
        members = [
            await contexts.enter_async_context(member(sources[name](group), handler(name)))
            for name, group in groups.items()
        ]
        batcher = await contexts.enter_async_context(batcher_of(kafka, topic))
        await written(batcher, range(100))
        await asyncio.to_thread(kafka.pause, second)
        await in_sync(kafka, topic, {first})
        await written(batcher, range(100, 150))
        for each in members:
            await each.stored(150)
            if is_closed:
                await each.stop()
        await asyncio.to_thread(kafka.kill, first)
        writing = asyncio.ensure_future(written(batcher, grown))
        await asyncio.to_thread(kafka.resume, second)
        if is_closed:
            await writing
            members = [
                await contexts.enter_async_context(member(sources[name](group), handler(name)))
                for name, group in groups.items()
            ]
        for name in groups.values():
            await log.wait(f"{name}: {topic}/0 .* reading begins again at 0", ERROR)
        await writing
        await written(batcher, range(250, 300))
        for each in members:
            await each.handled_count((0 if is_closed else 150) + len(kept))
    await asyncio.to_thread(kafka.start, first)
    assert [*seen.values()] == [[*range(150), *kept]] * len(names)
    assert await items(kafka, topic) == kept


@pytest.mark.long
async def test_a_transaction_begins_again_if_its_source_has_lost_records(
    kafka: EmbeddedKafka,
) -> None:
    """It is told; what was committed stays, and the kept records are committed again."""
    first, *_ = kafka.running
    topic, out = await unclean_topic(kafka), await new_topic(kafka)
    access, watch = KafkaAccess(kafka.bootstrap, request_timeout=2.0), Watch()
    times: dict[str, Any] = {"session_timeout": 15.0, "rebalance_timeout": 20.0}
    made = flow.transaction(
        KafkaSource(topic, bootstrap=access, group=new_name("group"), **times),
        KafkaSink(out, bootstrap=access),
        lambda message: message.value,
        drain=2.5,
        commits=Commits(every=0.05),
        observers=[watch],
    )
    async with log_lines() as log, asyncio.timeout(100), batcher_of(kafka, topic) as batcher:
        running = asyncio.ensure_future(made.run())
        await written(batcher, range(100))
        async with losing(kafka, topic):
            await written(batcher, range(100, 150))
            await watch.stored(150)
        await log.wait("ends at 100, before the next offset, 150", ERROR)
        await watch.news.until(lambda: watch.commits[-1][0] == {TopicPartition(topic, 0): 100})
        await written(batcher, range(150, 200))
        await watch.news.until(lambda: watch.commits[-1][0] == {TopicPartition(topic, 0): 150})
        made.stop()
        await running
    await asyncio.to_thread(kafka.start, first)
    found = [json.loads(each.value) for each in await all_committed(kafka, out)]
    assert found == [*range(150), *range(100), *range(150, 200)]


@pytest.mark.long
async def test_a_state_that_has_lost_changes_is_refused(kafka: EmbeddedKafka) -> None:
    """The positions are kept by other replicas: the next events would be added to an older state."""
    first, *_ = kafka.running
    made = Counted(kafka, await new_topic(kafka))
    made.name = await unclean_topic(kafka, **{"cleanup.policy": "compact"})
    async with asyncio.timeout(100), counting(made) as (batcher, watch):
        await written(batcher, range(5))
        await watch.stored(5)
        async with losing(kafka, made.name):
            await written(batcher, range(5))
            await watch.stored(10)
    assert made.handled == [*range(10)]
    await asyncio.to_thread(kafka.start, first)
    assert "was moved without the state" in await made.refused()


@pytest.mark.long
async def test_transactions_wait_for_replicas_in_sync(kafka: EmbeddedKafka) -> None:
    """A state and its position, and rows and theirs, are committed once when the replica is back."""
    settings = {"min.insync.replicas": "3"}
    made, out = Counted(kafka, await new_topic(kafka)), await new_topic(kafka, settings=settings)
    made.name = await new_topic(kafka, settings={"cleanup.policy": "compact", **settings})
    access, watch = KafkaAccess(kafka.bootstrap, request_timeout=2.0), Watch()
    times: dict[str, Any] = {"session_timeout": 15.0, "rebalance_timeout": 20.0}
    rows = flow.transaction(
        KafkaSource(made.topic, bootstrap=access, group=new_name("group"), **times),
        KafkaSink(out, bootstrap=access),
        lambda message: message.value,
        drain=2.5,
        commits=Commits(every=0.05),
        observers=[watch],
    )
    leaders = {kafka_leaders.leader_of(kafka, each) for each in (out, made.name)}
    follower = next(each for each in kafka.running if each not in leaders)
    async with asyncio.timeout(120), counting(made) as (batcher, counted), log_lines() as log:
        running = asyncio.ensure_future(rows.run())
        await written(batcher, range(5))
        await watch.stored(5)
        await counted.stored(5)
        await asyncio.to_thread(kafka.pause, follower)
        for each in (out, made.name):
            await in_sync(kafka, each, {1, 2, 3} - {follower})
        await written(batcher, range(5))
        await log.wait("NOT_ENOUGH_REPLICAS|NotEnoughReplicas|unavailable", WARNING)
        for seen in (watch, counted):
            stored = [offsets for offsets, error in seen.commits if error is None and offsets]
            assert stored[-1] == {made.part: 5}
        await asyncio.to_thread(kafka.resume, follower)
        await watch.stored(10)
        await counted.stored(10)
        rows.stop()
        await running
    found = await settled_state(kafka, made.name, made.group, made.part)
    assert (found.position, found.state) == (10, {"n": 10})
    assert [each.value for each in await all_committed(kafka, out)] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ] * 2


@asynccontextmanager
async def counting(made: Counted) -> AsyncIterator[tuple[Batcher[Any], Watch]]:
    """A consumer with state, the commits of which are seen, and a batcher into its topic."""
    access, watch = KafkaAccess(made.broker.bootstrap, request_timeout=2.0), Watch()
    times: dict[str, Any] = {"session_timeout": 15.0, "rebalance_timeout": 20.0}
    source = KafkaSource(made.topic, bootstrap=access, group=made.group, **times)
    async with (
        batcher_of(made.broker, made.topic) as batcher,
        KafkaState(bootstrap=access, topic=made.name) as state,
        Consumer(
            state.attach(source),
            ordering="partition",
            commits=Commits(every=0.05),
            drain=2.5,
            observers=[watch],
        ) as consumer,
    ):
        task = asyncio.ensure_future(consumer.run_events(made.handle, state=state))
        yield batcher, watch
        consumer.stop()
        await task
