"""Connections that break during a write: the known outcomes, and how the next attempt resolves the
others.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
from tests.postgres.sink.postgres_help import batch_of, database, outcomes, proxied, written
from tests.sinks.conflict_cases import (
    DIFFERING,
    KEPT,
    NEVER,
    STOPPED,
    TOLD,
    UNKNOWN,
    batch_of_cases,
    expected_outcomes,
    stored_after,
    taken,
)

from sluicegate import ErrorClass, Outcome, UnavailableError, UnknownOutcomeError, send
from sluicegate.errors import KeyRepeated, KeyStopped, StoredRowDiffers, UnverifiableError

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

NOTHING_OF = ("BEGIN", "BEGIN ISOLATION LEVEL READ COMMITTED", "COMMIT", "")


def words(count: int, start: int = 0) -> list[tuple[int, str]]:
    return [(number, f"word {number}") for number in range(start, start + count)]


async def test_the_next_try_after_a_lost_acknowledgement_of_5000_rows_takes_three_statements(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T43, batcher/4b.11: existing rows are `duplicate`, and the table contains each once."""
    async with (
        database(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through) as sink,
    ):
        batch = batch_of(words(5000))
        proxy.cut_answer = "COPY"
        errors = await send(sink, batch)
        assert len(errors) == 5000
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert len(await db.rows()) == 5000
        proxy.statements.clear()
        assert await send(sink, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DUPLICATE}
        assert len(await db.rows()) == 5000
        assert (
            len(
                [
                    each
                    for each in proxy.statements
                    if each not in NOTHING_OF
                    and "atttypid" not in each
                    and "backend_pid" not in each
                ]
            )
            == 3
        ), "beside the types"


@pytest.mark.parametrize(("staging", "answer"), [(1, "COMMIT"), (1000, "INSERT")])
@pytest.mark.parametrize("mode", ["ignore", "update"])
async def test_a_lost_commit_is_unknown_and_sending_again_changes_nothing(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, staging: int, answer: str
) -> None:
    """B-T43, batcher/B38."""
    async with (
        database(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through, on_conflict=mode, staging_threshold=staging) as sink,
    ):
        batch = batch_of(words(100))
        proxy.cut_answer = answer
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        before = await db.rows()
        assert len(before) == 100
        assert await send(sink, batch) == {}
        assert await db.rows() == before
        assert set(outcomes(batch)) == {
            Outcome.DUPLICATE if mode == "ignore" else Outcome.DELIVERED
        }


async def test_a_connection_lost_before_the_commit_is_sent_is_an_outage_and_stores_nothing(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through, on_conflict="ignore", staging_threshold=1) as sink,
    ):
        batch = batch_of(words(100))
        proxy.cut_request = lambda kind, body: b"ON CONFLICT" in body
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {UnavailableError}
        assert not batch.maybe_applied
        assert await db.rows() == []
        proxy.cut_request = lambda kind, body: kind == b"Q" and body.startswith(b"COMMIT")
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}, (
            "it was sent, for all that this side knows"
        )
        assert await send(sink, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DELIVERED}, "nothing had been there"


async def test_a_copy_that_is_cut_in_the_middle_stores_nothing_and_can_be_sent_again(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """asyncpg may have sent all rows before it notices, so the outcome is unknown or an outage;
    both are resolved.
    """
    async with (
        database(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through) as sink,
    ):
        batch = batch_of((number, "x" * 100_000) for number in range(200))
        proxy.cut_request = lambda kind, body: kind == b"d"
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} <= {UnavailableError, UnknownOutcomeError}
        assert len(errors) == 200
        assert await db.rows() == []
        assert await send(sink, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DELIVERED}
        assert len(await db.rows()) == 200


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
async def test_a_key_with_null_is_not_sent_again(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    """No conflict would keep it from being stored twice."""
    async with (
        database(embedded_postgres.dsn, "id int UNIQUE, word text") as db,
        db.sink(on_conflict=mode, conflict_columns=("id",) if mode != "error" else None) as sink,
    ):
        batch = batch_of([(None, "a"), (1, "b"), (None, "c")], maybe=[0, 1])
        errors = await send(sink, batch)
        assert {index: type(error) for index, error in errors.items()} == {0: UnverifiableError}
        assert sorted(word for _, word in await db.rows()) == ["b", "c"]


async def test_small_batches_that_lose_their_answer_are_unknown_and_repaired_alike(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through) as sink,
    ):
        batch = batch_of(words(3))
        proxy.cut_request = lambda kind, body: kind == b"P" and b"INSERT" in body
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert await send(sink, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DELIVERED}, "nothing had been there"
        await db.con.execute(f"TRUNCATE {db.table}")
        batch = batch_of(words(3))
        proxy.cut_answer = "INSERT"
        errors = await send(sink, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert await send(sink, batch) == {}
        assert len(await db.rows()) == 3


@pytest.mark.parametrize("has_keys", [False, True])
async def test_a_conflict_is_judged_by_the_stored_row_and_by_the_items_before(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, *, has_keys: bool
) -> None:
    """batcher/4b.11. With keys, the items behind a failed one of their key wait."""
    async with database(embedded_postgres.dsn) as db, db.sink() as sink:
        await db.con.executemany(f"INSERT INTO {db.table} VALUES ($1, $2)", [*taken().items()])
        batch = batch_of_cases(has_keys=has_keys)
        errors = await send(sink, batch)
        assert outcomes(batch) == expected_outcomes(has_keys=has_keys)
        assert {at for at, e in errors.items() if type(e) is StoredRowDiffers} == DIFFERING
        stopped = {at for at, error in errors.items() if type(error) is KeyStopped}
        assert stopped == (STOPPED if has_keys else set())
        assert dict(await db.rows()) == stored_after()


@pytest.mark.parametrize("statement", ["values", "copy"])
async def test_a_row_refused_by_its_neighbour_is_rejected_after_a_lost_commit(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, statement: str
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through, statement=statement) as sink,
    ):
        batch = batch_of([(1, "first"), (1, "second"), (2, "other")])
        proxy.cut_answer = "COPY" if statement == "copy" else "COMMIT"
        errors = await send(sink, batch)
        assert type(errors[0]) is type(errors[2]) is UnknownOutcomeError
        errors = await send(sink, batch)
        assert {at: type(error) for at, error in errors.items()} == {1: KeyRepeated}
        assert outcomes(batch) == [TOLD, NEVER, TOLD]
        assert await db.rows() == [(1, "first"), (2, "other")]


VALUES: list[tuple[str, object, str]] = [
    ("json", {"k": [1.5, None]}, '{"k":[1.5,  null]}'),
    ("jsonb", {"k": [1.5, None]}, '{"k":[1.5]}'),
    ("point", (1.0, 2.0), "(1,3)"),
    ("box", ((3.0, 2.0), (1.0, 0.0)), "(4,2),(2,0)"),  # of equal size
    ("numeric", Decimal("1.50"), "1.51"),
    ("numeric(5,2)", Decimal("1.005"), "1.02"),
    ("numeric(5,2)[]", [Decimal("1.5"), None], "{1.5,1}"),
    ("real", 0.1, "0.100001"),
    ("float8[]", [float("nan"), 0.1], "{NaN,0.2}"),
    ("char(5)", "a", "b"),
    ("varchar(9)", "a ", "a"),
    ("timestamptz(0)", datetime(2024, 1, 1, 12, 0, 0, 600_000, UTC), "2024-01-01 12:00:00+00"),
    ("interval", timedelta(days=30), "1 month"),  # compares as equal
    ("bytea", b"\0\xff", "x"),
    ("int4range", asyncpg.Range(1, 5), "[1,6)"),
    ("text[]", ["a", None], "{a,NULL,b}"),
    ("uuid", UUID(int=5), str(UUID(int=6))),
    ("inet", IPv4Address("10.0.0.1"), "10.0.0.0/31"),
    ("bit varying(9)", asyncpg.BitString.from_int(5, 3), "1010"),
]


@pytest.mark.parametrize("size", [1, 200])
async def test_values_of_each_type_are_compared_as_the_column_holds_them(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, size: int
) -> None:
    """However they were sent first: rounded, padded and converted values are the item's own, and
    any other value is not, even if the type takes both for equal.
    """
    columns = ", ".join(f"c{place} {kind}" for place, (kind, *_) in enumerate(VALUES))
    names = ("id", *(f"c{place}" for place in range(len(VALUES))))
    async with (
        database(embedded_postgres.dsn, f"id int PRIMARY KEY, {columns}") as db,
        db.sink(names, statement="values" if size == 1 else "auto") as sink,
    ):
        rows = [(number, *(value for _, value, _ in VALUES)) for number in range(size)]
        assert await written(sink, rows) == {}
        again = batch_of([*rows, (-1, *rows[0][1:])], maybe=range(size + 1))
        assert await send(sink, again) == {}
        assert outcomes(again) == [*[TOLD] * size, KEPT]
        for place, (kind, _, other) in enumerate(VALUES):
            changed = f"UPDATE {db.table} SET c{place} = $1::text::{kind} WHERE id = 0"
            before = f"SELECT c{place}::text FROM {db.table} WHERE id = 0"
            old = await db.con.fetchval(before)
            await db.con.execute(changed, other)
            batch = batch_of(rows[:1], maybe=[0])
            errors = await send(sink, batch)
            assert {type(error) for error in errors.values()} == {StoredRowDiffers}, kind
            assert outcomes(batch) == [UNKNOWN], kind
            await db.con.execute(changed, old)


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
async def test_another_unique_key_that_is_taken_is_no_duplicate(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    """Another writer's row has the item's word, and none has its id."""
    keys = None if mode == "error" else ["id"]
    async with (
        database(embedded_postgres.dsn, "id int PRIMARY KEY, word text UNIQUE") as db,
        db.sink(on_conflict=mode, conflict_columns=keys) as sink,
    ):
        await db.con.execute(f"INSERT INTO {db.table} VALUES (9, 'taken')")
        batch = batch_of([(1, "taken"), (2, "free")], maybe=[0, 1])
        errors = await send(sink, batch)
        assert {at: type(error) for at, error in errors.items()} == {0: StoredRowDiffers}
        assert outcomes(batch) == [UNKNOWN, KEPT]
        assert await db.rows() == [(2, "free"), (9, "taken")]


async def test_bad_rows_after_an_unknown_outcome_fail_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(
            embedded_postgres.dsn, "id int PRIMARY KEY, word text CHECK (word <> 'bad')"
        ) as db,
        db.sink() as sink,
    ):
        items = [*words(100), (100, "bad"), ("no number", "x"), (102, "good")]
        assert await written(sink, words(50)) == {}
        batch = batch_of(items, maybe=range(100))
        errors = await send(sink, batch)
        assert sorted(errors) == [100, 101]
        assert outcomes(batch)[:100] == [Outcome.DUPLICATE] * 50 + [Outcome.DELIVERED] * 50
        assert len(await db.rows()) == 101


async def test_a_table_without_a_unique_key_is_not_written_again_and_says_what_to_add(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """B-T43: the outcome is `unknown`, with an error in the log."""
    async with database(embedded_postgres.dsn, "id int, word text") as db, db.sink() as sink:
        errors = await written(sink, words(3), maybe=[1])
        assert {type(error) for error in errors.values()} == {UnverifiableError}
        assert "add a unique index" in str(errors[0])
        assert db.table in str(errors[0])
        assert await db.rows() == []


async def test_a_row_whose_key_holds_null_cannot_be_found_again_and_stays_unknown_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, "id int UNIQUE, word text") as db, db.sink() as sink:
        errors = await written(sink, [(None, "a"), (1, "b"), (None, "c")], maybe=[0, 1])
        assert list(errors) == [0]
        assert isinstance(errors[0], UnknownOutcomeError)
        assert sorted(row[1] for row in await db.rows()) == ["b", "c"]


async def test_a_killed_session_is_not_permanent_and_the_next_write_works(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """batcher/B25: the server ends the session during a write."""
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(f"""
            CREATE FUNCTION end_it() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF NEW.word = 'end' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END $$;
            CREATE TRIGGER end_it BEFORE INSERT ON {db.table} FOR EACH ROW EXECUTE FUNCTION end_it()
        """)
        try:
            async with db.sink(pool_size=1) as sink:
                errors = await written(sink, [*words(60), (99, "end")])
                assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
                assert await db.rows() == []
                assert await written(sink, words(60)) == {}
        finally:
            await db.con.execute("DROP FUNCTION end_it CASCADE")


@pytest.mark.parametrize(
    ("size", "mode"),
    [
        (3, "error"),
        (60, "ignore"),
        pytest.param(3, "ignore", marks=pytest.mark.soak),
        pytest.param(60, "error", marks=pytest.mark.soak),
    ],
)
async def test_a_session_that_was_ended_at_rest_is_not_the_items_fault(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, size: int, mode: str
) -> None:
    """batcher/B25: the server's last message has arrived, but not the end of the connection;
    asyncpg raises its own error then, and has sent nothing.
    """
    async with database(embedded_postgres.dsn) as db:
        async with db.sink(pool_size=1, on_conflict=mode) as sink:
            assert await written(sink, [(1000, "x")]) == {}
            table = sink._table
            assert table is not None
            async with table.connections.pool.acquire() as con:
                fields = (
                    b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to "
                    b"administrator command\0\0"
                )
                inside: Any = con
                inside._protocol.data_received(
                    b"E" + (len(fields) + 4).to_bytes(4) + fields
                )  # as received from the transport
            batch = batch_of([(number, "x") for number in range(size)])
            errors = await send(sink, batch)
            assert {sink.classify(error) for error in errors.values()} <= {
                ErrorClass.TRANSIENT,
                ErrorClass.UNAVAILABLE,
            }
            assert await send(sink, batch) == {}
            assert len(await db.rows()) == size + 1


@pytest.mark.parametrize("count", [2, 300])
async def test_a_row_that_was_never_sent_is_no_duplicate_of_another_writers(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, count: int
) -> None:
    """B-T43: also if it equals the stored row and is sent beside rows whose answer was lost."""
    async with (
        database(embedded_postgres.dsn) as db,
        proxied(db.dsn) as (proxy, through),
        db.sink(dsn=through) as sink,
    ):
        batch = batch_of(words(count))
        assert await written(sink, words(1, count - 1)) == {}, "another writer's row"
        proxy.cut_answer = "INSERT" if count < 100 else "COPY"
        errors = await send(sink, batch.pick(range(count - 1)))
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        errors = await send(sink, batch)
        assert list(errors) == [count - 1]
        assert sink.classify(errors[count - 1]) is ErrorClass.PERMANENT
        assert outcomes(batch)[: count - 1] == [Outcome.DUPLICATE] * (count - 1)


async def test_a_server_that_is_gone_is_unavailable_and_comes_back(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, proxied(db.dsn) as (proxy, through):
        sink = db.sink(dsn=through, pool_size=1)
        async with sink:
            proxy.cut_request = lambda kind, body: kind == b"Q"
            errors = await written(sink, words(200))
            assert {type(error) for error in errors.values()} == {UnknownOutcomeError}, (
                "all was sent at once"
            )
            upstream, proxy.upstream = proxy.upstream, ("127.0.0.1", 1)
            errors = await written(sink, words(200))
            assert {type(error) for error in errors.values()} == {UnavailableError}
            proxy.upstream = upstream
            assert await written(sink, words(60)) == {}
