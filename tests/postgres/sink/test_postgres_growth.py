"""A sink creates its table and adds columns, with one rule for every way of writing.

White box: positions and stages, as the flow and Spark use them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import asyncpg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.postgres.sink.postgres_help import (
    Database,
    batch_of,
    database,
    proxied,
    role,
    whole,
)

from sluicegate import (
    ArrowBatch,
    ConfigError,
    PermanentError,
    RefusedError,
    RowBatch,
    UnavailableError,
    send,
    transaction,
)
from sluicegate._core.positions import PositionUnit
from sluicegate._core.source import Position, TopicPartition
from sluicegate._core.staging import Epoch, stages_of
from sluicegate.postgres import PostgresAccess, PostgresSink
from sluicegate.postgres.sink.transaction import PostgresTransaction
from sluicegate.sinks import Unit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

KEY = {"conflict_columns": ("id",)}
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one row": (1, {}),
    "values": (7, {}),
    "unnest": (7, {"statement": "unnest"}),
    "copy": (60, {}),
    "update": (7, {"on_conflict": "update", **KEY}),
    "update by arrays": (7, {"on_conflict": "update", "statement": "unnest", **KEY}),
    "update by staging": (7, {"on_conflict": "update", "staging_threshold": 1, **KEY}),
    "ignore by staging": (7, {"on_conflict": "ignore", "staging_threshold": 1, **KEY}),
    "unprepared": (7, {"prepared_statements": False}),
    "unprepared copy": (60, {"prepared_statements": False}),
    "again": (7, {"on_conflict": "ignore", **KEY}),
    "again, copy": (7, {}),
    "transaction": (7, {}),
    "unit": (60, {}),
    "unit, unprepared": (7, {"prepared_statements": False}),
    "arrow": (7, {}),
    "arrow update": (60, {"on_conflict": "update", **KEY}),
    "arrow unit": (7, {}),
}
MODES = (None, "ignore", "fail", "add")
TYPES = {"id": "bigint", "word": "text"}


@asynccontextmanager
async def writing(sink: PostgresSink, way: str) -> AsyncGenerator[Any]:
    """What writes: the sink, or a transaction of it."""
    async with AsyncExitStack() as stack:
        if "unit" in way:
            unit = Unit(application="growth", version=1)
            yield await stack.enter_async_context(transaction(sink, unit))
        elif way == "transaction":
            yield await stack.enter_async_context(transaction(sink, None))
        else:
            yield sink


async def write(to: Any, way: str, items: Sequence[dict[str, Any]]) -> dict[int, BaseException]:
    if way.startswith("arrow"):
        return await send(to, ArrowBatch(pa.RecordBatch.from_pylist(list(items))))
    return await send(to, batch_of(items, range(len(items)) if "again" in way else ()))


def items_of(start: int, size: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": start + place, "word": f"w{place}", **more} for place in range(size)]


@pytest.fixture
def no_table(embedded_postgres: EmbeddedPostgres) -> Callable[..., Any]:
    @asynccontextmanager
    async def made() -> AsyncGenerator[Database]:
        async with database(embedded_postgres.dsn) as db:
            await db.con.execute(f"DROP TABLE {db.table}")
            yield db

    return made


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
async def test_new_names_have_one_rule_whatever_writes_them(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str, mode: Any
) -> None:
    size, options = WAYS[way]
    async with database(embedded_postgres.dsn) as db:
        sink = db.sink(on_new_column=mode, **options)
        async with sink, writing(sink, way) as to:
            assert await write(to, way, items_of(0, size)) == {}
            errors = await write(to, way, items_of(100, size, **{'ex"tra': 1.5}))
            assert await write(to, way, items_of(200, size)) == {}
        assert errors.keys() == (set(range(size)) if mode == "fail" else set())
        for error in errors.values():
            assert isinstance(error, PermanentError)
            assert 'ex"tra' in str(error)
        more = [(1.5,) if row[0] >= 100 and row[0] < 200 else (None,) for row in await db.rows()]
        expected = [
            (item["id"], item["word"])
            for start in (0, 100, 200)
            for item in items_of(start, size)
            if not (mode == "fail" and start == 100)
        ]
        found = await db.rows()
        assert [row[:2] for row in found] == expected
        assert [row[2:] for row in found] == (more if mode == "add" else [()] * len(expected))


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("arrow")])
async def test_beside_bad_rows_a_column_is_added_and_the_others_are_stored(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    size, options = WAYS[way]
    async with database(
        embedded_postgres.dsn, "id int PRIMARY KEY CHECK (id <> 3), word text"
    ) as db:
        sink = db.sink(on_new_column="add", **options)
        items = items_of(1, size + 5, extra=1)
        items[3]["extra"] = "no number"
        items[4] = {"id": 5, "word": "without"}
        items[5]["c" * 64] = 1
        async with sink, writing(sink, way) as to:
            if "unit" in way or way == "transaction":
                assert await write(to, way, items_of(100, size)) == {}
            errors = await write(to, way, items)
        assert errors.keys() == {2, 3, 5}
        assert "63 bytes" in str(errors[5])
        found = {row[0]: row[1:] for row in await db.rows() if row[0] < 100}
        assert found.keys() == {item["id"] for item in items} - {3, 4, 6}
        assert found[5] == ("without", None)
        assert found[1] == ("w0", 1)


@pytest.mark.parametrize("way", WAYS)
async def test_a_missing_table_is_created_for_every_way_of_writing(
    no_table: Any, real_clock: LoopClock, way: str
) -> None:
    size, options = WAYS[way]
    async with no_table() as db:
        options = {**KEY, "create_table": "if_missing", **options}
        sink = db.sink(TYPES, **options)
        async with sink, writing(sink, way) as to:
            assert await write(to, way, items_of(0, size)) == {}
        assert await db.rows() == [(item["id"], item["word"]) for item in items_of(0, size)]
        keys = await db.con.fetchval(
            "SELECT indkey::text FROM pg_index WHERE indrelid = $1::text::regclass AND indisprimary",
            db.table,
        )
        assert keys == "1"


@pytest.mark.parametrize("way", WAYS)
async def test_types_come_from_the_first_values_for_every_way_of_writing(
    no_table: Any, real_clock: LoopClock, way: str
) -> None:
    size, options = WAYS[way]
    async with no_table() as db:
        sink = db.sink(("id", "late", "word"), create_table="if_missing", **{**KEY, **options})
        needs_types = "unit" in way or way == "transaction"
        async with sink:
            if needs_types:
                with pytest.raises(ConfigError, match="give them: columns="):
                    async with writing(sink, way):
                        pass
                return
            assert await write(sink, way, items_of(0, size, late=None)) == {}
            assert await db.rows() == [(item["id"], item["word"]) for item in items_of(0, size)]
            assert await write(sink, way, items_of(100, size, late=date(2030, 1, 1))) == {}
            assert await write(sink, way, items_of(200, size, late=None)) == {}
        dates = [row[2] for row in await db.rows()]
        assert dates == [None] * size + [date(2030, 1, 1)] * size + [None] * size


async def test_the_next_sink_goes_on_with_a_table_that_lacks_a_column_without_values(
    no_table: Any, real_clock: LoopClock
) -> None:
    async with no_table() as db:
        options = {"create_table": "if_missing", **KEY}
        async with db.sink(("id", "late"), **options) as sink:
            assert await send(sink, RowBatch([{"id": 1, "late": None}])) == {}
        async with db.sink(("id", "late"), **options) as sink:
            assert await send(sink, RowBatch([(2, None), (3, True)])) == {}
        assert await db.rows("1") == [(1, None), (2, None), (3, True)]


async def test_eight_sinks_create_one_table_and_one_column_and_all_rows_arrive(
    no_table: Any, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.postgres")
    async with no_table() as db, AsyncExitStack() as stack:
        options = {"create_table": "if_missing", "on_new_column": "add", "pool_size": 2, **KEY}
        sinks = [await stack.enter_async_context(db.sink(("id",), **options)) for _ in range(8)]

        async def fill(number: int, sink: PostgresSink) -> None:
            steps: list[dict[str, Any]] = [{}, {"a": 1}, {"a": 2, "b": "x"}, {f"own{number}": 1}]
            for step, more in enumerate(steps):
                item = {"id": number * 10 + step, **more}
                assert await send(sink, RowBatch([item])) == {}

        await asyncio.gather(*(fill(number, sink) for number, sink in enumerate(sinks)))
        rows = [dict(row) for row in await db.con.fetch(f"SELECT * FROM {db.table}")]
        assert len(rows) == 32
        for row in rows:
            step = row["id"] % 10
            assert row["a"] == {1: 1, 2: 2}.get(step)
            assert row["b"] == ("x" if step == 2 else None)
            assert row[f"own{row['id'] // 10}"] == (1 if step == 3 else None)
    changes = [record.getMessage() for record in caplog.records if "has changed" in record.message]
    assert sum("CREATE TABLE" in each for each in changes) == 1
    for name in ("a", "b", *(f"own{number}" for number in range(8))):
        assert sum(f'"{name}"' in each for each in changes) == 1


async def test_two_transactions_that_add_a_column_after_writing_end_without_waiting_for_ever(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """Each holds a lock of the table that the other's change waits for."""
    async with database(embedded_postgres.dsn) as db:
        ready = asyncio.Barrier(2)

        async def fill(number: int) -> None:
            async with db.sink(on_new_column="add") as sink, transaction(sink, None) as within:
                assert await send(within, RowBatch(items_of(number, 1))) == {}
                await ready.wait()
                errors = await send(within, RowBatch(items_of(number + 1, 1, extra=1)))
                for error in errors.values():
                    raise error

        ends = await asyncio.gather(fill(10), fill(20), return_exceptions=True)
        failures = [end for end in ends if end is not None]
        assert len(failures) in {1, 2}
        assert "nothing of it was applied" in str(failures[0])
        assert len(await db.rows()) == 4 - 2 * len(failures)


async def test_a_column_added_in_a_transaction_that_is_rolled_back_is_added_again(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="add") as sink:
        with pytest.raises(ZeroDivisionError):
            async with transaction(sink, None) as within:
                assert await send(within, RowBatch(items_of(1, 1, extra=1))) == {}
                raise ZeroDivisionError
        async with transaction(sink, None) as within:
            assert await send(within, RowBatch(items_of(2, 1, extra=2))) == {}
        assert await send(sink, RowBatch(items_of(3, 1, extra=3))) == {}
        assert await db.rows() == [(2, "w0", 2), (3, "w0", 3)]


@pytest.mark.parametrize("types", [TYPES, ("id", "word")])
async def test_a_sink_killed_between_creation_and_first_row_leaves_a_table_for_the_next(
    no_table: Any, real_clock: LoopClock, types: Any
) -> None:
    async with no_table() as db, proxied(db.dsn) as (proxy, through):
        options = {"create_table": "if_missing", **KEY}
        seen: list[bytes] = []

        def is_insert(kind: bytes, body: bytes) -> bool:
            seen.append(body)
            return b"INSERT INTO" in body

        async with db.sink(types, dsn=through, **options) as sink:
            proxy.cut_request = is_insert
            assert (await send(sink, RowBatch([(1, "lost")]))).keys() == {0}
            assert proxy.cuts == 1
        assert await db.rows() == []
        async with db.sink(types, **options) as sink:
            assert await send(sink, RowBatch([(1, "kept")])) == {}
        assert await db.rows() == [(1, "kept")]


async def test_without_the_right_to_create_the_repair_names_schema_and_role(
    no_table: Any, embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as granted, role(granted) as writer:
        await granted.con.execute(
            f"CREATE SCHEMA s_{writer.name}; GRANT USAGE ON SCHEMA s_{writer.name} TO {writer.name}"
        )
        try:
            options: dict[str, Any] = {
                "schema": f"s_{writer.name}",
                "create_table": "if_missing",
                **KEY,
            }
            repair = f'grant CREATE on schema "s_{writer.name}" at .* to role {writer.name}'
            with pytest.raises(ConfigError, match=repair):
                async with granted.sink(TYPES, dsn=writer.dsn, **options):
                    pass
            async with granted.sink(("id", "word"), dsn=writer.dsn, **options) as sink:
                error = whole(await send(sink, RowBatch([(1, "a")])), 1)
                assert f"to repair: {error.repair}" in str(error)
                assert f'grant CREATE on schema "s_{writer.name}"' in error.repair
                await granted.con.execute(
                    f"GRANT CREATE ON SCHEMA s_{writer.name} TO {writer.name}"
                )
                assert await send(sink, RowBatch([(1, "a")])) == {}
        finally:
            await granted.con.execute(f"DROP SCHEMA s_{writer.name} CASCADE")


async def test_a_column_that_the_role_may_not_add_is_added_by_an_operator(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, role(db) as writer:
        async with db.sink(dsn=writer.dsn, on_new_column="add") as sink:
            error = whole(await send(sink, RowBatch(items_of(1, 2, extra=1))), 2)
            assert isinstance(error, RefusedError)
            await db.con.execute(error.repair.partition(" run: ")[2])
            assert await send(sink, RowBatch(items_of(1, 2, extra=1))) == {}
        assert await db.rows() == [(1, "w0", 1), (2, "w1", 1)]


async def test_a_locked_table_is_an_outage_for_a_new_column(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="add") as sink:
        async with db.con.transaction():
            await db.con.execute(f"LOCK TABLE {db.table} IN ACCESS SHARE MODE")
            errors = await send(sink, RowBatch(items_of(1, 1, extra=1)))
            assert isinstance(errors[0], UnavailableError)
            assert await send(sink, RowBatch(items_of(2, 1))) == {}
        assert await send(sink, RowBatch(items_of(1, 1, extra=1))) == {}
        assert await db.rows() == [(1, "w0", 1), (2, "w0", None)]


async def test_columns_that_others_add_or_compute_are_taken_up_or_named(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="add") as sink:
        await db.con.execute(
            f"ALTER TABLE {db.table} ADD COLUMN small int2, "
            "ADD COLUMN twice int GENERATED ALWAYS AS (id * 2) STORED"
        )
        items = [
            {"id": 1, "word": "a", "small": 7},
            {"id": 2, "word": "b", "small": 70_000},
            {"id": 3, "word": "c", "twice": 6},
            {"id": 4, "word": "d", "xmin": 6},
            {"id": 5, "word": "e", 7: "no text"},
            {"id": 6, "word": "f", "thing": object()},
            {"id": 7, "word": "g", "thing": None},
        ]
        errors = await send(sink, RowBatch(items))
        assert errors.keys() == {1, 2, 3, 4, 5}
        assert "'twice', which the server computes" in str(errors[2])
        assert "system column" in str(errors[3])
        assert "without a column type" in str(errors[5])
        assert await db.rows() == [(1, "a", 7, 2), (7, "g", None, 14)]


async def test_with_keys_the_items_behind_one_with_an_unknown_name_are_left_out(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="fail") as sink:
        items = [{"id": 1, "word": "a", "more": 1}, {"id": 2, "word": "a"}, {"id": 3, "word": "b"}]
        errors = await send(sink, RowBatch(items, keys=["a", "a", "b"]))
        assert errors.keys() == {0, 1}
        assert await db.rows() == [(3, "b")]


@pytest.mark.parametrize("size", [3, 60])
@pytest.mark.parametrize("options", [{}, {"on_conflict": "update", **KEY}])
async def test_columns_of_a_record_batch_have_the_types_of_its_values(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, size: int, options: dict[str, Any]
) -> None:
    async with (
        database(embedded_postgres.dsn) as db,
        db.sink(on_new_column="add", **options) as sink,
    ):
        schema = pa.schema(
            {
                "id": pa.int32(),
                "word": pa.string(),
                "parts": pa.list_(pa.int64()),
                "inner": pa.struct({"x": pa.int8()}),
                "at": pa.timestamp("us", "UTC"),
                "none": pa.string(),
                "large": pa.uint64(),
                "amount": pa.decimal128(10, 2),
            }
        )
        at = datetime(2030, 1, 1, tzinfo=UTC)
        more = {"parts": [1, 2], "inner": {"x": 1}, "at": at, "large": 2**63, "amount": Decimal(1)}
        record = pa.RecordBatch.from_pylist(items_of(1, size, **more), schema)
        assert await send(sink, ArrowBatch(record)) == {}
        rows = await db.con.fetch(f"SELECT * FROM {db.table}")
        assert len(rows) == size
        expected = {"parts": "[1, 2]", "inner": '{"x": 1}', "at": at, "large": 2**63, "amount": 1}
        assert dict(rows[0]) == {"id": 1, "word": "w0", **expected}


async def test_an_ignored_name_is_logged_once_without_its_value(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="ignore") as sink:
        for start in (1, 10):
            assert await send(sink, RowBatch(items_of(start, 2, more="secret"))) == {}
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) == 1
    assert "'more'" in told[0]
    assert "secret" not in told[0]


@dataclass
class Order:
    id: int
    word: str
    extra: Decimal | None = None


async def test_objects_have_the_names_of_their_fields(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    pydantic = pytest.importorskip("pydantic")
    open_model = pydantic.create_model(
        "Open", __config__=pydantic.ConfigDict(extra="allow"), id=(int, ...), word=(str, ...)
    )
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="add") as sink:
        items = [Order(1, "a"), Order(2, "b", Decimal("1.5")), open_model(id=3, word="c", more=1)]
        assert await send(sink, RowBatch(items)) == {}
        assert await db.rows() == [
            (1, "a", None, None),
            (2, "b", Decimal("1.5"), None),
            (3, "c", None, 1),
        ]


# -- types -----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc\u20ac\U0001f600"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("xyz"), inner, max_size=4),
    max_leaves=12,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False) | st.integers(2**63, 2**80),
    "double precision": st.floats(allow_nan=False),
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    "bytea": st.binary(),
    "timestamp with time zone": st.datetimes(timezones=st.just(UTC)),
    "timestamp without time zone": st.datetimes(),
    "date": st.dates(),
    "time without time zone": st.times(),
    "interval": st.timedeltas(timedelta(-9999), timedelta(9999)),
    "uuid": st.uuids(),
    "jsonb": st.lists(JSON, max_size=4) | st.dictionaries(st.text("xyz"), JSON, max_size=4),
}


@pytest.mark.parametrize("kind", VALUES)
def test_what_is_inferred_from_values_stores_them_and_reads_back_equal(
    embedded_postgres: EmbeddedPostgres, kind: str
) -> None:
    @settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(st.lists(VALUES[kind], min_size=1, max_size=30))
    def store(values: list[Any]) -> None:
        asyncio.run(_store(embedded_postgres.dsn, kind, values))

    store()


async def _store(dsn: str, kind: str, values: list[Any]) -> None:
    async with database(dsn) as db:
        await db.con.execute(f"DROP TABLE {db.table}")
        items = [{"id": place, "v": value} for place, value in enumerate(values)]
        async with db.sink(("id", "v"), create_table="if_missing") as sink:
            assert await send(sink, RowBatch(items)) == {}
        await db.con.set_type_codec(
            "jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
        )
        rows = await db.con.fetch(
            f"SELECT v, pg_typeof(v)::text AS kind FROM {db.table} ORDER BY id"
        )
        assert {row["kind"] for row in rows} == {kind}
        assert [row["v"] for row in rows] == values


def test_the_statement_can_be_had_without_running_it() -> None:
    options: dict[str, Any] = {"table": "t", "schema": "s", "create_table": "if_missing", **KEY}
    sink = PostgresSink(
        "postgresql://h/d", columns={"id": "bigint", "at": "timestamptz(3)"}, **options
    )
    expected = 'CREATE TABLE "s"."t" ("id" bigint, "at" timestamptz(3), PRIMARY KEY ("id"))'
    assert sink.create_table_sql() == expected
    sink = PostgresSink("postgresql://h/d", columns=("id", "at"), **options)
    sample = [{"id": 1, "at": time(3, 4, tzinfo=UTC)}]
    assert sink.create_table_sql(sample) == (
        'CREATE TABLE "s"."t" ("id" bigint, "at" timetz, PRIMARY KEY ("id"))'
    )
    with pytest.raises(ConfigError, match="types are not known"):
        sink.create_table_sql()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"columns": {"id": "int; DROP TABLE x"}}, "must be a type of PostgreSQL"),
        ({"columns": {"id": "int) --"}}, "must be a type of PostgreSQL"),
        ({"create_table": "always", "conflict_columns": None}, "create_table"),
        ({"on_new_column": "grow"}, "on_new_column"),
        ({"on_conflict": "update", "conflict_columns": None}, "conflict_columns"),
        ({"conflict_columns": ("other",)}, "must be among columns"),
        ({"columns": ("id", "c" * 64)}, "63 bytes"),
        ({"columns": ("id", "ctid")}, "system column"),
        ({"row": tuple, "on_new_column": "add"}, "has no effect with row="),
    ],
)
def test_bad_arguments_are_refused_at_construction(options: dict[str, Any], why: str) -> None:
    known: dict[str, Any] = {"table": "t", "columns": TYPES, "create_table": "if_missing", **KEY}
    with pytest.raises(ConfigError, match=why):
        PostgresSink("postgresql://h/d", **{**known, **options})


async def test_positions_and_stages_need_a_table_with_its_columns(
    no_table: Any, real_clock: LoopClock
) -> None:
    part = TopicPartition("t", 0)
    async with no_table() as db:
        options = {"create_table": "if_missing", **KEY}
        async with db.sink(("id", "late"), **options) as sink:
            with pytest.raises(ConfigError, match="give them: columns="):
                await sink.claim_positions("growth", [part])
            assert await send(sink, RowBatch([{"id": 1, "late": None}])) == {}
            await sink.claim_positions("growth", [part])
            unit = PositionUnit("growth", part, Position(1))
            async with transaction(sink, unit) as within:
                assert await send(within, RowBatch([{"id": 2, "late": 2}])) == {}
            with pytest.raises(ConfigError, match="late"):
                stages_of(sink)
        async with db.sink(("id", "late"), on_new_column="add", **options) as sink:
            epoch = Epoch(unit=Unit(application="growth", version=1))
            async with stages_of(sink).stage(epoch) as stage:
                batch = RowBatch([{"id": 3, "late": 3}, {"id": 4, "late": 4, "new": 4}])
                assert [*await send(stage.sink, batch)] == [1]
        assert await db.rows("1") == [(1, None), (2, 2)]


async def test_codecs_of_the_user_encode_new_columns(no_table: Any, real_clock: LoopClock) -> None:
    async def codecs(con: Any) -> None:
        encoder = json.dumps
        await con.set_type_codec("jsonb", schema="pg_catalog", encoder=encoder, decoder=json.loads)

    async with no_table() as db:
        pool = asyncpg.create_pool(db.dsn, init=codecs, min_size=1, max_size=2)
        sink = PostgresSink(
            PostgresAccess(pool=lambda: pool),
            pool_size=2,
            table=db.table,
            columns=("id", "body"),
            create_table="if_missing",
            on_new_column="add",
        )
        async with sink:
            assert await send(sink, RowBatch([{"id": 1, "body": {"a": 1}}])) == {}
            assert await send(sink, RowBatch([{"id": 2, "body": ["text"], "more": [2]}])) == {}
        assert await db.rows() == [(1, '{"a": 1}', None), (2, '["text"]', "[2]")]


@pytest.mark.parametrize("default", ["NOT NULL DEFAULT 7", "GENERATED BY DEFAULT AS IDENTITY"])
async def test_a_column_with_a_default_is_not_taken_up_since_other_items_would_lose_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, default: str
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="add") as sink:
        await db.con.execute(f"ALTER TABLE {db.table} ADD COLUMN extra int {default}")
        errors = await send(sink, RowBatch([*items_of(1, 1, extra=1), *items_of(2, 1)]))
        assert errors.keys() == {0}
        assert "'extra', which has a default in the table: name it in columns=" in str(errors[0])
        assert await send(sink, RowBatch(items_of(3, 1))) == {}
        assert [row[:2] for row in await db.rows()] == [(2, "w0"), (3, "w0")]


@pytest.mark.parametrize("way", ["values", "transaction"])
async def test_a_column_that_others_have_dropped_is_added_again_with_the_next_one(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, way: str
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="add") as sink:
        assert await send(sink, RowBatch(items_of(1, 1, extra=1))) == {}
        await db.con.execute(f"ALTER TABLE {db.table} DROP COLUMN extra")
        async with writing(sink, way) as to:
            assert await send(to, RowBatch(items_of(2, 1, extra=2, more=2))) == {}
        assert set(await db.rows()) == {(1, "w0", None, None), (2, "w0", 2, 2)}


async def test_a_dropped_table_refuses_items_with_new_names_as_it_refuses_others(
    no_table: Any, real_clock: LoopClock
) -> None:
    async with no_table() as db:
        async with db.sink(TYPES, create_table="if_missing", on_new_column="add", **KEY) as sink:
            await db.con.execute(f"DROP TABLE {db.table}")
            errors = await send(sink, RowBatch(items_of(1, 2, extra=1)))
            assert [type(errors[index]) for index in (0, 1)] == [RefusedError] * 2
            assert "there is no such table" in str(errors[0])


async def test_what_is_no_table_of_its_own_is_refused_with_a_repair_that_is_possible(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db:
        view = f"{db.table}_view"
        await db.con.execute(f"CREATE VIEW {view} AS SELECT * FROM {db.table}")
        sink = PostgresSink(db.dsn, table=view, columns=("id", "word"), on_new_column="add")
        async with sink:
            error = whole(await send(sink, RowBatch(items_of(1, 1, extra=1))), 1)
            assert "what this cannot: ALTER TABLE" in error.repair
            await db.con.execute(
                f"ALTER TABLE {db.table} ADD extra int;"
                f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {db.table}"
            )
            assert await send(sink, RowBatch(items_of(1, 1, extra=1))) == {}
        assert await db.rows() == [(1, "w0", 1)]


@dataclass
class WithMethod:
    id: int
    word: str

    def extra(self) -> int:
        return self.id


class Raising(dict[str, Any]):
    def get(self, name: str, default: Any = None) -> Any:
        if name == "extra":
            raise ValueError("no extra")
        return super().get(name, default)


class RaisingZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        raise ValueError("no offset")

    dst = utcoffset
    tzname = utcoffset  # type: ignore[assignment]


async def test_a_method_is_no_value_and_an_item_that_raises_fails_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="add") as sink:
        raising = Raising(id=9, word="x", extra=1)
        assert (await send(sink, RowBatch([raising, *items_of(1, 1)]))).keys() == {0}
        untold = {"id": 9, "word": "x", "extra": datetime(2030, 1, 1, tzinfo=RaisingZone())}
        assert (await send(sink, RowBatch([untold, *items_of(5, 1)]))).keys() == {0}
        assert await send(sink, RowBatch(items_of(2, 1, extra=2))) == {}
        batch = RowBatch([WithMethod(3, "m"), raising, *items_of(4, 1)])
        assert (await send(sink, batch)).keys() == {1}
        found = [(1, "w0", None), (2, "w0", 2), (3, "m", None), (4, "w0", None), (5, "w0", None)]
        assert await db.rows() == found


async def test_a_table_at_its_limit_refuses_only_items_with_new_columns(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    columns = ", ".join(["id int", *(f"c{number} int" for number in range(1599))])
    async with database(embedded_postgres.dsn, columns) as db:
        async with db.sink(("id", "c1"), on_new_column="add") as sink:
            items = [{"id": 1, "c1": 1}, {"id": 2, "c1": 1, "more": 1}, {"id": 3, "c1": 1, "c2": 2}]
            errors = await send(sink, RowBatch(items))
            assert errors.keys() == {1}
            assert "no room" in str(errors[1])
        found = await db.con.fetch(f"SELECT id, c2 FROM {db.table} ORDER BY id")
        assert [tuple(row) for row in found] == [(1, None), (3, 2)]


async def test_a_name_that_is_taken_by_another_object_is_refused_with_its_error(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(f"CREATE SEQUENCE {db.table}_s")
        try:
            sink = PostgresSink(
                db.dsn, table=f"{db.table}_s", columns=("id",), create_table="if_missing"
            )
            async with sink:
                error = whole(await send(sink, RowBatch([(1,)])), 1)
            assert "already exists" in str(error)
        finally:
            await db.con.execute(f"DROP SEQUENCE {db.table}_s")


async def test_no_table_is_created_before_its_key_has_a_value(
    no_table: Any, real_clock: LoopClock
) -> None:
    async with no_table() as db:
        sink = db.sink(("id", "word"), create_table="if_missing", on_conflict="update", **KEY)
        async with sink:
            errors = await send(sink, RowBatch([{"id": None, "word": "a"}, {"word": "b"}]))
            assert errors.keys() == {0, 1}
            assert "no value for 'id'" in str(errors[0])
            assert "it has no 'id'" in str(errors[1])
            assert (await send(sink, RowBatch([(1, "a"), (None, "b")]))).keys() == {1}
        assert await db.rows() == [(1, "a")]


async def test_the_limit_of_a_change_ends_with_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db, db.sink(on_new_column="add") as sink:
        async with sink.transaction(None) as within:
            assert isinstance(within, PostgresTransaction)
            await within.connection.execute("SET LOCAL lock_timeout = '7s'")
            assert await send(within, RowBatch(items_of(1, 1, extra=1))) == {}
            assert await within.connection.fetchval("SHOW lock_timeout") == "7s"
