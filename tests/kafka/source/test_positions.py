"""The stored positions and maps contain exactly what handlers have finished, according to the
broker. White box: the map of offsets beside a position.

Planted faults, and the test that detects each:

- a position that passes an unfinished record, a map without the newest one, a commit only when the
  position has moved: `test_the_broker_has_exactly_what_is_finished`;
- a position that stops at a transaction's marker: the same one, at its end;
- a revoke that does not wait, or stores what it had before it waited:
  `test_a_revoke_stores_what_ended_in_its_drain_and_not_what_it_cut`.
"""

from __future__ import annotations

import asyncio
import random
import struct
from base64 import b64encode
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from tests.conformance.source_consumers import WatchedSource
from tests.kafka.source import kafka_help

from sluicegate import Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, Position, SourceRecord, TopicPartition
from sluicegate.consumer.progress.offset_map import decode, encode
from sluicegate.kafka import KafkaSource
from sluicegate.testing.conformance.source.subject import News

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sluicegate import Message
    from sluicegate.consumer import Source
    from sluicegate.testing import EmbeddedKafka

QUICK: dict[str, Any] = {
    "session_timeout": 30.0,
    "rebalance_timeout": 40.0,
    "commit_timeout": 10.0,
    "client": {"isolation_level": "read_committed"},
}


class Handling:
    """Handlers that end when the test releases them."""

    def __init__(self, before: set[tuple[int, int]] | None = None) -> None:
        """`before`: the records that other members have finished."""
        self.before = set() if before is None else before
        self.news = News()
        self.begun: list[tuple[int, int]] = []
        self.finished: set[tuple[int, int]] = set()
        self._gates: defaultdict[tuple[int, int], asyncio.Event] = defaultdict(asyncio.Event)

    async def __call__(self, message: Message) -> None:
        place = message.partition, message.offset
        self.begun.append(place)
        self.news.fire()
        await self._gates[place].wait()
        self.finished.add(place)
        self.news.fire()

    def let_end(self, *places: tuple[int, int]) -> None:
        """Release the handlers of these records, now or when they begin."""
        for place in places:
            self._gates[place].set()

    @property
    def running(self) -> set[tuple[int, int]]:
        """The records whose handlers have begun but not ended."""
        return {*self.begun} - self.finished

    def is_finished(self, record: SourceRecord) -> bool:
        """Whether a record may be committed."""
        return (record.partition, record.offset) in self.finished | self.before

    async def end(self, *places: tuple[int, int]) -> None:
        """Suspend until these handlers have ended."""
        self.let_end(*places)
        await self.news.wait_for(lambda: self.finished.issuperset(places))

    async def begin(self, count: int) -> None:
        """Suspend until this number of handlers has begun."""
        await self.news.wait_for(lambda: len(self.begun) >= count)

    def watching(self, source: Source) -> WatchedSource:
        """The source, with its consumer's commits checked."""
        self.watch = WatchedSource(source, self.news, self.is_finished)
        return self.watch


@asynccontextmanager
async def consuming(
    broker: EmbeddedKafka, topic: str, handling: Handling, **options: Any
) -> AsyncIterator[Consumer]:
    """A member of the group of the topic's name that commits on demand."""
    source = KafkaSource(topic, bootstrap=broker.bootstrap, group=topic, **QUICK)
    settings: dict[str, Any] = {"commits": Commits(every=3600.0), "drain": 0.0, **options}
    async with Consumer(handling.watching(source), **settings) as consumer, asyncio.timeout(100):
        running = asyncio.get_running_loop().create_task(consumer.run(handling))
        try:
            yield consumer
        finally:
            consumer.stop()
            await running
    assert handling.watch.violations == []


async def told(
    broker: EmbeddedKafka, topic: str, places: set[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Those of these records that the broker has as finished."""
    return {
        (number, offset)
        for (_, number), (position, text) in (await kafka_help.stored(broker, topic)).items()
        for partition, offset in places
        if partition == number
        and (offset < position or any(a <= offset < b for a, b in decode(position, text)))
    }


async def test_the_position_waits_for_the_oldest_record_and_the_map_tells_the_others(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """consumer/O6, O-T5, consumer/C:C1, consumer/C:C4, consumer/C:N1: 6, 7 and 5 end in this order;
    each commit on demand contains the map, and a restart before 5 has ended handles only 5.
    """
    topic, handling = await kafka_help.new_topic(broker), Handling()
    partition = TopicPartition(topic, 0)
    await kafka_help.fill(broker, topic, 8, keys=8)
    async with consuming(broker, topic, handling) as consumer:
        await handling.end(*[(0, offset) for offset in range(5)])
        for ended, position in [(6, 5), (7, 5)]:
            await handling.end((0, ended))
            await consumer.commit()
            stored = (await kafka_help.stored(broker, topic))[partition]
            assert stored == Position(position, encode(5, [(6, ended + 1)]).text)
    assert await kafka_help.stored(broker, topic) == {partition: stored}
    again = Handling(handling.finished)
    async with consuming(broker, topic, again) as consumer:
        await again.end((0, 5))
        await consumer.commit()
        assert await kafka_help.stored(broker, topic) == {partition: Position(8)}
    assert again.begun == [(0, 5)]


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 40))]
)
async def test_the_broker_has_exactly_what_is_finished(
    broker: EmbeddedKafka, real_clock: LoopClock, seed: int
) -> None:
    """I7, I8, O-T6, consumer/C:C1, consumer/C:C2, consumer/C:C3, consumer/C:C4, consumer/C:C5,
    consumer/C:C6: in random order, over holes; finally each position is at the end of its log.
    """
    chance = random.Random(seed)
    topic, handling = await kafka_help.new_topic(broker, 2), Handling()
    for _ in range(3):
        for number in (0, 1):
            if chance.random() < 0.7:
                await kafka_help.leave_hole(broker, topic, number)
            await kafka_help.fill(broker, topic, 20, partition=number, keys=20)
    await kafka_help.transact(broker, topic, (b"k", b""), partition=1, commit=False)
    positions: list[dict[TopicPartition, Position]] = []
    async with consuming(broker, topic, handling, in_flight=200) as consumer:
        await handling.news.wait_for(lambda: len(handling.begun) >= 40)
        while len(handling.finished) < 120:
            await handling.news.wait_for(lambda: handling.running)
            waiting = sorted(handling.running)
            await handling.end(*chance.sample(waiting, min(len(waiting), chance.randint(1, 12))))
            await consumer.commit()
            assert await told(broker, topic, {*handling.begun}) == handling.finished
            positions.append(await kafka_help.stored(broker, topic))
        ends = [await kafka_help.end_of(broker, topic, number) for number in (0, 1)]
        await consumer.commit()
    stored = await kafka_help.stored(broker, topic)
    assert stored == {TopicPartition(topic, number): Position(ends[number]) for number in (0, 1)}
    assert len(handling.begun) == 120
    for earlier, later in pairwise(positions):
        assert all(later[partition].offset >= at.offset for partition, at in earlier.items())


async def test_a_revoke_stores_what_ended_in_its_drain_and_not_what_it_cut(
    broker: EmbeddedKafka, real_clock: LoopClock
) -> None:
    """consumer/O6, O-T7, consumer/C:R1, consumer/C:C5: the next owner handles the rest, each record
    once.
    """
    topic, giver = await kafka_help.new_topic(broker, 2), Handling()
    taker = Handling(giver.finished)
    for number in (0, 1):
        await kafka_help.fill(broker, topic, 6, partition=number, keys=6)
    every = {(number, offset) for number in (0, 1) for offset in range(6)}
    taker.let_end(*every)
    async with AsyncExitStack() as later:
        async with consuming(broker, topic, giver, drain=1.0, concurrency=8):
            await giver.begin(8)
            running = giver.running
            stuck = min(running)
            await later.enter_async_context(consuming(broker, topic, taker, drain=1.0))
            await giver.news.wait_for(lambda: giver.watch.revoking)
            giver.let_end(*(running - {stuck}))
            await taker.news.wait_for(lambda: taker.watch.claims)
            finished = {*giver.finished}
            assert finished == running - {stuck}
            assert await told(broker, topic, every) == finished
        await taker.begin(12 - len(finished))
    assert stuck not in giver.finished
    assert sorted(taker.begun) == sorted(every - finished)


def confluent(magic: str, runs: list[int]) -> str:
    """A map in the format of Confluent's parallel consumer, with runs of 16 bits."""
    payload = struct.pack(f">{len(runs)}h", *runs)
    if magic == "J":
        payload = zstandard.ZstdCompressor().compress(payload)
    return b64encode(magic.encode() + payload).decode()


@pytest.mark.parametrize(
    ("text", "left", "skipped"),
    [
        pytest.param(confluent("n", [1, 3, 2, 4]), [4, 8, 9, 14, 15], 7, id="confluent"),
        pytest.param(confluent("J", [1, 3, 2, 4]), [4, 8, 9, 14, 15], 7, id="confluent-zstd"),
        pytest.param(encode(4, [(5, 8), (10, 14)]).text, [4, 8, 9, 14, 15], 7, id="ours"),
        pytest.param("written by nobody", list(range(4, 16)), 0, id="unknown"),
    ],
)
async def test_a_group_is_taken_over_with_its_map(
    broker: EmbeddedKafka, real_clock: LoopClock, text: str, left: list[int], skipped: int
) -> None:
    """consumer/C:N1, consumer/C:N6: only unfinished records are handled, and the counts show it."""
    before = {(0, offset) for offset in range(16) if offset not in left}
    topic, handling = await kafka_help.new_topic(broker), Handling(before)
    partition = TopicPartition(topic, 0)
    await kafka_help.fill(broker, topic, 16, keys=16)
    await kafka_help.store(broker, topic, {partition: Position(4, text)})
    async with consuming(broker, topic, handling) as consumer:
        await handling.end(*[(0, offset) for offset in left])
        deliveries = consumer.stats().deliveries
        await consumer.commit()
        assert await kafka_help.stored(broker, topic) == {partition: Position(16)}
    assert sorted(handling.begun) == [(0, offset) for offset in left]
    again = 0 if not skipped else len([offset for offset in left if offset < 14])
    assert (deliveries.skipped, deliveries.replayed) == (skipped, again)
