"""`PostgresStreamSink`: what a write appends and refuses, and what a retry finds.

White box: the type of an appended message is private.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import ssl
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.postgres.access_help import access_from
from tests.postgres.sink.postgres_help import batch_of, outcomes, proxied

from sluicegate import (
    Batcher,
    ConfigError,
    ErrorClass,
    Limits,
    Outcome,
    PermanentError,
    RefusedError,
    RowBatch,
    UnavailableError,
    UnknownOutcomeError,
    send,
)
from sluicegate.errors import KeyStopped, MessageIdConflict, NotPicklableError
from sluicegate.postgres import NewMessage, PostgresAccess, PostgresStreamSink, StreamLog
from sluicegate.postgres.streams.message import Appended

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.batcher import LoopClock


def sink(log: Log, **options: Any) -> PostgresStreamSink:
    given: dict[str, Any] = {
        "dsn": log.dsn,
        "schema": log.schema,
        "stream": "stream",
        "type": "type",
        **options,
    }
    return PostgresStreamSink(access_from(given.pop("dsn"), given), **given)


def item(stream: str, n: object, **more: Any) -> dict[str, Any]:
    return {"stream": stream, "type": "Happened", "n": n, **more}


async def stored(log: Log) -> list[tuple[str, int, Any]]:
    """Stream, version and number of each message, by position."""
    async with log.connected() as con:
        rows = await con.fetch(
            f"SELECT stream, version, data FROM {log.sql}.message ORDER BY position"
        )
    return [(row[0], row[1], json.loads(row[2])["n"]) for row in rows]


async def test_positions_are_in_the_order_of_items_and_versions_in_that_of_each_stream(
    log: Log, real_clock: LoopClock
) -> None:
    """Also if rows are added in another order, as the stream names here are not in order."""
    async with sink(log) as open_sink:
        items = [item("b-1", 0), item("a-1", 1), item("b-1", 2), item("c-1", 3), item("a-1", 4)]
        assert await send(open_sink, RowBatch(items)) == {}
        assert await send(open_sink, RowBatch([item("a-1", 5)])) == {}
    assert await stored(log) == [
        ("b-1", 0, 0),
        ("a-1", 0, 1),
        ("b-1", 1, 2),
        ("c-1", 0, 3),
        ("a-1", 1, 4),
        ("a-1", 2, 5),
    ]


async def test_receipts_have_positions_and_versions(log: Log, real_clock: LoopClock) -> None:
    limits = Limits(max_delay=0.01)
    async with Batcher(sink(log), key=lambda row: row["stream"], limits=limits) as batcher:
        receipts = [await batcher.submit(item(f"a-{n % 2}", n)) for n in range(4)]
        await asyncio.gather(*receipts)
    details = [receipt.detail for receipt in receipts]
    made = [each for each in details if isinstance(each, Appended) and each.is_new]
    async with log.connected() as con:
        rows = await con.fetch(
            f"SELECT position, version, id, at FROM {log.sql}.message ORDER BY 1"
        )
    assert [tuple(row) for row in rows] == [each[:4] for each in sorted(made)]
    assert len(rows) == 4


async def test_the_parts_of_a_message_are_fields_or_functions(
    log: Log, real_clock: LoopClock
) -> None:
    given = uuid4()
    message = NewMessage("Placed", {"n": 1}, {"trace": "x"}, given)
    async with sink(
        log,
        stream=lambda each: f"order-{each.data['n']}",
        data="data",
        metadata="metadata",
        id="id",
    ) as open_sink:
        assert await send(open_sink, RowBatch([message])) == {}
    async with log.connected() as con:
        row = await con.fetchrow(
            f"SELECT stream, type, data::text, metadata::text, id FROM {log.sql}.message"
        )
    assert tuple(row) == ("order-1", "Placed", '{"n": 1}', '{"trace": "x"}', given)


class Plain:
    pass


async def test_an_item_that_cannot_become_a_message_fails_alone(
    log: Log, real_clock: LoopClock
) -> None:
    bad: list[Any] = [
        item("", 1),
        item("a-1", 1, type=None),
        item("a-1", float("nan")),
        item("a-1", "\0"),
        item("a-1", b"bytes"),
        item("a-1", Plain()),
        item("a-1", "\ud800"),
        item("a-1", 1, meta=[1]),
        item("a-1", 1, id="17"),
        {"type": "Happened"},
    ]
    items = [item("a-1", "first"), *bad, item("a-1", "last")]
    async with sink(log, metadata=lambda row: row.get("meta"), id=lambda row: row.get("id")) as it:
        errors = await send(it, RowBatch(items))
    assert sorted(errors) == list(range(1, len(bad) + 1))
    assert {type(error) for error in errors.values()} == {PermanentError}
    assert await stored(log) == [("a-1", 0, "first"), ("a-1", 1, "last")]


async def test_a_message_that_the_server_refuses_fails_alone_and_holds_its_key(
    log: Log, real_clock: LoopClock
) -> None:
    """A user-defined constraint: found by halves, within one transaction."""
    async with log.connected() as con:
        await con.execute(
            f"ALTER TABLE {log.sql}.message ADD CHECK ((data -> 'n')::int NOT IN (3, 6))"
        )
    items = [item(f"a-{n % 2}", n) for n in range(12)]
    async with sink(log) as open_sink:
        errors = await send(open_sink, RowBatch(items, keys=[row["stream"] for row in items]))
    assert {n: type(error) for n, error in errors.items()} == {
        3: PermanentError,
        6: PermanentError,
        **dict.fromkeys((5, 7, 8, 9, 10, 11), KeyStopped),
    }
    assert isinstance(errors[3].__cause__, asyncpg.CheckViolationError)
    assert sorted(n for _, _, n in await stored(log)) == [0, 1, 2, 4]
    async with log.connected() as con:
        assert await con.fetchval(f"SELECT count(DISTINCT xmin::text) FROM {log.sql}.message") <= 4


async def test_a_key_of_several_streams_is_in_order_too(log: Log, real_clock: LoopClock) -> None:
    taken = str(UUID(int=1))
    items = [item("b-1", 0, id=taken), item("a-1", 1), item("a-2", 2)]
    async with sink(log, id=lambda row: row.get("id")) as open_sink:
        assert await send(open_sink, RowBatch([item("z-1", 9, id=taken)])) == {}
        errors = await send(open_sink, RowBatch(items, keys=["one", "one", "other"]))
    assert {n: type(error) for n, error in errors.items()} == {0: MessageIdConflict, 1: KeyStopped}
    assert sorted(n for _, _, n in await stored(log)) == [2, 9]


async def test_an_id_that_is_known_is_delivered_and_not_appended_again(
    log: Log, real_clock: LoopClock
) -> None:
    """Also with other contents, in one batch, and beside new ones."""
    one, two, three = (str(UUID(int=n)) for n in range(3))
    async with sink(log, id="id") as open_sink:
        assert await send(open_sink, RowBatch([item("a-1", 0, id=one)])) == {}
        batch = RowBatch(
            [
                item("a-1", 1, id=two),
                item("a-1", 0, id=one),
                item("a-1", 9, id=one),
                item("b-1", 0, id=one),
                item("a-1", 2, id=three),
                item("a-1", 2, id=three),
            ]
        )
        errors = await send(open_sink, batch)
    assert {n: type(error) for n, error in errors.items()} == dict.fromkeys(
        (2, 3), MessageIdConflict
    )
    assert one in str(errors[2])
    assert outcomes(batch)[1] is Outcome.DELIVERED
    assert await stored(log) == [("a-1", 0, 0), ("a-1", 1, 1), ("a-1", 2, 2)]


async def test_a_retry_after_an_unknown_outcome_finds_what_was_appended(
    log: Log, real_clock: LoopClock
) -> None:
    """The connection is lost with the answer. No message is appended twice."""
    async with proxied(log.dsn) as (proxy, through), sink(log, dsn=through) as open_sink:
        batch = batch_of([item(f"a-{n % 3}", n) for n in range(50)])
        proxy.cut_answer = "SELECT 50"
        errors = await send(open_sink, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert len(await stored(log)) == 50
        assert await send(open_sink, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DUPLICATE}
        assert len(await stored(log)) == 50


async def test_a_retry_after_an_unknown_outcome_appends_what_was_not(
    log: Log, real_clock: LoopClock
) -> None:
    """The connection is lost with the request."""
    async with proxied(log.dsn) as (proxy, through), sink(log, dsn=through) as open_sink:
        batch = batch_of([item("a-1", n) for n in range(5)])
        proxy.cut_request = lambda kind, body: kind == b"B"
        errors = await send(open_sink, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert await stored(log) == []
        assert await send(open_sink, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DELIVERED}
        assert [n for _, _, n in await stored(log)] == [*range(5)]


async def test_writers_of_the_same_streams_wait_for_each_other_and_never_deadlock(
    log: Log, real_clock: LoopClock
) -> None:
    """Two sinks, batches of the same streams in different orders, and a user's own appends."""

    async def writes(open_sink: PostgresStreamSink, number: int) -> None:
        streams = [f"s-{(n * (number + 3) + number) % 7}" for n in range(14)]
        for _ in range(8):
            assert await send(open_sink, RowBatch([item(each, number) for each in streams])) == {}

    async def appends() -> None:
        async with log.connected() as con:
            for n in range(30):
                await StreamLog(log.schema).append(con, f"s-{n % 7}", NewMessage("T", {"n": -1}))

    async with sink(log) as one, sink(log) as other:
        await asyncio.gather(
            *(writes(each, n) for each in (one, other) for n in range(3)), appends()
        )
    found = await stored(log)
    assert len(found) == 6 * 8 * 14 + 30
    for stream in {each[0] for each in found}:
        versions = [each[1] for each in found if each[0] == stream]
        assert sorted(versions) == [*range(len(versions))]


async def test_a_log_that_is_missing_is_named_at_opening_and_in_a_write(
    log: Log, real_clock: LoopClock
) -> None:
    with pytest.raises(ConfigError, match="sluicegate pg install"):
        async with sink(log, schema="nowhere"):
            pass
    async with sink(log) as open_sink:
        async with log.connected() as con:
            await con.execute(f"DROP SCHEMA {log.sql} CASCADE")
        errors = await send(open_sink, RowBatch([item("a-1", 1), item("a-1", 2)]))
    error = errors[0]
    assert isinstance(error, RefusedError)
    assert "sluicegate pg install" in error.repair
    assert error is errors[1]


async def test_a_right_that_is_missing_refuses_every_message(
    log: Log, real_clock: LoopClock
) -> None:
    """When the sink is opened, and in an open sink."""
    async with log.connected() as con:
        await con.execute(
            f"CREATE ROLE reads_{log.schema} LOGIN PASSWORD 'secret'; "
            f"GRANT USAGE ON SCHEMA {log.sql} TO reads_{log.schema}; "
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {log.sql} TO reads_{log.schema}"
        )
    try:
        user = log.dsn.partition("//")[2].partition("@")[0]
        dsn = log.dsn.replace(user, f"reads_{log.schema}:secret")
        with pytest.raises(ConfigError, match=f"--append reads_{log.schema}$"):
            await sink(log, dsn=dsn).__aenter__()
        append = f"EXECUTE ON FUNCTION {log.sql}.append"
        async with log.connected() as con:
            await con.execute(f"GRANT {append} TO reads_{log.schema}")
            async with sink(log, dsn=dsn) as open_sink:
                await con.execute(f"REVOKE {append} FROM reads_{log.schema}")
                errors = await send(open_sink, RowBatch([item("a-1", 1)]))
        assert isinstance(errors[0], RefusedError)
        assert "--append ROLE" in errors[0].repair
        assert "secret" not in repr(open_sink) + str(errors[0])
    finally:
        async with log.connected() as con:
            await con.execute(f"DROP OWNED BY reads_{log.schema}; DROP ROLE reads_{log.schema}")


async def test_a_server_that_does_not_answer_is_unavailable(real_clock: LoopClock) -> None:
    made = PostgresStreamSink("postgresql://u:secret@127.0.0.1:1/x", stream="s", type="t")
    with pytest.raises(UnavailableError) as caught:
        async with made:
            pass
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"stream": None}, "stream=None"),
        ({"type": ""}, "type=''"),
        ({"data": 7}, "data=7"),
        ({"schema": "a b"}, "schema="),
        ({"dsn": "mysql://u:secret@x"}, "dsn="),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"stream": "stream", "type": "type", **options}
    with pytest.raises(ConfigError) as caught:
        PostgresStreamSink(given.pop("dsn", "postgresql://nowhere"), **given)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_sink_is_a_description_that_travels() -> None:
    made = PostgresStreamSink("postgresql://u:secret@h/x", stream="s", type="t", id="i")
    copy = pickle.loads(pickle.dumps(made))
    assert repr(copy) == repr(made) == "PostgresStreamSink(h/x, schema='sluicegate')"
    assert copy.capabilities == made.capabilities
    assert made.capabilities.idempotent
    assert not PostgresStreamSink(
        "postgresql://nowhere", stream="s", type="t"
    ).capabilities.idempotent
    assert made.classify(ConnectionRefusedError()) is ErrorClass.UNAVAILABLE


def test_an_option_that_cannot_travel_is_named() -> None:
    options = {"ssl": ssl.create_default_context()}
    access = PostgresAccess("postgresql://db", connect_options=options)
    made = PostgresStreamSink(access, stream="s", type="t")
    with pytest.raises(NotPicklableError, match="connect_options"):
        pickle.dumps(made)


async def test_a_pool_of_the_application_serves_and_stays_open(
    log: Log, real_clock: LoopClock
) -> None:
    async with asyncpg.create_pool(log.dsn, min_size=0, max_size=2) as pool:
        async with sink(log, dsn=None, pool=pool) as open_sink:
            assert await send(open_sink, RowBatch([item("a-1", 1)])) == {}
        assert await pool.fetchval("SELECT 1") == 1
    assert await stored(log) == [("a-1", 0, 1)]


@pytest.mark.parametrize("prepared", [True, False])
async def test_statements_need_not_be_prepared(
    log: Log, real_clock: LoopClock, *, prepared: bool
) -> None:
    """As behind a pooler: each write is a transaction block then."""
    async with log.connected() as con:
        await con.execute(f"ALTER TABLE {log.sql}.message ADD CHECK ((data -> 'n')::int <> 3)")
    async with sink(log, prepared_statements=prepared, id="id") as open_sink:
        items = [item("a-1", n, id=str(UUID(int=n))) for n in range(5)]
        for _ in range(2):
            assert list(await send(open_sink, RowBatch(items))) == [3]
    assert [n for _, _, n in await stored(log)] == [0, 1, 2, 4]
