"""Sinks, sources and flows on one database, which run side by side while something happens to it.

A feeder adds 200 items a second to three sinks: into a table with dead letters, a queue and a
stream. A spool writes the same items to another table. A queue, a subscription, a transaction, a
state and a schedule consume them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import asyncpg
from tests.kafka.source.storm_help import News

from sluicegate import (
    Batcher,
    Consumer,
    DeadLetter,
    Limits,
    Observer,
    Outcome,
    Retry,
    Timeout,
    flow,
    stack,
)
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits
from sluicegate.postgres import (
    PostgresAccess,
    PostgresQueueSink,
    PostgresQueueSource,
    PostgresSink,
    PostgresState,
    PostgresStreamSink,
    PostgresStreamSource,
    QueueAdmin,
    install_streams,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from sluicegate import Batch, Message
    from sluicegate.consumer.jobs import EventContext

CLOCK = LoopClock()
KEYS = 10
ANSWER = 3.0
LEASE = 5.0
TABLES = """
CREATE TABLE rows (n int PRIMARY KEY CHECK (n % 50 <> 7));
CREATE TABLE letters (n int PRIMARY KEY);
CREATE TABLE spooled (n int PRIMARY KEY);
CREATE TABLE copies (place bigserial PRIMARY KEY, n int NOT NULL);
"""
FINE = {Outcome.DELIVERED, Outcome.DUPLICATE, Outcome.DEAD_LETTERED, Outcome.SPOOLED}


def is_bad(number: int) -> bool:
    """Whether the table refuses the row of an item."""
    return number % 50 == 7


class Result(NamedTuple):
    """What became of the acknowledged items at one part."""

    records: int
    lost: int
    twice: int
    out_of_order: int
    stop: float


class Acknowledged(Observer):
    """The numbers of the items with an outcome that a batcher has booked."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.others: list[Outcome] = []
        self._news = News()

    async def has(self, numbers: set[int]) -> None:
        """Wait until these items have their outcomes."""
        await self._news.until(lambda: numbers <= self.numbers)

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        if outcome not in FINE:
            self.others.append(outcome)
        if outcome is Outcome.SPOOLED or not batch.name.endswith("-sending"):
            self.numbers.update(batch[index]["n"] for index in indices)
            self._news.tell()


class Handled:
    """The numbers that a consumer has handled, in order, and its longest stop."""

    def __init__(self, news: News) -> None:
        self.numbers: list[int] = []
        self._news = news
        self.measure()

    def measure(self) -> None:
        """Measure stops from now on."""
        self._at, self.stop = CLOCK.now(), 0.0

    def add(self, number: int) -> None:
        now = CLOCK.now()
        self.stop, self._at = max(self.stop, now - self._at), now
        self.numbers.append(number)
        self._news.tell()


def result(due: Iterable[int], numbers: Sequence[int], stop: float = 0.0) -> Result:
    """Compare what a part has, in order, with what it should have."""
    firsts = [*dict.fromkeys(numbers)]
    late = 0
    for key in range(KEYS):
        of_key = [number for number in firsts if number % KEYS == key]
        late += sum(b < a for a, b in pairwise(of_key))
    twice = sum(count - 1 for count in Counter(numbers).values())
    return Result(len(numbers), len({*due} - {*numbers}), twice, late, round(stop, 1))


class Parts:
    """All of them, in a database without tables."""

    def __init__(self, dsn: str, spool: Path, *, through: str | None = None) -> None:
        self.move_to(dsn, through=through)
        self.news = News()
        self.acknowledged: dict[str, Acknowledged] = {}
        self.handled = {part: Handled(self.news) for part in ("queue", "stream", "state", "copies")}
        self.ticks: list[str] = []
        self.fed = 0
        self._spool = spool
        self._feeding = False

    def move_to(self, dsn: str, *, through: str | None = None) -> None:
        """Use this server from the next run on; `dsn` is that of the one with the results."""
        self.dsn = dsn
        self.access = PostgresAccess(through or dsn, answer_timeout=ANSWER)

    async def install(self) -> None:
        await install_streams(self.dsn)
        async with QueueAdmin(self.dsn) as admin:
            await admin.create("jobs")
            await admin.create("ticks")
            await (await admin.schedules("ticks")).put("often", every=1, key="k", catch_up="all")
        con = await asyncpg.connect(self.dsn)
        await con.execute(TABLES)
        await con.close()

    def _batcher(self, part: str, sink: Any, *decorators: Any, **options: Any) -> Batcher[Any]:
        self.acknowledged[part] = seen = Acknowledged()
        return Batcher(
            stack(sink, Timeout(ANSWER), Retry(attempts=100), *decorators),
            key=lambda item: item["key"],
            limits=Limits(max_items=20, max_delay=0.02, max_pending_items=200),
            observers=[seen],
            name=part,
            **options,
        )

    def _batchers(self) -> list[Batcher[Any]]:
        access = self.access
        table: dict[str, Any] = {"columns": ("n",), "on_conflict": "ignore"}
        letters = PostgresSink(access, table="letters", row=_number_of_record, **table)
        dead = DeadLetter(  # a refused row may have been sent before without an answer
            stack(letters, Retry(attempts=100)), take=("permanent", "exhausted", "unknown")
        )
        rows = PostgresSink(access, table="rows", **table)
        jobs = PostgresQueueSink(access, queue="jobs", key="key", payload=_content, id="id")
        stream = PostgresStreamSink(access, stream=_stream, type=_type, data=_content, id="id")
        spooled = PostgresSink(access, table="spooled", row=_number_of, **table)
        return [
            self._batcher("rows", rows, dead),
            self._batcher("queue", jobs),
            self._batcher("stream", stream),
            self._batcher("spool", spooled, spool=flow.Spool(self._spool, durability="os")),
        ]

    def _log(self, subscription: str) -> PostgresStreamSource:
        return PostgresStreamSource(self.access, subscription=subscription, category="order")

    def _jobs(self, queue: str) -> PostgresQueueSource:
        return PostgresQueueSource(self.access, queue=queue, lease=LEASE)

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator[None]:
        """Run every consumer; those that end too early fail the run."""

        def handler(part: str) -> Callable[[Message], Awaitable[None]]:
            async def handle(message: Message) -> None:
                self.handled[part].add(json.loads(message.value)["n"])

            return handle

        async def tick(message: Message) -> None:
            self.ticks.append(message.header("scheduled_for") or "")

        async def keep(context: EventContext) -> None:
            number = json.loads(context.message.value)["n"]
            context.store.put(context.key, [*context.store.get(context.key, []), number])
            self.handled["state"].add(number)

        def copy(message: Message) -> tuple[int]:
            number = json.loads(message.value)["n"]
            self.handled["copies"].add(number)
            return (number,)

        state = PostgresState(self.access, table="counts", positions="count_positions")
        options: dict[str, Any] = {"drain": 5.0, "commits": Commits(every=0.1)}
        copies = flow.transaction(
            self._log("copies"),
            PostgresSink(self.access, table="copies", columns=("n",)),
            copy,
            name="copies",
            commits=Commits(every=0.1),
        )
        async with AsyncExitStack() as contexts:
            running: dict[Any, Any] = {copies: copies.run()}
            for name, source, handle in (
                ("queue", self._jobs("jobs"), handler("queue")),
                ("ticks", self._jobs("ticks"), tick),
                ("stream", self._log("all"), handler("stream")),
            ):
                consumer = Consumer(source, name=name, **options)
                running[await contexts.enter_async_context(consumer)] = consumer.run(handle)
            await contexts.enter_async_context(state)
            counts = Consumer(
                state.attach(self._log("counts")), name="state", ordering="partition", **options
            )
            await contexts.enter_async_context(counts)
            running[counts] = counts.run_events(keep, state=state)
            async with asyncio.TaskGroup() as tasks:
                for each in running.values():
                    tasks.create_task(each)
                yield
                for each in running:
                    each.stop()

    async def _feed(self, batchers: Sequence[Batcher[Any]]) -> None:
        while self._feeding:
            for _ in range(4):
                number, self.fed = self.fed, self.fed + 1
                item = {"n": number, "key": f"k{number % KEYS}", "id": str(UUID(int=number + 1))}
                for batcher in batchers:
                    await batcher.add(item)
            await CLOCK.sleep(0.02)

    async def seen(self, number: int) -> None:
        """Wait until all consumers have seen this item or a later one."""
        await self.news.until(
            lambda: all(max(each.numbers, default=-1) >= number for each in self.handled.values())
        )

    async def run(self, event: Callable[[], Awaitable[object]]) -> None:
        """Run everything, let the event happen in the middle, and end in an orderly way."""
        if not self.fed:
            await self.install()
        self._feeding = True
        async with AsyncExitStack() as contexts:
            await contexts.enter_async_context(self.consuming())
            batchers = [await contexts.enter_async_context(each) for each in self._batchers()]
            feeding = asyncio.ensure_future(self._feed(batchers))
            await self.seen(self.fed + 100)
            for part in self.handled.values():
                part.measure()
            await event()
            await self.seen(self.fed + 100)
            self._feeding = False
            await feeding
            last = {*range(self.fed - KEYS, self.fed)}
            await self.news.until(
                lambda: all(last <= {*each.numbers} for each in self.handled.values())
            )
            for each in self.acknowledged.values():
                await each.has(last)

    async def results(self) -> dict[str, Result]:
        """What became of the acknowledged items, by part."""
        assert not {part: each.others for part, each in self.acknowledged.items() if each.others}
        booked = {part: each.numbers for part, each in self.acknowledged.items()}
        con = await asyncpg.connect(self.dsn)

        async def numbers(query: str) -> list[int]:
            return [row["n"] for row in await con.fetch(query)]

        good = await numbers("SELECT n FROM rows ORDER BY n")
        bad = await numbers("SELECT n FROM letters ORDER BY n")
        spooled = await numbers("SELECT n FROM spooled ORDER BY n")
        copies = await numbers("SELECT n FROM copies ORDER BY place")
        log = "FROM sluicegate.message WHERE category = 'order' ORDER BY position"
        kept = await numbers(f"SELECT (data ->> 'n')::int AS n {log}")
        lists = await con.fetch("SELECT value::text AS list FROM counts WHERE partition >= 0")
        counts = [number for row in lists for number in json.loads(row["list"])]
        await con.close()
        assert all(map(is_bad, bad))
        seen = self.handled
        return {
            "rows": result(booked["rows"], sorted(good + bad)),
            "spool": result(booked["spool"], spooled),
            "queue": result(booked["queue"], seen["queue"].numbers, seen["queue"].stop),
            "stream": result(booked["stream"], seen["stream"].numbers, seen["stream"].stop),
            "state": result(kept, counts, seen["state"].stop),
            "copies": result(kept, copies, seen["copies"].stop),
        }

    def missing_ticks(self) -> int:
        """The number of seconds without a tick, between the first and the last."""
        at = sorted({int(datetime.fromisoformat(each).timestamp()) for each in self.ticks})
        return at[-1] - at[0] + 1 - len(at)


def _number_of_record(record: Any) -> tuple[int]:
    return (record.item["n"],)


def _number_of(item: Any) -> tuple[int]:
    return (item["n"],)


def _content(item: Any) -> dict[str, int]:
    return {"n": item["n"]}


def _stream(item: Any) -> str:
    return f"order-{item['key']}"


def _type(_: Any) -> str:
    return "placed"
