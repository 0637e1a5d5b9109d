"""`PostgresQueueSink`: the jobs that a write enqueues, omits and refuses.

White box: the details of a result, the slot of a key, and the channel.
"""

from __future__ import annotations

import asyncio
import pickle
import ssl
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.postgres.queues.sink.queue_help import create_queue, item, sink, stored
from tests.postgres.sink.postgres_help import outcomes

from sluicegate import (
    Batcher,
    ConfigError,
    ErrorClass,
    Limits,
    Outcome,
    PermanentError,
    RowBatch,
    send,
)
from sluicegate.errors import KeyStopped, NotPicklableError
from sluicegate.postgres import PostgresAccess, PostgresQueueSink
from sluicegate.postgres.queues.enqueue import Enqueued, queue_channel
from sluicegate.postgres.queues.ring import ring_slot

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock


async def test_the_jobs_of_a_key_are_in_the_order_of_their_items(
    log: Log, real_clock: LoopClock
) -> None:
    await create_queue(log)
    async with sink(log, key="key") as it:
        items = [item("b", 0), item("a", 1), item("b", 2), item(None, 3), item("a", 4)]
        assert await send(it, RowBatch(items)) == {}
        assert await send(it, RowBatch([item("a", 5)])) == {}
    assert await stored(log) == [
        ("b", 0),
        ("a", 1),
        ("b", 2),
        (None, 3),
        ("a", 4),
        ("a", 5),
    ]


async def test_receipts_have_the_places_of_the_jobs(log: Log, real_clock: LoopClock) -> None:
    await create_queue(log)
    limits = Limits(max_delay=0.01)
    async with Batcher(sink(log, key="key"), key=lambda row: row["key"], limits=limits) as batcher:
        receipts = [await batcher.submit(item(f"k{n % 2}", n)) for n in range(4)]
        await asyncio.gather(*receipts)
    found = [receipt.detail for receipt in receipts]
    made = [each for each in found if isinstance(each, Enqueued) and each.is_new]
    async with log.connected() as con:
        rows = await con.fetch(f"SELECT place, id FROM {log.sql}.job ORDER BY place")
    assert [tuple(row) for row in rows] == sorted((each.place, each.id) for each in made)
    assert len(rows) == 4


async def test_the_parts_of_a_job_are_fields_or_functions(log: Log, real_clock: LoopClock) -> None:
    await create_queue(log)
    due = datetime(2040, 5, 1, 12, 30, 0, 250, timezone(timedelta(hours=2)))
    given = uuid4()
    row = {"order": 17, "what": {"n": 1}, "meta": {"trace": "x"}, "at": due, "id": given}
    async with sink(
        log,
        key=lambda each: f"order-{each['order']}",
        payload="what",
        headers="meta",
        due="at",
        priority=lambda each: -3,
        id="id",
        queueing_lock=lambda each: "one",
    ) as it:
        assert await send(it, RowBatch([row])) == {}
    async with log.connected() as con:
        found = await con.fetchrow(
            "SELECT key, payload::text, headers::text, due, priority, id, queueing_lock, slot "
            f"FROM {log.sql}.job"
        )
    assert tuple(found) == (
        "order-17",
        '{"n": 1}',
        '{"trace": "x"}',
        due.astimezone(UTC),
        -3,
        given,
        "one",
        None,
    )


async def test_optional_parts_may_be_missing_from_single_items(
    log: Log, real_clock: LoopClock
) -> None:
    await create_queue(log)
    due = datetime(2040, 1, 1, tzinfo=UTC)
    full = {"key": "a", "headers": {"x": 1}, "due": due, "priority": 5, "id": uuid4(), "lock": "l"}
    items = [{**dict.fromkeys(full), "n": 0}, {**full, "n": 1}, {**dict.fromkeys(full), "n": 2}]
    async with sink(
        log,
        payload="n",
        queueing_lock="lock",
        **{name: name for name in ("key", "headers", "due", "priority", "id")},
    ) as it:
        assert await send(it, RowBatch(items)) == {}
    async with log.connected() as con:
        rows = await con.fetch(
            "SELECT payload::text, key, headers::text, due, priority, queueing_lock, "
            f"id IS NOT NULL FROM {log.sql}.job ORDER BY place"
        )
    plain = (None, "{}", None, 0, None, True)
    assert [tuple(row) for row in rows] == [
        ("0", *plain),
        ("1", "a", '{"x": 1}', due, 5, "l", True),
        ("2", *plain),
    ]


class Plain:
    pass


BAD: list[dict[str, Any]] = [
    item("", 1),
    item("\0", 1),
    item("\ud800", 1),
    item("x" * 1001, 1),
    item("é" * 501, 1),
    {"key": 1.5, "n": 1},
    {"key": True, "n": 1},
    {"key": -1, "n": 1},
    {"key": 1 << 128, "n": 1},
    {"key": b"a", "n": 1},
    {"n": 1},
    item("a", float("nan")),
    item("a", "\0"),
    item("a", b"bytes"),
    item("a", Plain()),
    item("a", "\ud800"),
    item("a", 1, headers=[1]),
    item("a", 1, headers="x"),
    item("a", 1, headers={"x": Plain()}),
    item("a", 1, headers={"x": "\0"}),
    item("a", 1, due="2040-01-01"),
    item("a", 1, due=datetime(2040, 1, 1)),
    item("a", 1, due=datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))),
    item("a", 1, due=12.5),
    item("a", 1, priority=1 << 15),
    item("a", 1, priority="high"),
    item("a", 1, priority=True),
    item("a", 1, id="17"),
    item("a", 1, id=17),
    item("a", 1, lock=""),
    item("a", 1, lock=7),
    item("a", 1, lock="x" * 1001),
]


async def test_an_item_that_cannot_become_a_job_fails_alone(
    log: Log, real_clock: LoopClock
) -> None:
    """Each of these would fail the statement, or be stored as something different."""
    await create_queue(log)
    items = [item("a", "first")]
    for each in BAD:
        items += [each, item("a", "good")]
    async with sink(
        log,
        key="key",
        headers=lambda row: row.get("headers"),
        due=lambda row: row.get("due"),
        priority=lambda row: row.get("priority"),
        id=lambda row: row.get("id"),
        queueing_lock=lambda row: row.get("lock"),
    ) as it:
        errors = await send(it, RowBatch(items))
    assert sorted(errors) == [*range(1, 2 * len(BAD), 2)]
    assert {type(error) for error in errors.values()} == {PermanentError}
    assert len(await stored(log)) == len(BAD) + 1


async def test_an_error_of_an_item_names_the_part_and_its_summary_quotes_nothing(
    log: Log, real_clock: LoopClock
) -> None:
    await create_queue(log)
    async with sink(log, key="key") as it:
        errors = await send(it, RowBatch([item("x" * 1001, 1), item("a", float("nan"))]))
    assert "key='xxx" in str(errors[0])
    assert "1000 bytes" in str(errors[0])
    assert "payload=" in str(errors[1])
    assert "xxx" not in str(errors[0].summary)  # type: ignore[attr-defined]  # a SinkError


async def test_a_job_that_the_server_refuses_fails_alone_and_holds_its_key(
    log: Log, real_clock: LoopClock
) -> None:
    """A user's constraint: found by halves, within one transaction."""
    await create_queue(log)
    async with log.connected() as con:
        await con.execute(
            f"ALTER TABLE {log.sql}.job ADD CHECK ((payload -> 'n')::int NOT IN (3, 6))"
        )
    items = [item(f"k{n % 2}", n) for n in range(12)]
    async with sink(log, key="key") as it:
        errors = await send(it, RowBatch(items, keys=[row["key"] for row in items]))
    assert {n: type(error) for n, error in errors.items()} == {
        3: PermanentError,
        6: PermanentError,
        **dict.fromkeys((5, 7, 8, 9, 10, 11), KeyStopped),
    }
    assert isinstance(errors[3].__cause__, asyncpg.CheckViolationError)
    assert sorted(each.n for each in await stored(log)) == [0, 1, 2, 4]


async def test_an_item_that_cannot_become_a_job_holds_its_key(
    log: Log, real_clock: LoopClock
) -> None:
    await create_queue(log)
    items = [item("a", 0), item("b", float("nan")), item("a", 2), item("b", 3)]
    async with sink(log, key="key") as it:
        errors = await send(it, RowBatch(items, keys=[row["key"] for row in items]))
    assert {n: type(error) for n, error in errors.items()} == {1: PermanentError, 3: KeyStopped}
    assert [each.n for each in await stored(log)] == [0, 2]


async def test_an_id_that_is_known_is_a_duplicate(log: Log, real_clock: LoopClock) -> None:
    """Q-T14: known from an earlier write, from the same one, or beside new ones; also after the job
    is done.
    """
    await create_queue(log)
    one, two = str(UUID(int=1)), str(UUID(int=2))
    async with sink(log, key="key", id="id") as it:
        assert await send(it, RowBatch([item("a", 0, id=one)])) == {}
        async with log.connected() as con:
            await con.execute(f"DELETE FROM {log.sql}.job")
        items = [
            item("a", 1, id=two),
            item("a", 0, id=one),
            item("a", 2, id=two),
            item("b", 3, id=None),
        ]
        batch = RowBatch(items)
        result = await it.write(batch)
    assert result is not None
    known = [result.details[n] for n in (1, 2)]
    assert known == [Enqueued(None, UUID(one), "known"), Enqueued(None, UUID(two), "known")]
    assert result.outcomes == {1: Outcome.DUPLICATE, 2: Outcome.DUPLICATE}
    assert result.errors == {}
    assert [each.n for each in await stored(log)] == [1, 3]


async def test_a_queueing_lock_lets_one_job_wait(log: Log, real_clock: LoopClock) -> None:
    """The second is omitted until the first is claimed; its id does not block it afterwards."""
    await create_queue(log)
    async with sink(log, queueing_lock="lock") as it:
        batch = RowBatch([item("a", n, lock=lock) for n, lock in enumerate(["x", "x", "y", None])])
        result = await it.write(batch)
        assert result is not None
        assert result.outcomes == {1: Outcome.DUPLICATE}
        told = result.details[1]
        assert isinstance(told, Enqueued)
        assert (told.place, told.state, told.is_new) == (None, "locked", False)
        assert [each.n for each in await stored(log)] == [0, 2, 3]
        async with log.connected() as con:
            await con.fetch(f"SELECT {log.sql}.claim_jobs('jobs', 'g', 'c', 10, 10, 10, 30)")
        assert await send(it, batch.pick([1])) == {}
    assert outcomes(batch)[1] is Outcome.DELIVERED
    assert [each.n for each in await stored(log)] == [0, 2, 3, 1]


async def test_slots_of_a_blake3_queue_are_sent_and_others_are_the_servers(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T6: a number of 128 bits is hashed as its bytes; the key in the table is its text."""
    await create_queue(log, "plain")
    await create_queue(log, "blake", slot_function="blake3")
    keys: list[Any] = ["a", 17, (1 << 128) - 1, None]
    for queue in ("plain", "blake"):
        async with sink(log, queue=queue, key=lambda row: row[0], payload=lambda row: 1) as it:
            assert await send(it, RowBatch([(key,) for key in keys])) == {}
    async with log.connected() as con:
        rows = await con.fetch(f"SELECT queue, key, slot FROM {log.sql}.job ORDER BY place")
    texts = ["a", "17", str((1 << 128) - 1), None]
    slots = [*(ring_slot(key, "blake3") for key in keys[:3]), None]
    assert [tuple(row) for row in rows] == [
        *(("plain", text, None) for text in texts),
        *(("blake", text, slot) for text, slot in zip(texts, slots, strict=True)),
    ]


async def test_a_long_batch_is_enqueued_in_several_statements_of_one_transaction(
    log: Log, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.postgres.queues.sink.PART", 2000)
    await create_queue(log)
    items = [item("a", "x" * 900) for _ in range(7)]
    for prepared in (True, False):
        async with sink(log, key="key", prepared_statements=prepared) as it:
            assert await send(it, RowBatch(items)) == {}
    async with log.connected() as con:
        rows = await con.fetch(f"SELECT count(*), count(DISTINCT xmin::text) FROM {log.sql}.job")
    assert [tuple(row) for row in rows] == [(14, 2)]


async def test_a_pool_of_the_application_serves_and_stays_open(
    log: Log, real_clock: LoopClock
) -> None:
    await create_queue(log)
    async with asyncpg.create_pool(log.dsn, min_size=0, max_size=2) as pool:
        async with sink(log, dsn=None, pool=pool) as it:
            assert await send(it, RowBatch([item(None, 1)])) == {}
        assert await pool.fetchval("SELECT 1") == 1
    assert await stored(log) == [(None, 1)]


@pytest.mark.parametrize("prepared", [True, False])
async def test_statements_need_not_be_prepared(
    log: Log, real_clock: LoopClock, *, prepared: bool
) -> None:
    """As behind a pooler in transaction mode: each write is a transaction block then."""
    await create_queue(log)
    async with log.connected() as con:
        await con.execute(f"ALTER TABLE {log.sql}.job ADD CHECK ((payload -> 'n')::int <> 3)")
    async with sink(log, prepared_statements=prepared, id="id") as it:
        items = [item("a", n, id=str(UUID(int=n))) for n in range(5)]
        for _ in range(2):
            assert list(await send(it, RowBatch(items))) == [3]
    assert [each.n for each in await stored(log)] == [0, 1, 2, 4]


async def test_consumers_are_notified_of_new_jobs(log: Log, real_clock: LoopClock) -> None:
    """Not of known ones."""
    await create_queue(log)
    told: asyncio.Queue[str] = asyncio.Queue()
    async with log.connected() as con:
        await con.add_listener(queue_channel(log.schema), lambda *what: told.put_nowait(what[2]))
        async with sink(log, id="id") as it:
            assert await send(it, RowBatch([item(None, 1, id=UUID(int=1))])) == {}
            assert await told.get() == queue_channel(log.schema)
            assert await send(it, RowBatch([item(None, 1, id=UUID(int=1))])) == {}
        await con.execute("SELECT 1")
        assert told.empty()
        assert queue_channel("x" * 60).startswith("sluicegate-queue:")
        assert len(queue_channel("x" * 60)) == 63


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"queue": ""}, "queue=''"),
        ({"queue": None}, "queue=None"),
        ({"queue": "x" * 201}, "200 bytes"),
        ({"key": 7}, "key=7"),
        ({"payload": ""}, "payload=''"),
        ({"headers": {"a": 1}}, "headers="),
        ({"due": datetime(2040, 1, 1, tzinfo=UTC)}, "due="),
        ({"priority": 3}, "priority=3"),
        ({"id": 1}, "id=1"),
        ({"queueing_lock": 1}, "queueing_lock=1"),
        ({"schema": "a b"}, "schema="),
        ({"dsn": "mysql://u:secret@x"}, "dsn="),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"queue": "jobs", **options}
    with pytest.raises(ConfigError) as caught:
        PostgresQueueSink(given.pop("dsn", "postgresql://nowhere"), **given)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_sink_is_a_description_that_travels() -> None:
    made = PostgresQueueSink("postgresql://u:secret@h/x", queue="jobs", key="k", id="i")
    copy = pickle.loads(pickle.dumps(made))
    assert repr(copy) == repr(made) == "PostgresQueueSink(h/x, queue='jobs', schema='sluicegate')"
    assert copy.capabilities == made.capabilities
    assert made.capabilities.idempotent
    assert made.capabilities.key_prefix_safe
    assert made.capabilities.max_concurrency == 10
    assert not made.capabilities.transactional
    locked = PostgresQueueSink("postgresql://nowhere", queue="jobs", id="i", queueing_lock="l")
    for other in (locked, PostgresQueueSink("postgresql://nowhere", queue="jobs")):
        assert not other.capabilities.idempotent
    assert made.classify(ConnectionRefusedError()) is ErrorClass.UNAVAILABLE


def test_an_option_that_cannot_travel_is_named() -> None:
    options = {"ssl": ssl.create_default_context()}
    made = PostgresQueueSink(PostgresAccess("postgresql://db", connect_options=options), queue="j")
    with pytest.raises(NotPicklableError, match="connect_options"):
        pickle.dumps(made)


async def test_a_payload_longer_than_the_server_takes_fails_alone(
    log: Log, real_clock: LoopClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.postgres.queues.sink.LONGEST_PAYLOAD", 50)
    await create_queue(log)
    async with sink(log) as it:
        errors = await send(it, RowBatch([item(None, 1), item(None, "x" * 50), item(None, 3)]))
    assert list(errors) == [1]
    assert "characters of JSON" in str(errors[1])
    assert [each.n for each in await stored(log)] == [1, 3]
