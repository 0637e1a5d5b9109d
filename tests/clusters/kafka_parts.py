"""Sinks, sources and flows that run side by side on one stream of numbered items.

A feeder writes 200 items a second through a `KafkaSink`. Each part records what it has seen and its
longest stop, and compares everything at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.kafka.confluent.confluent_help import source_of
from tests.kafka.sink.sink_help import read
from tests.kafka.source.kafka_help import new_name, new_topic
from tests.kafka.source.storm_help import News, Watch
from tests.kafka.state.state_topics import all_committed, stored_state
from tests.postgres.sink.postgres_help import database

from sluicegate import Batcher, Consumer, Limits, Observer, Retry, RetryPolicy, flow, stack
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits
from sluicegate.kafka import KafkaAccess, KafkaSink, KafkaSource, KafkaState
from sluicegate.postgres import PostgresSink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from sluicegate import Batch, Message, Outcome
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedKafka

CLOCK = LoopClock()
PARTITIONS, KEYS = 3, 20
REQUEST, SESSION = 2.0, 15.0
"""Timeouts of the clients in seconds."""
PATIENT = RetryPolicy(attempts=100, backoff=lambda tries, error=None, waited=0.0: 0.05)


class Result(NamedTuple):
    """What became of the acknowledged items at one part."""

    part: str
    lost: int
    twice: int
    out_of_order: int
    stop: float


class Seen:
    """The numbers that a part has seen, in order, and its longest stop."""

    def __init__(self, part: str, news: News) -> None:
        self.part = part
        self.order: defaultdict[str, list[int]] = defaultdict(list)
        self.last = -1
        self._news = news
        self.restart()

    def restart(self) -> None:
        """Measure the stops after this call."""
        self._moved_at, self.stop = CLOCK.now(), 0.0

    def add(self, key: str, number: int) -> None:
        """Record an item."""
        self.order[key].append(number)
        self.move(number)

    def move(self, number: int | None = None) -> None:
        """Record progress."""
        now = CLOCK.now()
        self.stop, self._moved_at = max(self.stop, now - self._moved_at), now
        self.last = max(self.last, self.last if number is None else number)
        self._news.tell()

    def result(self, due: Iterable[int]) -> Result:
        """Compare with the numbers that should be there."""
        times = Counter(each for numbers in self.order.values() for each in numbers)
        firsts = [[*dict.fromkeys(numbers)] for numbers in self.order.values()]
        return Result(
            self.part,
            lost=len({*due} - {*times}),
            twice=sum(count - 1 for count in times.values()),
            out_of_order=sum(
                later < earlier for numbers in firsts for earlier, later in pairwise(numbers)
            ),
            stop=round(self.stop, 1),
        )


class SeenOutcomes(Observer):
    """Records the delivered items of a batcher."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        for index in indices:
            number, key = batch[index]["n"], batch[index]["key"]
            self._seen.add(key, number)


class SeenCommits(Watch):
    """Records the progress of commits."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen
        self._offsets: dict[Any, int] = {}

    def on_committed(self, name: str, offsets: Any, error: BaseException | None) -> None:
        super().on_committed(name, offsets, error)
        if offsets and error is None:
            self._offsets |= offsets
            self._seen.move(sum(self._offsets.values()) - 1)


class Parts:
    """The running parts."""

    def __init__(self, kafka: EmbeddedKafka, topic: str) -> None:
        self.kafka = kafka
        self.topic = topic
        self.fed = 0
        self.seen: list[Seen] = []
        self.news = News()
        self.access = KafkaAccess(kafka.bootstrap, request_timeout=REQUEST, close_timeout=2.0)
        self._feeding = True
        self._results: list[Any] = []

    def _new(self, part: str) -> Seen:
        self.seen.append(Seen(part, self.news))
        return self.seen[-1]

    def _source(self, **options: Any) -> KafkaSource:
        times: dict[str, Any] = {"session_timeout": SESSION, "rebalance_timeout": 20.0}
        return KafkaSource(
            self.topic,
            bootstrap=self.access,
            group=new_name("group"),
            **times,
            **options,
        )

    async def feed(self, batcher: Batcher[Any]) -> None:
        """Add items until `finish`."""
        while self._feeding:
            for _ in range(4):
                await batcher.add({"n": self.fed, "key": f"k{self.fed % KEYS}"})
                self.fed += 1
            await CLOCK.sleep(0.02)

    async def progress(self, items: int = 100) -> None:
        """Wait until every part has seen this many more items than have been fed by now."""
        goal = self.fed + items
        await self.news.until(lambda: all(each.last >= goal for each in self.seen))

    @asynccontextmanager
    async def sink(self) -> AsyncIterator[None]:
        """The sink into the topic that all others read."""
        seen = self._new("sink")
        batcher = Batcher(
            stack(KafkaSink(self.topic, bootstrap=self.access, key="key"), Retry(attempts=100)),
            key=lambda item: item["key"],
            limits=Limits(max_items=50, max_delay=0.02, workers=4),
            observers=[SeenOutcomes(seen)],
        )
        async with batcher:
            feeding = asyncio.ensure_future(self.feed(batcher))
            try:
                yield
            finally:
                self._feeding = False
                await feeding
        assert batcher.report is not None
        assert batcher.report.tally.delivered == self.fed, batcher.report

    @asynccontextmanager
    async def consumer(self, part: str, source: Any) -> AsyncIterator[None]:
        """A consumer with order by key."""
        seen = self._new(part)

        async def handle(message: Message) -> None:
            item = json.loads(message.value)
            seen.add(item["key"], item["n"])

        async with Consumer(source, drain=2.0, commits=Commits(every=0.1), name=part) as consumer:
            task = asyncio.ensure_future(consumer.run(handle))
            try:
                yield
            finally:
                consumer.stop()
                await task

    @asynccontextmanager
    async def pipe(self, dsn: str) -> AsyncIterator[None]:
        """A pipe into PostgreSQL."""
        seen = self._new("pipe")
        async with database(dsn, "n bigint, key text") as db:
            sink = PostgresSink(dsn, table=db.table, columns=("n", "key"))
            batcher = Batcher(
                sink,
                key=lambda row: row["key"],
                limits=Limits(max_items=50, max_delay=0.02, workers=4),
                observers=[SeenOutcomes(seen)],
            )
            made = flow.pipe(
                self._source(),
                batcher,
                _row_of,
                drain=2.0,
                commits=Commits(every=0.1),
                name="pipe",
                retry=PATIENT,
            )
            task = asyncio.ensure_future(made.run())
            try:
                yield
            finally:
                made.stop()
                await task
            rows = await db.con.fetch(f"SELECT n FROM {db.table}")
            assert sorted(row["n"] for row in rows) == sorted(
                each for numbers in seen.order.values() for each in numbers
            )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transactional flow into another topic."""
        seen = self._new("transaction")
        topic = await new_topic(self.kafka, PARTITIONS)
        sink = KafkaSink(topic, bootstrap=self.access, key="key")
        made = flow.transaction(
            self._source(),
            sink,
            _row_of,
            drain=2.5,
            commits=Commits(every=0.05, after=50),
            name="transaction",
            observers=[SeenCommits(seen)],
        )
        task = asyncio.ensure_future(made.run())
        try:
            yield
        finally:
            made.stop()
            await task
        for number in range(PARTITIONS):
            for record in await all_committed(self.kafka, topic, number):
                item = json.loads(record.value)
                seen.order[item["key"]].append(item["n"])

    @asynccontextmanager
    async def state(self) -> AsyncIterator[None]:
        """A consumer with state in a topic: the numbers of each key in order."""
        seen, topic = self._new("state"), new_name("state")

        async def handle(context: EventContext) -> None:
            item = json.loads(context.message.value)
            count, late, last = context.store.get(item["key"], (0, 0, -1))
            is_late = item["n"] <= last
            context.store.put(item["key"], (count + 1, late + is_late, item["n"]))

        async with (
            KafkaState(bootstrap=self.access, topic=topic) as state,
            Consumer(
                state.attach(self._source()),
                ordering="partition",
                commits=Commits(every=0.05),
                drain=2.5,
                name="state",
                observers=[SeenCommits(seen)],
            ) as consumer,
        ):
            task = asyncio.ensure_future(consumer.run_events(handle, state=state))
            try:
                yield
            finally:
                consumer.stop()
                await task
        for number in range(PARTITIONS):
            await all_committed(self.kafka, topic, number)
            found = (await stored_state(self.kafka, topic, number)).state
            for key, (count, late, last) in found.items():
                wanted = range(int(key[1:]), last + 1, KEYS)
                assert (count, late) == (len(wanted), 0), (key, count, late, last)
                seen.order[key] += wanted


def _row_of(message: Message) -> Any:
    return json.loads(message.value)


@asynccontextmanager
async def running(kafka: EmbeddedKafka, dsn: str, results: list[Result]) -> AsyncIterator[Parts]:
    """All parts; drained at exit. Then `results` has what they found."""
    parts = Parts(kafka, await new_topic(kafka, PARTITIONS))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(parts.consumer("aiokafka", parts._source()))
        confluent = source_of(
            kafka, parts.topic, new_name("group"), bootstrap=parts.access, session_timeout=SESSION
        )
        await stack.enter_async_context(parts.consumer("confluent", confluent))
        await stack.enter_async_context(parts.pipe(dsn))
        await stack.enter_async_context(parts.transaction())
        await stack.enter_async_context(parts.state())
        async with parts.sink():
            await parts.progress()
            for each in parts.seen:
                each.restart()
            yield parts
        await parts.news.until(lambda: all(each.last == parts.fed - 1 for each in parts.seen))
    stored = Seen("topic", parts.news)
    for record in await read(kafka, parts.topic):
        stored.order[record.item["key"]].append(record.item["n"])
    results += [each.result(range(parts.fed)) for each in (stored, *parts.seen)]
