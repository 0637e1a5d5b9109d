"""Arrow columns as binary COPY: the server returns every type unchanged.

White box: the encoder of columns, and the faults that it finds.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")
asyncpg = pytest.importorskip("asyncpg")
from tests.postgres.sink.postgres_help import database  # noqa: E402

from sluicegate import ArrowBatch, send  # noqa: E402
from sluicegate.postgres import PostgresSink  # noqa: E402
from sluicegate.postgres.copying.columns import NoEncoder  # noqa: E402
from sluicegate.postgres.sink.rows.columns import encode, refused  # noqa: E402
from sluicegate.postgres.sink.table import read_table  # noqa: E402

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

UTC = dt.UTC
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
TYPES: list[tuple[str, Any, list[Any]]] = [
    ("smallint", pa.int16(), [-32768, 32767]),
    ("smallint", pa.int64(), [-5, 7]),
    ("integer", pa.int32(), [-(2**31), 2**31 - 1]),
    ("integer", pa.int8(), [-1, 1]),
    ("bigint", pa.int64(), [-(2**63), 2**63 - 1]),
    ("real", pa.float32(), [1.5, -0.25]),
    ("double precision", pa.float64(), [1e300, -2.5]),
    ("double precision", pa.float32(), [1.5, -2.5]),
    ("boolean", pa.bool_(), [True, False]),
    ("text", pa.string(), ["", "schön", "line\nbreak\t\\N"]),
    ("text", pa.large_string(), ["a" * 100_000, "b"]),
    ("varchar(5)", pa.string(), ["abcde", ""]),
    ("bytea", pa.binary(), [b"\0\xff", b""]),
    ("date", pa.date32(), [dt.date(1999, 12, 31), dt.date(2026, 2, 28)]),
    (
        "timestamp",
        pa.timestamp("us"),
        [dt.datetime(1969, 7, 20, 20, 17, 40, 123456), dt.datetime(2100, 1, 1)],
    ),
    ("timestamp", pa.timestamp("ms"), [dt.datetime(2026, 1, 2, 3, 4, 5, 678000)]),
    (
        "timestamptz",
        pa.timestamp("us", "Asia/Kathmandu"),
        [dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)],
    ),
    ("time", pa.time64("us"), [dt.time(23, 59, 59, 999999), dt.time(0)]),
    ("uuid", pa.string(), [str(ID), str(ID).upper(), ID.hex]),
    ("uuid", pa.binary(16), [ID.bytes]),
    ("json", pa.string(), ['{"a": [1, null]}']),
    ("jsonb", pa.string(), ['{"a": [1, null]}', "3"]),
    (
        "numeric(12,3)",
        pa.decimal128(12, 3),
        [Decimal("123456789.125"), Decimal("-0.001"), Decimal("0.000")],
    ),
    ("numeric", pa.decimal128(18, 0), [Decimal(10**17 + 3), Decimal(-4)]),
    (
        "numeric",
        pa.decimal128(18, 18),
        [Decimal("0.123456789012345678"), Decimal("-0.000000000000000001")],
    ),
]


async def round_trip(dsn: str, kind: str, values: Any) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            f"DROP TABLE IF EXISTS one_column; CREATE TABLE one_column (v {kind}, n bigint)"
        )
        table = await read_table(connection, "one_column", None, ["v"])
        batch = pa.record_batch({"v": values, "n": pa.array(range(len(values)), pa.int64())})
        pieces = encode(batch, [table.column("v"), table.column("n")])

        async def source() -> Any:
            for piece in pieces:
                yield piece

        await connection.copy_to_table(
            "one_column", source=source(), columns=["v", "n"], format="binary"
        )
        return [row["v"] for row in await connection.fetch("SELECT v FROM one_column ORDER BY n")]
    finally:
        await connection.close()


def as_asyncpg(kind: str, value: Any) -> Any:
    if kind in {"json", "jsonb"} and value is not None:
        return json.loads(value)
    if kind == "uuid" and value is not None:
        return uuid.UUID(bytes=value) if isinstance(value, bytes) else uuid.UUID(value)
    return value


@pytest.mark.parametrize(("kind", "arrow", "values"), TYPES, ids=lambda value: str(value)[:24])
def test_every_type_comes_back(
    embedded_postgres: EmbeddedPostgres, kind: str, arrow: Any, values: list[Any]
) -> None:
    """P-T19: with nulls, from a slice. `test_postgres_binary` has columns without nulls, too."""
    given = [None, *values, None, values[0]]
    column = pa.array([values[0], *given], arrow).slice(1)
    found = asyncio.run(round_trip(embedded_postgres.dsn, kind, column))
    found = [
        json.loads(value) if kind in {"json", "jsonb"} and value is not None else value
        for value in found
    ]
    assert found == [as_asyncpg(kind, value) for value in given]


def test_faults_are_found_in_the_columns(embedded_postgres: EmbeddedPostgres) -> None:
    """The first half of P-T10: by row, with the reason, before the server sees them."""

    async def columns() -> Any:
        connection = await asyncpg.connect(embedded_postgres.dsn)
        try:
            await connection.execute(
                "DROP TABLE IF EXISTS strict; CREATE TABLE strict (a integer NOT NULL, b "
                "varchar(3), c smallint)"
            )
            return (await read_table(connection, "strict", None, ["a", "b", "c"])).columns
        finally:
            await connection.close()

    batch = pa.record_batch(
        {
            "a": pa.array([1, None, 3, 2**31, 5, 6], pa.int64()),
            "b": ["x", "y", "a\0b", "z", "abcd", "ab   "],
            "c": pa.array([1, 2, None, 4, 5, -40_000], pa.int64()),
        }
    )
    found = {index: str(error) for index, error in refused(batch, asyncio.run(columns())).items()}
    assert found == {
        1: "column 'a': is NULL, but the column is NOT NULL",
        2: "column 'b': holds a NUL character, which text cannot hold",
        3: "column 'a': is out of range for integer",
        4: "column 'b': is longer than character varying(3)",
        5: "column 'c': is out of range for smallint",
    }


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("integer", pa.array([1.5])),
        ("text", pa.array([1])),
        ("numeric", pa.array(["1"])),
        ("interval", pa.array([1])),
    ],
)
def test_what_has_no_encoder_goes_by_rows(
    embedded_postgres: EmbeddedPostgres, kind: str, values: Any
) -> None:
    with pytest.raises(NoEncoder):
        asyncio.run(round_trip(embedded_postgres.dsn, kind, values))


# -- through the sink ------------------------------------------------------------------------------


def batch_of(ids: list[int | None], names: list[str | None]) -> ArrowBatch:
    return ArrowBatch(
        pa.record_batch(
            {"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string()), "other": ids}
        )
    )


async def written(
    dsn: str, *batches: ArrowBatch, **options: Any
) -> tuple[list[dict[int, str]], list[tuple[Any, ...]]]:
    """The errors of each batch, and the table."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("DROP TABLE IF EXISTS arrows")
        await connection.execute(
            "CREATE TABLE arrows (id integer PRIMARY KEY CHECK (id <> 13), name varchar(9) NOT "
            "NULL)"
        )
        async with PostgresSink(dsn, table="arrows", columns=("id", "name"), **options) as sink:
            errors = [
                {i: str(error) for i, error in (await send(sink, batch)).items()}
                for batch in batches
            ]
        return errors, [
            tuple(row) for row in await connection.fetch("SELECT id, name FROM arrows ORDER BY id")
        ]
    finally:
        await connection.close()


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
def test_columns_reach_the_table(embedded_postgres: EmbeddedPostgres, mode: str) -> None:
    """design 3.1: without conversion to rows."""
    batch = batch_of([*range(20, 100)], [f"n{i}" for i in range(80)])
    errors, found = asyncio.run(written(embedded_postgres.dsn, batch, on_conflict=mode))
    assert (errors, len(found), found[0]) == ([{}], 80, (20, "n0"))
    assert batch._rows is None


def test_conflicts_of_columns(embedded_postgres: EmbeddedPostgres) -> None:
    """As with rows: the last row of a key is stored, an update replaces, an error names the row."""
    first, again = batch_of([1, 2, 1], ["a", "b", "c"]), batch_of([2, 3], ["B", "C"])
    assert asyncio.run(written(embedded_postgres.dsn, first, again, on_conflict="update"))[1] == [
        (1, "c"),
        (2, "B"),
        (3, "C"),
    ]
    first, again = batch_of([1, 2], ["a", "b"]), batch_of([2, 3, 4], ["B", "C", "D"])
    errors, found = asyncio.run(written(embedded_postgres.dsn, first, again))
    assert list(errors[1]) == [0]
    assert "duplicate key" in errors[1][0]
    assert found == [(1, "a"), (2, "b"), (3, "C"), (4, "D")]


def test_bad_rows_among_columns_fail_alone(embedded_postgres: EmbeddedPostgres) -> None:
    """P-T10: rows found in the columns, rows that the server names, and rows found by sifting."""
    names = [f"n{i}" for i in range(1000)]
    names[5], names[6] = "a\0b", "much too long a name"
    ids: list[int | None] = [i + 100 for i in range(1000)]
    ids[0], ids[7], ids[8], ids[500] = 13, None, 2**40, ids[499]
    errors, found = asyncio.run(written(embedded_postgres.dsn, batch_of(ids, [*names])))
    assert sorted(errors[0]) == [0, 5, 6, 7, 8, 500]
    assert "arrows_id_check" in errors[0][0]
    assert "duplicate key" in errors[0][500]
    assert len(found) == 994


def test_a_batch_without_the_sinks_columns_is_told_by_row(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    batch = ArrowBatch(pa.record_batch({"id": [1], "nome": ["x"]}))
    errors, found = asyncio.run(written(embedded_postgres.dsn, batch))
    assert "name" in errors[0][0]
    assert found == []


@pytest.mark.parametrize("other", ["dictionary", "bad row"])
async def test_the_bytes_of_a_uuid_are_stored_where_another_column_makes_tuples_of_the_rows(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, other: str
) -> None:
    ids = [uuid.uuid4() for _ in range(3)]
    words = pa.array(["{}", "{}", "{" if other == "bad row" else "{}"])
    values = {
        "id": pa.array([each.bytes for each in ids], pa.binary(16)),
        "more": pa.array([[ids[0].bytes, None], [], None], pa.list_(pa.binary(16))),
        "word": words.dictionary_encode() if other == "dictionary" else words,
    }
    async with (
        database(embedded_postgres.dsn, "id uuid, more uuid[], word jsonb") as db,
        db.sink(("id", "more", "word")) as sink,
    ):
        errors = await send(sink, ArrowBatch(pa.record_batch(values)))
        found = await db.con.fetch(f"SELECT id, more FROM {db.table}")
    assert list(errors) == ([2] if other == "bad row" else [])
    expected = [(ids[0], [ids[0], None]), (ids[1], []), (ids[2], None)]
    assert [tuple(row) for row in found] == expected[: 3 - len(errors)]


@pytest.mark.parametrize("mode", ["error", "ignore"])
async def test_text_of_columns_is_right_for_any_client_encoding(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str
) -> None:
    settings = {"server_settings": {"client_encoding": "latin1"}}
    given = [(number, "é") for number in range(60)]
    async with database(embedded_postgres.dsn, "id int PRIMARY KEY, word text") as db:
        async with db.sink(on_conflict=mode, connect_options=settings) as sink:
            ids, words = zip(*given, strict=True)
            rows = pa.record_batch({"id": pa.array(ids, pa.int32()), "word": words})
            assert await send(sink, ArrowBatch(rows)) == {}
        assert [tuple(row) for row in await db.rows("1")] == given
