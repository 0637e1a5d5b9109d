"""Ways to consume a topic of Kafka, each until a counter has its last record.

Every turn has its own group, and starts at the beginning of the topic. `kafka/peers.py` has the
ways of other libraries.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from sluicegate import Consumer
from sluicegate.consumer import Commits, InFlight
from sluicegate.kafka import KafkaSource

from ..peers.task_recipe import Host

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from sluicegate.consumer import Source

    from ..stopwatch import Took
    from .counting import Counter

    Way = Callable[[str, str, Counter], Awaitable[Took]]
    """A function of bootstrap servers, topic and counter."""

CONCURRENCY = 100
WINDOW = 1_000
"""Maximum number of messages inside."""
FETCH = 500
QUIET = 5_000
"""Milliseconds without a record after which one counts as missing."""


@contextlib.asynccontextmanager
async def joined(
    bootstrap: str, topic: str, *, group: str | None = None, **options: Any
) -> AsyncGenerator[Any]:
    """Join this group, or a new one, with a bare client without automatic commits."""
    aiokafka: Any = importlib.import_module("aiokafka")
    client = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group or uuid.uuid4().hex,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **options,
    )
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


def source_of(bootstrap: str, topic: str) -> KafkaSource:
    return KafkaSource(topic, bootstrap=bootstrap, group=uuid.uuid4().hex)


def confluent_source_of(bootstrap: str, topic: str) -> Source:
    confluent: Any = importlib.import_module("sluicegate.kafka")
    source: Source = confluent.ConfluentKafkaSource(
        topic, bootstrap=bootstrap, group=uuid.uuid4().hex
    )
    return source


def ours(
    *,
    concurrency: int = CONCURRENCY,
    window: int = WINDOW,
    made: Callable[[str, str], Source] = source_of,
    in_batches: bool = False,
) -> Way:
    """Use Sluicegate's consumer with all defaults, a timeout, and a limit for each key, until the
    last commit; the offset map is stored with each commit.
    """

    async def way(bootstrap: str, topic: str, counter: Counter) -> Took:
        async def handle_batch(messages: Sequence[object]) -> None:
            counter.count(len(messages))

        async with Consumer(
            made(bootstrap, topic),
            concurrency=concurrency,
            in_flight=InFlight(window, bytes=2**26, per_key=window // 2, fetch_max=FETCH),
            timeout=5.0,
            commits=Commits(every=0.25),
        ) as consumer:
            run = asyncio.create_task(
                consumer.run_batch(handle_batch, size=FETCH, max_wait=0.2)
                if in_batches
                else consumer.run(counter.handle)
            )
            await counter.wait_finished()
            await consumer.commit()
            took = counter.read()
            consumer.stop()
            await run
        return took

    return way


async def recipe(bootstrap: str, topic: str, counter: Counter) -> Took:
    """Use the usual recipe: a task for each message, a lock for each key, and a semaphore."""
    semaphore = asyncio.Semaphore(CONCURRENCY)
    locks: defaultdict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
    tasks: set[asyncio.Task[None]] = set()

    async def handle(record: Any) -> None:
        try:
            async with locks[record.key]:
                await counter.handle(record)
        finally:
            semaphore.release()

    begun = 0
    async with joined(bootstrap, topic) as client:
        while begun < counter.last:
            fetched = await client.getmany(timeout_ms=QUIET, max_records=FETCH)
            if not fetched:
                break
            for records in fetched.values():
                for record in records:
                    await semaphore.acquire()
                    task = asyncio.create_task(handle(record))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                begun += len(records)
        while tasks:
            await asyncio.wait(tasks)
        return counter.read()


async def bare(bootstrap: str, topic: str, counter: Counter) -> Took:
    """Use the client's own loop, one record after another."""
    async with joined(bootstrap, topic) as client:
        while not counter.is_finished:
            fetched = await client.getmany(timeout_ms=QUIET, max_records=FETCH)
            if not fetched:
                break
            for records in fetched.values():
                for record in records:
                    await counter.handle(record)
        return counter.read()


async def unhandled(bootstrap: str, topic: str, counter: Counter) -> Took:
    """Use the client's own loop, without handling records."""
    async with joined(bootstrap, topic) as client:
        while not counter.is_finished:
            fetched = await client.getmany(timeout_ms=QUIET, max_records=FETCH)
            if not fetched:
                break
            for records in fetched.values():
                counter.count(len(records))
        return counter.read()


async def source_alone(bootstrap: str, topic: str, counter: Counter) -> Took:
    """Fetch from Sluicegate's source directly, without handling records."""
    host = Host()
    source = source_of(bootstrap, topic)
    async with source.open(host), asyncio.timeout(60.0):
        await host.wait_assigned()
        while not counter.is_finished:
            for each in await source.fetch(host.claims, FETCH) or ():
                counter.count(len(each.records))
        return counter.read()
