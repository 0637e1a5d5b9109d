"""A primary that is lost, frozen or made read-only, and a standby that takes over: access by a DSN
with several hosts.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
from tests.kafka.source.storm_help import News, log_lines

from sluicegate import (
    Batcher,
    Consumer,
    DeadLetter,
    Limits,
    Observer,
    Outcome,
    Retry,
    Timeout,
    stack,
)
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits
from sluicegate.postgres import (
    PostgresAccess,
    PostgresQueueSink,
    PostgresQueueSource,
    PostgresSink,
    PostgresStreamSink,
    PostgresStreamSource,
    QueueAdmin,
    install_streams,
)
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from sluicegate import Batch, Message
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")
CLOCK = LoopClock()
ANSWER = 3.0
SETTINGS = {"fsync": "off", "max_wal_size": "64MB", "min_wal_size": "32MB"}


@pytest.fixture
def primary() -> Iterator[EmbeddedPostgres]:
    """A primary with one synchronous standby."""
    with there_or_skip("postgres", embedded_postgres(SETTINGS, standbys=["sync"])) as server:
        yield server


@pytest.fixture
def loose_primary() -> Iterator[EmbeddedPostgres]:
    """A primary with one asynchronous standby."""
    with there_or_skip("postgres", embedded_postgres(SETTINGS, standbys=["async"])) as server:
        yield server


@asynccontextmanager
async def writing(server: EmbeddedPostgres) -> AsyncIterator[Batcher[Any]]:
    """A batcher into a new table."""
    con = await asyncpg.connect(server.dsn)
    await con.execute("CREATE TABLE rows (n int PRIMARY KEY)")
    await con.close()
    access = PostgresAccess(server.any_dsn, answer_timeout=ANSWER)
    sink = PostgresSink(access, table="rows", columns=("n",), on_conflict="ignore")
    limits = Limits(max_items=10, max_delay=0.01)
    async with Batcher(stack(sink, Timeout(ANSWER), Retry(attempts=100)), limits=limits) as batcher:
        yield batcher


async def rows(dsn: str) -> list[int]:
    con = await asyncpg.connect(dsn)
    try:
        return [row["n"] for row in await con.fetch("SELECT n FROM rows ORDER BY n")]
    finally:
        await con.close()


KEYS = 10


def is_bad(number: int) -> bool:
    """Whether the table refuses the row of an item."""
    return number % 50 == 7


class Acknowledged(Observer):
    """The numbers of the items with an outcome that a batcher has booked."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.others: list[Outcome] = []

    def on_outcome(self, batch: Batch[Any], outcome: Outcome, indices: Sequence[int]) -> None:
        if outcome not in {Outcome.DELIVERED, Outcome.DUPLICATE, Outcome.DEAD_LETTERED}:
            self.others.append(outcome)
        self.numbers.update(batch[index]["n"] for index in indices)


class Promotion:
    """Sinks into a table with dead letters, a queue and a stream, a consumer of each, and a
    primary that is killed while they run at 200 items a second.
    """

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        self.successor = server.standbys[0]
        self.access = PostgresAccess(server.any_dsn, answer_timeout=ANSWER)
        self.news = News()
        self.acknowledged: dict[str, Acknowledged] = {}
        self.handled: dict[str, list[int]] = {"queue": [], "stream": []}
        self.fed = 0
        self._feeding = True

    def _batcher(self, part: str, sink: Any, *decorators: Any) -> Batcher[Any]:
        self.acknowledged[part] = seen = Acknowledged()
        return Batcher(
            stack(sink, Timeout(ANSWER), Retry(attempts=100), *decorators),
            key=lambda item: item["key"],
            limits=Limits(max_items=20, max_delay=0.02),
            observers=[seen],
            name=part,
        )

    @asynccontextmanager
    async def _consuming(self, part: str, source: Any) -> AsyncIterator[None]:
        async def handle(message: Message) -> None:
            self.handled[part].append(json.loads(message.value)["n"])
            self.news.tell()

        async with Consumer(source, name=part, drain=5.0, commits=Commits(every=0.1)) as consumer:
            task = asyncio.ensure_future(consumer.run(handle))
            try:
                yield
            finally:
                consumer.stop()
                await task

    async def _feed(self, *batchers: Batcher[Any]) -> None:
        while self._feeding:
            for _ in range(4):
                number, self.fed = self.fed, self.fed + 1
                item = {"n": number, "key": f"k{number % KEYS}", "id": str(UUID(int=number + 1))}
                for batcher in batchers:
                    await batcher.add(item)
            await CLOCK.sleep(0.02)

    async def _seen(self, number: int) -> None:
        """Wait until all consumers have seen this item or a later one."""
        await self.news.until(
            lambda: all(max(each, default=-1) >= number for each in self.handled.values())
        )

    async def run(self, before_the_kill: Callable[[], object]) -> None:
        """Promote the standby in the middle."""
        access, dsn = self.access, self.server.dsn
        await install_streams(dsn)
        async with QueueAdmin(dsn) as admin:
            await admin.create("jobs")
        con = await asyncpg.connect(dsn)
        await con.execute("CREATE TABLE rows (n int PRIMARY KEY CHECK (n % 50 <> 7))")
        await con.execute("CREATE TABLE letters (n int PRIMARY KEY)")
        await con.close()
        table: dict[str, Any] = {"columns": ("n",), "on_conflict": "ignore"}
        letters = PostgresSink(access, table="letters", row=_number_of, **table)
        dead = DeadLetter(  # a refused row may have been sent before without an answer
            stack(letters, Retry(attempts=100)), take=("permanent", "exhausted", "unknown")
        )
        rows = PostgresSink(access, table="rows", **table)
        jobs = PostgresQueueSink(access, queue="jobs", key="key", payload=_content, id="id")
        stream = PostgresStreamSink(access, stream=_stream, type=_type, data=_content, id="id")
        async with AsyncExitStack() as contexts:
            for part, source in {
                "queue": PostgresQueueSource(access, queue="jobs", lease=5.0),
                "stream": PostgresStreamSource(access, subscription="all", category="order"),
            }.items():
                await contexts.enter_async_context(self._consuming(part, source))
            batchers = [
                await contexts.enter_async_context(each)
                for each in (
                    self._batcher("rows", rows, dead),
                    self._batcher("queue", jobs),
                    self._batcher("stream", stream),
                )
            ]
            feeding = asyncio.ensure_future(self._feed(*batchers))
            await self._seen(100)
            await asyncio.to_thread(before_the_kill)
            await self._seen(self.fed + 20)
            await asyncio.to_thread(self.server.kill)
            await asyncio.to_thread(self.successor.start)
            await asyncio.to_thread(self.successor.promote)
            await self._seen(self.fed + 100)
            self._feeding = False
            await feeding
            last = {*range(self.fed - KEYS, self.fed)}
            await self.news.until(lambda: all(last <= {*each} for each in self.handled.values()))

    async def results(self) -> dict[str, tuple[int, int, int]]:
        """By part: the acknowledged items that are lost, those seen twice, those out of order."""
        con = await asyncpg.connect(self.successor.dsn)
        good = {row["n"] for row in await con.fetch("SELECT n FROM rows")}
        bad = {row["n"] for row in await con.fetch("SELECT n FROM letters")}
        await con.close()
        assert all(map(is_bad, bad))
        assert not [other for each in self.acknowledged.values() for other in each.others]
        found = {"rows": (len(self.acknowledged["rows"].numbers - good - bad), 0, 0)}
        for part, numbers in self.handled.items():
            lost = self.acknowledged[part].numbers - {*numbers}
            firsts = [*dict.fromkeys(numbers)]
            late = 0
            for key in range(KEYS):
                of_key = [number for number in firsts if number % KEYS == key]
                late += sum(b < a for a, b in pairwise(of_key))
            found[part] = (len(lost), len(numbers) - len(firsts), late)
        return found

    async def kept(self) -> list[int]:
        """The messages that the successor has."""
        con = await asyncpg.connect(self.successor.dsn)
        found = await con.fetch("SELECT (data->>'n')::int AS n FROM sluicegate.message")
        await con.close()
        return [row["n"] for row in found]


def _number_of(record: Any) -> tuple[int]:
    return (record.item["n"],)


def _content(item: Any) -> dict[str, int]:
    return {"n": item["n"]}


def _stream(item: Any) -> str:
    return f"order-{item['key']}"


def _type(_: Any) -> str:
    return "placed"


async def test_a_synchronous_standby_loses_nothing(primary: EmbeddedPostgres) -> None:
    """Jobs and messages may come twice: the last positions of their consumers may be lost."""
    promotion = Promotion(primary)
    async with asyncio.timeout(100):
        await promotion.run(lambda: None)
    results = await promotion.results()
    print(results)  # noqa: T201  # for the table of the page, with -s
    assert {(lost, late) for lost, _, late in results.values()} == {(0, 0)}


@pytest.mark.long
async def test_an_asynchronous_standby_loses_what_it_did_not_have_and_this_is_told(
    loose_primary: EmbeddedPostgres,
) -> None:
    """Everything else is handled, although the log is shorter than its readers knew it."""
    promotion = Promotion(loose_primary)
    async with log_lines() as log, asyncio.timeout(100):
        await promotion.run(loose_primary.standbys[0].kill)
    results, kept = await promotion.results(), await promotion.kept()
    print(results, promotion.fed - len(kept), "messages gone")  # noqa: T201
    assert len(kept) < promotion.fed
    assert {*kept} <= {*promotion.handled["stream"]}
    assert results["queue"][2] == results["stream"][2] == 0
    assert [line for line in log.lines() if "all: the slots" in line and "are lost" in line]
    assert [line for line in log.lines() if "is not in the log of the server" in line]


@pytest.mark.long
async def test_a_frozen_primary_is_left_for_its_successor(primary: EmbeddedPostgres) -> None:
    async with writing(primary) as batcher:
        await batcher.deliver({"n": 0})
        primary.pause()
        primary.standbys[0].promote()
        async with asyncio.timeout(3 * ANSWER + 5):
            await batcher.deliver({"n": 1})
        assert await rows(primary.standbys[0].dsn) == [0, 1]


async def test_a_primary_that_becomes_read_only_is_left_for_its_successor(
    primary: EmbeddedPostgres,
) -> None:
    async with writing(primary) as batcher:
        await batcher.deliver({"n": 0})
        con = await asyncpg.connect(primary.dsn)
        await con.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        await con.execute("SELECT pg_reload_conf()")
        await con.close()
        primary.standbys[0].promote()
        async with asyncio.timeout(20):
            await batcher.deliver({"n": 1})
        assert await rows(primary.standbys[0].dsn) == [0, 1]
