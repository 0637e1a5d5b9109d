"""A position lost while the source keeps its claim: the claim is replaced, and the run continues
with the stored state.

White box: shorter intervals in which a lost position is noticed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kept_topic import LAST, ended
from state_help import StateTables, state_tables
from tests.kafka.source.kafka_help import fill, new_topic, produce, stored
from tests.kafka.source.proxy_help import Api, proxied
from tests.kafka.state.state_counted import Counted, counted
from tests.kafka.state.state_topics import all_committed, settled_state
from tests.postgres.streams.log_help import Log, fresh_name, install_log

from sluicegate import Consumer
from sluicegate.batcher import LoopClock
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Record
from sluicegate.consumer.jobs import event_run
from sluicegate.errors import PositionLost
from sluicegate.kafka import KafkaAccess, KafkaRecord, KafkaSink
from sluicegate.postgres import PostgresStreamSource

if TYPE_CHECKING:
    from sluicegate.consumer import Source
    from sluicegate.consumer.jobs import EventContext
    from sluicegate.testing import EmbeddedKafka, EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_run, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(event_run, "LOST_MOST", 0.1)


class Counting:
    """A counting handler, and the run of a consumer with its state in tables."""

    def __init__(self, tables: StateTables) -> None:
        self.handled: list[int] = []
        self._tables = tables

    async def handle(self, context: EventContext) -> None:
        """Count."""
        self.handled.append(context.message.offset)
        context.store.put("n", context.store.get("n", 0) + 1)

    async def run(self, source: Source, **options: Any) -> None:
        """Run until cancelled or until the source ends."""
        async with (
            self._tables.state() as state,
            Consumer(
                state.attach(source), ordering="partition", commits=Commits(every=0.01), **options
            ) as consumer,
        ):
            await consumer.run_events(self.handle, state=state)


def log_of(count: int) -> MemoryLog:
    """A log of this many records."""
    return MemoryLog([Record("t", 0, at, "k", b"") for at in range(count)])


async def _until(tables: StateTables, position: int) -> None:
    async with asyncio.timeout(60.0):
        while await tables.position() < position:
            pass


async def test_an_owner_that_was_taken_over_by_error(embedded_postgres: EmbeddedPostgres) -> None:
    """G-T24, consumer/G33: it stores none of its changes; the new claim continues where the other
    owner stopped.
    """
    async with state_tables(embedded_postgres.dsn) as tables:
        first, second = Counting(tables), Counting(tables)
        log = log_of(5)
        task = asyncio.create_task(first.run(MemorySource(log)))
        await _until(tables, 5)
        await second.run(MemorySource(log_of(8), ends=True))  # another process of the group
        for at in range(5, 10):
            log.append(Record("t", 0, at, "k", b""))
        await _until(tables, 10)
        task.cancel()
        assert await tables.stored() == (10, {"n": 10})
        assert first.handled[-2:] == [8, 9]
        assert second.handled == [5, 6, 7]


class Plain(MemorySource):
    """A source that cannot replace a claim."""

    replace = None  # type: ignore[assignment]


async def test_a_source_that_cannot_replace_a_claim_ends_the_run(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    async with state_tables(embedded_postgres.dsn) as tables:
        first, log = Counting(tables), log_of(5)
        task = asyncio.create_task(first.run(Plain(log)))
        await _until(tables, 5)
        await Counting(tables).run(MemorySource(log_of(8), ends=True))
        log.append(Record("t", 0, 5, "k", b""))
        with pytest.raises(
            PositionLost, match=r"its position is lost.*another process took it over"
        ):
            await task
        assert await tables.stored() == (8, {"n": 8})


@pytest.mark.long
async def test_a_slot_of_a_stream(embedded_postgres: EmbeddedPostgres) -> None:
    """Its lock is released, and the slot is claimed again."""
    log = Log(embedded_postgres.dsn, fresh_name())
    await install_log(log)
    async with state_tables(embedded_postgres.dsn) as tables, log.connected() as con:
        counting = Counting(tables)
        source = PostgresStreamSource(
            log.dsn, subscription="counts", schema=log.schema, slots_at_once=256, poll=0.02
        )
        await log.append(con, "s-1", 0, 1, 2)
        task = asyncio.create_task(counting.run(source))
        total = f'SELECT sum(value::text::int) FROM "{tables.table}" WHERE partition >= 0'
        async with asyncio.timeout(60.0):
            while not await tables.position(0) and len(counting.handled) < 3:
                await CLOCK.sleep(0.01)
            while await tables.con.fetchval(total) != 3:
                await CLOCK.sleep(0.01)
            await tables.con.execute(f'UPDATE "{tables.positions}" SET epoch = epoch + 1')
            await log.append(con, "s-1", 3, 4)
            while await tables.con.fetchval(total) != 5:
                await CLOCK.sleep(0.01)
        task.cancel()


async def test_a_transactional_id_that_was_claimed_by_error(
    broker: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """G-T24: for example by a frozen process that resumes while it begins a claim."""
    made = await counted(broker)
    async with (
        KafkaSink(made.topic, bootstrap=broker.bootstrap) as other,
        made.running(),
        asyncio.timeout(60.0),
    ):
        await produce(broker, made.topic, (b"k", b"v"))
        while (await stored(broker, made.group))[made.part].offset < 6:
            pass
        await other.claim_positions(made.group, [made.part])
        await fill(broker, made.topic, 4)
        while (await stored(broker, made.group))[made.part].offset < 10:
            pass
    found = await settled_state(broker, made.name, made.group, made.part)
    assert (found.position, found.state) == (10, {"n": 10})
    assert "its state is read again" in caplog.text
    assert made.handled[:6] == [*range(6)]
    assert {*made.handled[6:]} == {6, 7, 8, 9}


@pytest.mark.long
async def test_a_transaction_that_takes_longer_than_the_broker_allows(
    broker: EmbeddedKafka,
) -> None:
    """G-T24: the broker ends it and fences its producer. The run continues and sends each forwarded
    record once.
    """
    made, out = await counted(broker), await new_topic(broker)

    async def handle(context: EventContext) -> None:
        await Counted.handle(made, context)
        context.forward(KafkaRecord(out, str(context.message.offset)))

    made.handle = handle  # type: ignore[method-assign]
    async with proxied(broker) as proxy:
        access = KafkaAccess(proxy.bootstrap, request_timeout=40.0)
        options: dict[str, Any] = {"bootstrap": access, "transaction_timeout": 1.0}
        async with (
            made.running(commit_timeout=40.0, **options) as consumer,
            asyncio.timeout(90.0),
        ):
            while not consumer.ready:
                await CLOCK.sleep(0.01)
            gate = proxy.hold(Api.ADD_OFFSETS, "request")
            await produce(broker, made.topic, (b"k", b"v"))
            await gate.arrived.wait()
            await ended(broker, out)
            gate.open()
            await fill(broker, made.topic, 4)
            while (await stored(broker, made.group))[made.part].offset < 10:
                pass
    found = await settled_state(broker, made.name, made.group, made.part)
    assert (found.position, found.state) == (10, {"n": 10})
    sent = [each.value for each in await all_committed(broker, out)]
    assert sent == [LAST, *[b"%d" % at for at in range(5, 10)]]


# -- the start of a partition ----------------------------------------------------------------------


async def test_the_end_of_a_log_as_a_start_is_stored_before_any_event(
    broker: EmbeddedKafka,
) -> None:
    """consumer/G35: a crash before the first commit does not skip events behind it."""
    made = Counted(broker, await new_topic(broker))
    await fill(broker, made.topic, 5)
    async with made.running(start="latest") as consumer, asyncio.timeout(60.0):
        while not consumer.ready:
            await CLOCK.sleep(0.01)
        assert (await stored(broker, made.group))[made.part].offset == 5
    await fill(broker, made.topic, 3)  # while it is stopped
    async with made.running(start="latest"), asyncio.timeout(60.0):
        while (await stored(broker, made.group))[made.part].offset < 8:
            pass
    assert made.handled == [5, 6, 7]
    found = await settled_state(broker, made.name, made.group, made.part)
    assert (found.position, found.state) == (8, {"n": 3})
    assert [each["number"] for each in found.marks] == [*range(1, len(found.marks) + 1)]


@pytest.mark.long
@pytest.mark.parametrize("direction", ["request", "answer"])
async def test_a_start_whose_commit_has_no_answer(broker: EmbeddedKafka, direction: Any) -> None:
    """Its outcome is verified before the state is read again."""
    made = Counted(broker, await new_topic(broker))
    await fill(broker, made.topic, 5)
    async with proxied(broker) as proxy:
        gate = proxy.hold(Api.END_TRANSACTION, direction)
        access = KafkaAccess(proxy.bootstrap, request_timeout=0.3)
        async with (
            made.running(start="latest", bootstrap=access) as consumer,
            asyncio.timeout(60.0),
        ):
            while "last try failed" not in str(consumer.explain()):
                await CLOCK.sleep(0.01)
            gate.cut()
            while not consumer.ready:
                await CLOCK.sleep(0.01)
            await fill(broker, made.topic, 3)
            while (await stored(broker, made.group))[made.part].offset < 8:
                pass
    found = await settled_state(broker, made.name, made.group, made.part)
    assert (found.position, found.state) == (8, {"n": 3})


@pytest.mark.long
async def test_the_start_of_a_topic_is_stored_in_postgresql(
    broker: EmbeddedKafka, embedded_postgres: EmbeddedPostgres
) -> None:
    from sluicegate.kafka import KafkaSource

    topic = await new_topic(broker)
    await fill(broker, topic, 5)
    async with state_tables(embedded_postgres.dsn) as tables:
        counting = Counting(tables)
        source = KafkaSource(topic, bootstrap=broker.bootstrap, group=topic, start="latest")
        task = asyncio.create_task(counting.run(source))
        await _until(tables, 5)
        task.cancel()
        await asyncio.wait([task])
        assert counting.handled == []
