"""B-T40: a broker that is stopped, killed or frozen under a sink at full load."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka.sink.sink_help import Written, read
from tests.kafka.source.kafka_help import new_topic
from tests.kafka.source.storm_help import News, run

from sluicegate import (
    Batcher,
    DeadLetter,
    Limits,
    Observer,
    Retry,
    Timeout,
    UnavailableError,
    UnknownOutcomeError,
    stack,
)
from sluicegate.batcher import LoopClock
from sluicegate.kafka import KafkaAccess, KafkaSink
from sluicegate.sinks import MemorySink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kafka.source.own_help import OwnKafka

    from sluicegate import Batch, Outcome


class Counts(Observer):
    """The outcomes so far; tests can wait for a number of them."""

    def __init__(self) -> None:
        self.delivered = 0
        self._news = News()

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        self.delivered += len(indices)
        self._news.tell()

    async def until(self, delivered: int) -> None:
        """Wait for this number of delivered items."""
        await self._news.until(lambda: self.delivered >= delivered)


async def kill(broker: OwnKafka) -> None:
    await asyncio.to_thread(broker.restart_at_once)


async def restart(broker: OwnKafka) -> None:
    await asyncio.to_thread(broker.restart)


async def freeze(broker: OwnKafka) -> None:
    """Freeze the broker for longer than a request may take."""
    await asyncio.to_thread(broker.pause)
    try:
        await LoopClock().sleep(2.5)
    finally:
        await asyncio.to_thread(broker.resume)


EVENTS = {"killed": kill, "restarted": restart, "frozen": freeze}
KEYS, ITEMS = 40, 12_000


async def under_load(
    broker: OwnKafka, event: str, moment: int, *, timeout: float | None
) -> Counter[int]:
    """Return the copies of each item in the topic after an event at full load; check order and
    tally.
    """
    topic, letters, counts = await new_topic(broker, 4), MemorySink[Any](), Counts()
    sink = KafkaSink(
        topic,
        bootstrap=KafkaAccess(broker.bootstrap, request_timeout=1.0),
        key="key",
    )
    cut = [] if timeout is None else [Timeout(timeout)]
    batcher = Batcher(
        stack(sink, *cut, Retry(attempts=50), DeadLetter(letters)),
        key=lambda item: item["key"],
        limits=Limits(max_items=200, max_delay=0.01, workers=4),
        observers=[counts],
    )
    async with batcher:

        async def feed() -> None:
            for number in range(ITEMS):
                await batcher.add({"key": f"k{number % KEYS}", "number": number})

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(feed())
            await counts.until(moment)
            await EVENTS[event](broker)
    report = batcher.report
    assert report is not None
    assert report.complete
    assert report.tally.delivered == ITEMS, report.tally
    found = await read(broker, topic)
    times = Counter(each.item["number"] for each in found)
    assert {*times} == {*range(ITEMS)}
    firsts: dict[bytes | None, list[int]] = {}
    for each in found:
        numbers = firsts.setdefault(each.key, [])
        if each.item["number"] not in numbers:
            numbers.append(each.item["number"])
    assert all(numbers == sorted(numbers) for numbers in firsts.values())
    return times


@pytest.mark.long
@pytest.mark.parametrize(
    "event",
    ["killed", "restarted", "frozen"],
)
@pytest.mark.parametrize("timeout", [pytest.param(None, marks=pytest.mark.soak), 1.5])
def test_an_outage_at_full_load_costs_nothing_and_doubles_nothing(
    own_broker: OwnKafka, event: str, timeout: float | None
) -> None:
    """Every item is delivered and in the topic once, in order by key."""
    times = run(under_load(own_broker, event, ITEMS // 4, timeout=timeout))
    assert {*times.values()} == {1}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
def test_outages_at_random_moments(own_broker: OwnKafka, seed: int) -> None:
    """As above."""
    chance = random.Random(seed)
    event, timeout = chance.choice([*EVENTS]), chance.choice([None, 0.8, 3.0])
    moment = chance.randrange(ITEMS // 2)
    times = run(under_load(own_broker, event, moment, timeout=timeout), seconds=120)
    assert max(times.values()) == 1


@pytest.mark.long
def test_a_write_without_a_broker_ends_soon_and_is_unavailable_until_it_is_back(
    own_broker: OwnKafka,
) -> None:
    """Also the second attempt for items in doubt: an unreachable broker uses up no attempt."""

    async def scenario() -> None:
        topic = await new_topic(own_broker)
        sink = KafkaSink(topic, bootstrap=KafkaAccess(own_broker.bootstrap, request_timeout=0.5))
        async with sink:
            doubtful, fresh = Written([1]), Written([2])
            await asyncio.to_thread(own_broker.pause)
            errors = await doubtful.write(sink)
            assert isinstance(errors[0], UnknownOutcomeError)
            await asyncio.to_thread(own_broker.kill)
            try:
                for written in (doubtful, fresh):
                    began = LoopClock().now()
                    errors = await written.write(sink)
                    assert LoopClock().now() - began < 4
                    assert isinstance(errors[0], UnavailableError)
                    assert not isinstance(errors[0], UnknownOutcomeError)
                assert doubtful.batch.maybe_applied == {0}
                assert not fresh.batch.maybe_applied
            finally:
                await asyncio.to_thread(own_broker.start)
            while await fresh.write(sink):
                pass  # it knows no leader yet, and pauses between its attempts
            assert await doubtful.write(sink) == {}
            assert [each.item for each in await read(own_broker, topic)] == [1, 2]

    run(scenario())


@pytest.mark.long
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_shutdown_without_a_broker_has_an_end(own_broker: OwnKafka, is_frozen: bool) -> None:
    """Batcher and sink are closed by the deadline, and every item is accounted for."""

    async def scenario() -> None:
        topic = await new_topic(own_broker)
        sink = KafkaSink(
            topic,
            bootstrap=KafkaAccess(own_broker.bootstrap, request_timeout=30.0, close_timeout=0.5),
        )
        limits = Limits(max_items=10, max_delay=0.01)
        batcher = Batcher(stack(sink, Retry()), limits=limits, name="gone")
        async with batcher:
            await batcher.deliver(0)
            await asyncio.to_thread(own_broker.pause if is_frozen else own_broker.kill)
            try:
                for number in range(1, 100):
                    await batcher.add(number)
                began = LoopClock().now()
                report = await batcher.shutdown(deadline=1.5)
                assert LoopClock().now() - began < 2.5
                assert not sink.is_open
            finally:
                await asyncio.to_thread(own_broker.resume if is_frozen else own_broker.start)
        tally = report.tally
        assert (tally.delivered, tally.unsent + tally.unknown) == (1, 99)
        assert tally.unknown <= 10

    run(scenario())
