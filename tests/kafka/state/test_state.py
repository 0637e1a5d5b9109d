"""State in a compacted Kafka topic, stored in the transactions of the positions."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from state_counting import Counting, assert_replay, expected
from tests.kafka.source.child_help import Child, child_process
from tests.kafka.source.kafka_help import fill, new_name, new_topic, stored
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.state.state_topics import all_committed, settled_state, stored_state
from tests.sinks.test_down_behind_a_proxy import HOST
from tests.sinks.test_silent_connections import black_hole

from sluicegate import ConfigError, Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, Poison, TopicPartition
from sluicegate.kafka import KafkaAccess, KafkaRecord, KafkaSource, KafkaState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tests.kafka.source.own_help import OwnKafka

    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedKafka

pytestmark = pytest.mark.usefixtures("real_clock")

PROGRAM = Path(__file__).parents[2] / "flow/state_child.py"


async def until(broker: EmbeddedKafka, group: str, least: int, parts: int = 1) -> None:
    """Wait until the group's offsets of all partitions are stored."""
    async with asyncio.timeout(100):
        while True:
            at = await stored(broker, group)
            if len(at) == parts and min(each.offset for each in at.values()) >= least:
                return


@asynccontextmanager
async def consumed(
    broker: EmbeddedKafka,
    topic: str,
    group: str,
    name: str,
    handle: Callable[[EventContext], Any],
    *jobs: Any,
    through: str | None = None,
    request_timeout: float = 10.0,
    **options: Any,
) -> AsyncGenerator[Consumer]:
    """A consumer with state that runs until the block ends and is empty by then."""
    async with (
        KafkaState(
            bootstrap=KafkaAccess(through or broker.bootstrap, request_timeout=request_timeout),
            topic=name,
        ) as state,
        Consumer(
            state.attach(KafkaSource(topic, bootstrap=broker.bootstrap, group=group)),
            ordering="partition",
            commits=Commits(every=0.01),
            **options,
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        run = tasks.create_task(consumer.run_events(handle, jobs=jobs, state=state))
        yield consumer
        consumer.stop()
        assert (await run).complete


async def test_two_runs(broker: EmbeddedKafka) -> None:
    """consumer/G28: the second run continues with the state of the first; the group's offset
    matches the state.
    """
    topic, group, name = await new_topic(broker), new_name("state"), new_name("changes")
    for count in (300, 200):
        await fill(broker, topic, count)
        before = await stored(broker, group)
        at = before[TopicPartition(topic, 0)].offset if before else 0
        counting = Counting(count)
        async with consumed(broker, topic, group, name, counting.handle, counting.jobs):
            await until(broker, group, at + count)
        position, found, marks = await settled_state(broker, name, group, TopicPartition(topic, 0))
        assert position == at + count
        assert found == expected(range(position))
        assert [each["number"] for each in marks] == [*range(1, len(marks) + 1)]


@pytest.mark.long
async def test_silent_connections(broker: EmbeddedKafka) -> None:
    """Both clients continue on new connections; then new ones are silent too, and it ends in time."""
    topic, group, name = await new_topic(broker), new_name("state"), new_name("changes")
    partition, counting, count = TopicPartition(topic, 0), Counting(900), 300
    async with black_hole(int(broker.bootstrap.rpartition(":")[2])) as hole:
        where = f"{HOST}:{hole.port}"

        async def run() -> None:
            source = KafkaSource(
                topic, bootstrap=KafkaAccess(where, request_timeout=2.0), group=group
            )
            async with (
                KafkaState(bootstrap=KafkaAccess(where, request_timeout=1.0), topic=name) as state,
                Consumer(
                    state.attach(source),
                    ordering="partition",
                    commits=Commits(every=0.01),
                    drain=0.3,
                ) as consumer,
            ):
                await consumer.run_events(counting.handle, jobs=[counting.jobs], state=state)

        running = asyncio.ensure_future(run())
        for turn in (1, 2, 3):
            await fill(broker, topic, count)
            await until(broker, group, turn * count)
            position, found, _ = await settled_state(broker, name, group, partition)
            assert position == turn * count
            assert found == expected(range(position))
            hole.swallow()
        hole.swallows_new = True
        hole.swallow()
        began = LoopClock().now()
        running.cancel()
        await asyncio.wait([running])
        assert LoopClock().now() - began < 0.3 + 1.0 + 5.0


@pytest.mark.long
@pytest.mark.parametrize(
    "kills",
    [3, pytest.param(25, marks=pytest.mark.soak)],
)
async def test_kills(broker: EmbeddedKafka, kills: int) -> None:
    """G-T24: after each kill the state is exactly that of the events before its position."""
    chance, count = random.Random(kills), 1500 * kills
    topic, group, name = await new_topic(broker), new_name("state"), new_name("changes")
    await fill(broker, topic, count)
    options = {"bootstrap": broker.bootstrap, "topic": topic, "group": group, "state_topic": name}
    for seed, moment in enumerate(sorted(chance.sample(range(count - 1000), kills))):
        async with child_process(PROGRAM, **options, seed=seed) as process:
            await until(broker, group, moment)
            process.kill()
            await process.wait()
        position, found, _ = await stored_state(broker, name)
        assert_replay(position, found)
    async with child_process(PROGRAM, **options, seed=kills) as process:
        await Child(process).until(lambda told: told["event"] == "started")
        await until(broker, group, count)
        process.send_signal(signal.SIGTERM)
        errors = await Child(process).errors()
        assert await process.wait() == 0, errors
    position, found, _ = await settled_state(broker, name, group, TopicPartition(topic, 0))
    assert position == count
    assert_replay(position, found)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_two_processes(broker: EmbeddedKafka, how: signal.Signals) -> None:
    """G-T24: one process joins, the other is killed or frozen; each partition's state is always a
    replay of its events. A frozen process that resumes stores nothing.
    """
    count, parts = 2500, 2
    topic, group, name = await new_topic(broker, parts), new_name("state"), new_name("changes")
    for part in range(parts):
        await fill(broker, topic, count, partition=part)
    options = {"bootstrap": broker.bootstrap, "topic": topic, "group": group, "state_topic": name}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(child_process(PROGRAM, **options, seed=1))
        await until(broker, group, 200, parts)
        second = await stack.enter_async_context(child_process(PROGRAM, **options, seed=2))
        await until(broker, group, 1200, parts)
        first.send_signal(how)
        for part in range(parts):
            position, state, _ = await stored_state(broker, name, part)
            assert_replay(position, state)
        await until(broker, group, count, parts)
        if how == signal.SIGSTOP:
            first.send_signal(signal.SIGCONT)
            await LoopClock().sleep(3.0)  # time in which it must not store
            first.send_signal(signal.SIGTERM)
            await first.communicate()
        second.send_signal(signal.SIGTERM)
        errors = await Child(second).errors()
        assert await second.wait() == 0, errors
    for part in range(parts):
        position, state, _ = await settled_state(broker, name, group, TopicPartition(topic, part))
        assert position == count
        assert_replay(position, state)


@pytest.mark.long
async def test_a_broker_that_is_killed(own_broker: OwnKafka) -> None:
    """G-T24: events continue meanwhile; at the end the state contains each of them once."""
    count = 6000
    topic, group, name = await new_topic(own_broker), new_name("state"), new_name("changes")
    await fill(own_broker, topic, count)
    counting = Counting(0)
    async with consumed(
        own_broker, topic, group, name, counting.handle, counting.jobs, request_timeout=1.0
    ) as consumer:
        for least in (1000, 3000):
            while consumer.stats().counts.acked < least:
                await LoopClock().sleep(0.01)
            await asyncio.to_thread(own_broker.restart_at_once)
        await until(own_broker, group, count)
    position, found, _ = await settled_state(own_broker, name, group, TopicPartition(topic, 0))
    assert (position, found) == (count, expected(range(count)))


@pytest.mark.long
async def test_a_broker_that_is_frozen(own_broker: OwnKafka) -> None:
    """G-T24: transaction requests hang, and may or may not take effect when the broker
    continues.
    """
    count = 4000
    topic, group, name = await new_topic(own_broker), new_name("state"), new_name("changes")
    await fill(own_broker, topic, count)
    counting = Counting(0)
    async with consumed(
        own_broker, topic, group, name, counting.handle, counting.jobs, request_timeout=1.0
    ) as consumer:
        while consumer.stats().counts.acked < 1000:
            await LoopClock().sleep(0.01)
        await asyncio.to_thread(own_broker.pause)
        while consumer.stats().commit_failures < 2:
            await LoopClock().sleep(0.01)
        await asyncio.to_thread(own_broker.resume)
        while consumer.stats().counts.acked < count:
            await LoopClock().sleep(0.01)
        await until(own_broker, group, count)
    position, found, _ = await settled_state(own_broker, name, group, TopicPartition(topic, 0))
    assert (position, found) == (count, expected(range(count)))


@pytest.mark.long
@pytest.mark.parametrize("is_applied", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_answers_to_commits_are_lost(broker: EmbeddedKafka, *, is_applied: bool) -> None:
    """The outcome is verified: no change is lost, and no forwarded record is sent twice."""
    topic, out = await new_topic(broker), await new_topic(broker)
    group, name = new_name("state"), new_name("changes")
    await fill(broker, topic, 600)

    async def handle(context: EventContext) -> None:
        number = context.store.get("n", 0) + 1
        context.store.put("n", number)
        context.forward(KafkaRecord(out, str(number)))
        await LoopClock().sleep(0.001)

    async with proxied(broker) as proxy:
        async with consumed(
            broker, topic, group, name, handle, through=proxy.bootstrap, request_timeout=1.0
        ) as consumer:
            for least in (50, 300):
                while consumer.stats().counts.acked < least:
                    await LoopClock().sleep(0.001)
                failures = consumer.stats().commit_failures
                held = proxy.hold(Api.END_TRANSACTION, "answer" if is_applied else "request")
                while consumer.stats().commit_failures == failures:
                    await LoopClock().sleep(0.01)
                held.cut()
            await until(broker, group, 600)
    position, found, _ = await settled_state(broker, name, group, TopicPartition(topic, 0))
    assert (position, found) == (600, {"n": 600})
    assert [each.value for each in await all_committed(broker, out)] == [
        b"%d" % number for number in range(1, 601)
    ]


async def test_forwarded_records_are_sent_with_the_state(broker: EmbeddedKafka) -> None:
    """consumer/G-T20: readers of committed records see each record once and in order although turns
    fail; records of a failed turn are not sent.
    """
    topic, out = await new_topic(broker), await new_topic(broker, 1)
    group, name, tries = new_name("state"), new_name("changes"), dict[int, int]()
    await fill(broker, topic, 200)

    async def handle(context: EventContext) -> None:
        at = context.message.offset
        tries[at] = tries.get(at, 0) + 1
        number = context.store.get("n", 0) + 1
        context.store.put("n", number)
        context.forward(
            KafkaRecord(out, str(number), key=context.key, headers=[("at", b"%d" % at)])
        )
        if at % 7 == 0 and tries[at] == 1:
            raise ConnectionError("not yet")

    async with consumed(broker, topic, group, name, handle):
        await until(broker, group, 200)
    position, found, _ = await settled_state(broker, name, group, TopicPartition(topic, 0))
    assert (position, found) == (200, {"n": 200})
    sent = await all_committed(broker, out)
    assert [each.value for each in sent] == [b"%d" % number for number in range(1, 201)]
    assert [each.headers for each in sent] == [(("at", b"%d" % at),) for at in range(200)]
    assert sum(tries.values()) == 200 + 29


@pytest.mark.parametrize("record", ["text", {"topic": "t"}])
async def test_something_else_is_forwarded(broker: EmbeddedKafka, record: object) -> None:
    """The event fails."""
    topic, letters = await new_topic(broker), list[Any]()
    await fill(broker, topic, 2)
    group, name = new_name("state"), new_name("changes")

    async def handle(context: EventContext) -> None:
        context.store.put("n", context.store.get("n", 0) + 1)
        if context.message.offset == 0:
            context.forward(record)

    options: dict[str, Any] = {"poison": Poison("skip", dead_letters=letters.extend)}
    async with consumed(broker, topic, group, name, handle, **options):
        await until(broker, group, 2)
    assert ["must be a KafkaRecord" in each.message for each in letters] == [True]
    assert (await settled_state(broker, name, group, TopicPartition(topic, 0))).state == {"n": 1}


@pytest.mark.parametrize(
    "arguments",
    [
        {"topic": "a b", "value": "v"},
        {"topic": "t", "value": 7},
        {"topic": "t", "value": None},
        {"topic": "t", "value": "\ud800"},
        {"topic": "t", "value": "v", "headers": [("h", "text")]},
        {"topic": "t", "value": "v", "partition": -1},
    ],
)
def test_a_bad_record(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        KafkaRecord(**arguments)


@pytest.mark.long
async def test_a_forwarded_record_without_a_topic_stops_the_commits_until_there_is_one(
    broker: EmbeddedKafka,
) -> None:
    """No record is given up for it, and nothing is stored without it."""
    topic, out = await new_topic(broker), new_name("out")
    group, name = new_name("state"), new_name("changes")
    await fill(broker, topic, 3)

    async def handle(context: EventContext) -> None:
        context.store.put("n", context.store.get("n", 0) + 1)
        if context.message.offset == 1:
            context.forward(KafkaRecord(out, "v"))

    async with consumed(broker, topic, group, name, handle, request_timeout=1.0) as consumer:
        while consumer.stats().commit_failures < 2:
            await LoopClock().sleep(0.01)
        assert consumer.stats().counts.acked == 3
        assert await stored(broker, group) == {}
        assert (await stored_state(broker, name)).state == {}
        await new_topic(broker, name=out)
        await until(broker, group, 3)
    found = await settled_state(broker, name, group, TopicPartition(topic, 0))
    assert (found.position, found.state) == (3, {"n": 3})
    assert [each.value for each in await all_committed(broker, out)] == [b"v"]
