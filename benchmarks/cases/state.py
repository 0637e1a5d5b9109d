"""The cost of state that is stored with the positions of events, and the time to read it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import json
from typing import TYPE_CHECKING, Any

from sluicegate import Consumer
from sluicegate.consumer import Commits, InFlight, MemoryLog
from sluicegate.consumer.jobs import MemoryState
from sluicegate.kafka import KafkaState
from sluicegate.postgres import PostgresState

from ..consuming import FETCH, KEYS, check, records, source_of
from ..destination import NO_WAIT, postgres_server
from ..harness import US_PER_ITEM, Case, Contender
from ..kafka.topics import a_broker, fill
from ..peers.state_by_hand import EVERY, SCHEMA, into_kafka, into_postgres
from ..stopwatch import Clock, Stopwatch, Took

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sluicegate.consumer import Record
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.consumer.jobs.state import StateBackend

MEMORY, POSTGRES, KAFKA = "MemoryState", "PostgresState", "KafkaState"
BY_HAND = f"a dict, a transaction for {EVERY:,} events"
READ_POSTGRES, READ_KAFKA = "PostgresState, read", "KafkaState, read"
TOPIC = "events"
_numbers = itertools.count()


async def count_key(context: EventContext) -> None:
    """Add one to the count of the event's key."""
    key, store = context.key.decode(), context.store
    store.put(key, store.get(key, 0) + 1)


async def counted(source: Any, state: StateBackend, count: int) -> Took:
    """Handle all records, until the last commit."""
    async with Consumer(
        source,
        ordering="partition",
        in_flight=InFlight(EVERY, fetch_max=FETCH),
        commits=Commits(every=0.1),
    ) as consumer:

        async def handle(context: EventContext) -> None:
            await count_key(context)
            if context.message.offset == count - 1:
                consumer.stop()

        watch = Stopwatch()
        report = await consumer.run_events(handle, state=state)
        took = watch.read()
    assert report.commit_error is None
    return took


# -- PostgreSQL ------------------------------------------------------------------------------------


async def in_memory(given: Sequence[Record]) -> Took:
    log = MemoryLog(given)
    took = await counted(source_of(log), MemoryState(), len(given))
    check(log, len(given))
    return took


async def in_postgres(dsn: str, given: Sequence[Record]) -> Took:
    name = f"state_{next(_numbers)}"
    async with PostgresState(dsn, table=name, positions=f"{name}_positions") as state:
        took = await counted(state.attach(source_of(MemoryLog(given))), state, len(given))
    import asyncpg

    con = await asyncpg.connect(dsn)
    stored = await con.fetchval(f"SELECT sum(value::text::int) FROM {name}")
    await con.close()
    assert stored == len(given)
    return took


async def postgres_by_hand(dsn: str, given: Sequence[Record]) -> Took:
    import asyncpg

    con = await asyncpg.connect(dsn)
    await con.execute(SCHEMA)
    watch = Stopwatch()
    await into_postgres(con, given)
    took = watch.read()
    assert await con.fetchval("SELECT position FROM counted") == len(given)
    await con.close()
    return took


@contextlib.contextmanager
def prepare_postgres(count: int) -> Iterator[Sequence[Contender]]:
    given = records(count)
    with postgres_server() as server:
        dsn = server + NO_WAIT
        yield (
            Contender(MEMORY, lambda: asyncio.run(in_memory(given)), ours=True),
            Contender(POSTGRES, lambda: asyncio.run(in_postgres(dsn, given)), ours=True),
            Contender(BY_HAND, lambda: asyncio.run(postgres_by_hand(dsn, given))),
        )


# -- Kafka -----------------------------------------------------------------------------------------


async def in_kafka(bootstrap: str, count: int) -> Took:
    from sluicegate.kafka import KafkaSource

    name = f"state-{next(_numbers)}"
    async with KafkaState(topic=name, bootstrap=bootstrap) as state:
        source = KafkaSource(TOPIC, bootstrap=bootstrap, group=name)
        took = await counted(state.attach(source), state, count)
    await check_topic(bootstrap, name, count)
    return took


async def kafka_by_hand(bootstrap: str, count: int) -> Took:
    aiokafka: Any = importlib.import_module("aiokafka")
    name = f"by-hand-{next(_numbers)}"
    await make_topic(bootstrap, name)
    consumer = aiokafka.AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    watch = Stopwatch()
    async with consumer, producer:
        await into_kafka(consumer, producer, name, name, count)
        took = watch.read()
    await check_topic(bootstrap, name, count)
    return took


async def make_topic(bootstrap: str, name: str) -> None:
    """Create a compacted topic with one partition."""
    admin: Any = importlib.import_module("aiokafka.admin")
    client = admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    await client.create_topics(
        [admin.NewTopic(name, 1, 1, topic_configs={"cleanup.policy": "compact"})]
    )
    await client.close()


async def check_topic(bootstrap: str, name: str, count: int) -> None:
    """Raise `AssertionError` unless the topic has the counts of this number of events."""
    aiokafka: Any = importlib.import_module("aiokafka")
    part = aiokafka.TopicPartition(name, 0)
    client = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    counts: dict[bytes, int] = {}
    async with client, asyncio.timeout(20.0):
        client.assign([part])
        await client.seek_to_beginning(part)
        while sum(counts.values()) != count:
            for record in (await client.getmany(part, timeout_ms=100)).get(part, ()):
                if not record.key.startswith(b"\0"):
                    counts[record.key] = json.loads(record.value)


@contextlib.contextmanager
def prepare_kafka(count: int) -> Iterator[Sequence[Contender]]:
    with a_broker() as broker:
        fill(broker, TOPIC, count, keys=KEYS)
        where = broker.bootstrap
        yield (
            Contender(KAFKA, lambda: asyncio.run(in_kafka(where, count)), ours=True),
            Contender(BY_HAND, lambda: asyncio.run(kafka_by_hand(where, count))),
        )


# -- reading ---------------------------------------------------------------------------------------


async def put_many(context: EventContext) -> None:
    """Put a thousand keys."""
    for number in range(KEYS):
        context.store.put(
            f"key-{context.message.offset}-{number}", {"count": number, "of": "x" * 30}
        )


async def filled(source: Any, state: StateBackend, count: int) -> None:
    """Put `KEYS` entries for each record."""
    async with Consumer(source, ordering="partition", commits=Commits(every=0.1)) as consumer:

        async def handle(context: EventContext) -> None:
            await put_many(context)
            if context.message.offset == count - 1:
                consumer.stop()

        report = await consumer.run_events(handle, state=state)
    assert report.commit_error is None


async def read(source: Any, state: Any, count: int) -> Took:
    """Run until the state is read."""
    async with Consumer(source, ordering="partition") as consumer, asyncio.TaskGroup() as tasks:
        size = 0

        async def look(context: EventContext) -> None:
            nonlocal size
            size = len(context.store)

        watch = Stopwatch()
        run = tasks.create_task(consumer.run_events(look, state=state))
        await consumer.wait_ready()
        await consumer.interject(look)
        took = watch.read()
        consumer.stop()
        await run
    assert size == count
    return took


@contextlib.contextmanager
def prepare_reading(count: int) -> Iterator[Sequence[Contender]]:
    from sluicegate.kafka import KafkaSource

    events = max(1, count // KEYS)
    given = records(events)
    with postgres_server() as dsn, a_broker() as broker:
        where = broker.bootstrap
        fill(broker, TOPIC, events, keys=KEYS)

        async def fill_both() -> None:
            async with PostgresState(dsn, table="state", max_pending_bytes=4 << 20) as state:
                await filled(state.attach(source_of(MemoryLog(given))), state, events)
            async with KafkaState(
                topic="state", bootstrap=where, max_pending_bytes=4 << 20
            ) as other:
                source = KafkaSource(TOPIC, bootstrap=where, group="state")
                await filled(other.attach(source), other, events)

        async def postgres() -> Took:
            async with PostgresState(dsn, table="state") as state:
                return await read(state.attach(endless(given)), state, events * KEYS)

        async def kafka() -> Took:
            async with KafkaState(topic="state", bootstrap=where) as state:
                source = KafkaSource(TOPIC, bootstrap=where, group="state")
                return await read(state.attach(source), state, events * KEYS)

        asyncio.run(fill_both())
        yield (
            Contender(READ_POSTGRES, lambda: asyncio.run(postgres()), ours=True),
            Contender(READ_KAFKA, lambda: asyncio.run(kafka()), ours=True),
        )


def endless(given: Sequence[Record]) -> Any:
    """Make a source that does not end with its log."""
    from sluicegate.consumer import MemorySource

    return MemorySource(MemoryLog(given))


CASES = (
    Case(
        name="state",
        title=f"Counts of {KEYS:,} keys that are stored with the position",
        prepare=prepare_postgres,
        items=100_000,
        quick_items=500,
        is_drawn=False,
        unit=US_PER_ITEM,
        peers=(BY_HAND,),
        by=Clock.PROCESSOR,
    ),
    Case(
        name="state-kafka",
        title="The same from a topic, in transactions of Kafka",
        prepare=prepare_kafka,
        items=100_000,
        quick_items=500,
        is_drawn=False,
        unit=US_PER_ITEM,
        peers=(BY_HAND,),
    ),
    Case(
        name="state-read",
        title="A state of 1,000,000 entries, read at the start of a claim",
        prepare=prepare_reading,
        items=1_000_000,
        quick_items=2_000,
        is_drawn=False,
        unit=US_PER_ITEM,
        peers=(),
    ),
)
