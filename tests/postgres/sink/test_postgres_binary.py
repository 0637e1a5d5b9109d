"""The server stores the same from encoded columns as from asyncpg's tuples.

White box: the encoder of columns, without the sink.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
asyncpg = pytest.importorskip("asyncpg")
from tests.properties import examples  # noqa: E402

from sluicegate.postgres.copying.columns import MESSAGE, PIECE, binary_copy  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluicegate.testing import EmbeddedPostgres


def ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=70)
LONG = st.integers(4_000, 9_000).map(lambda size: "ä" * size)
JSON = st.dictionaries(TEXT, st.integers() | st.booleans(), max_size=2).map(json.dumps)
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
INSTANTS = MOMENTS.map(lambda moment: moment.replace(tzinfo=dt.UTC))
DAYS = st.dates(dt.date(1, 1, 2), dt.date(9999, 12, 30))
CENTS = st.decimals(-(10**9), 10**9, places=2)
WIDE = st.decimals(-(10**19), 10**19, places=18)

COLUMNS: list[tuple[str, str, Any, st.SearchStrategy[Any]]] = [
    ("smallint", "smallint", pa.int16(), ints(16)),
    ("integer", "integer", pa.int32(), ints(32)),
    ("integer", "integer", pa.int8(), ints(8)),
    ("bigint", "bigint", pa.int64(), ints(64)),
    ("real", "real", pa.float32(), st.floats(width=32)),
    ("double precision", "double precision", pa.float64(), st.floats()),
    ("boolean", "boolean", pa.bool_(), st.booleans()),
    ("date", "date", pa.date32(), DAYS),
    ("timestamp", "timestamp without time zone", pa.timestamp("us"), MOMENTS),
    ("timestamptz", "timestamp with time zone", pa.timestamp("us", "Asia/Kathmandu"), INSTANTS),
    ("time", "time without time zone", pa.time64("us"), st.times()),
    ("text", "text", pa.string(), TEXT | LONG),
    ("varchar", "character varying", pa.large_string(), TEXT),
    ("json", "json", pa.string(), JSON),
    ("jsonb", "jsonb", pa.large_string(), JSON),
    ("bytea", "bytea", pa.binary(), st.binary(max_size=40)),
    ("uuid", "uuid", pa.string(), st.uuids().map(str)),
    ("uuid", "uuid", pa.large_string(), st.uuids().map(str) | st.uuids().map(lambda one: one.hex)),
    ("numeric", "numeric", pa.decimal128(12, 2), CENTS),
    ("numeric", "numeric", pa.decimal128(38, 18), WIDE),
    ("numeric", "numeric", pa.int64(), ints(64)),
]
NAMES = [f"c{place}" for place in range(len(COLUMNS))]


@st.composite
def some_columns(draw: st.DrawFn) -> tuple[list[int], list[Any]]:
    """Columns of the table in any order, each with NULLs or without, sliced, whole or in chunks."""
    chosen = draw(st.lists(st.integers(0, len(COLUMNS) - 1), min_size=1, unique=True))
    rows, before = draw(st.integers(0, 12)), draw(st.integers(0, 9))
    arrays: list[Any] = []
    for place in chosen:
        _, _, kind, values = COLUMNS[place]
        if draw(st.booleans()):
            values = maybe(values)
        given = draw(st.lists(values, min_size=before + rows, max_size=before + rows))
        array = pa.array(given, kind).slice(before)
        half = rows // 2
        chunks = pa.chunked_array([array.slice(0, half), array.slice(half)])
        arrays.append(chunks if draw(st.booleans()) else array)
    return chosen, arrays


async def differences(
    dsn: str, chosen: list[int], arrays: list[Any], piece_bytes: int
) -> list[Any]:
    """The rows that only one of the tables holds, after a `COPY` in each way."""
    names = [NAMES[place] for place in chosen]
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("TRUNCATE by_columns, by_tuples")
        pieces = binary_copy(
            [(array, COLUMNS[place][1]) for place, array in zip(chosen, arrays, strict=True)],
            piece_bytes=piece_bytes,
        )

        async def source() -> Any:
            for piece in pieces:
                yield piece

        await connection.copy_to_table(
            "by_columns", source=source(), columns=names, format="binary"
        )
        await connection.copy_records_to_table(
            "by_tuples",
            records=list(zip(*(array.to_pylist() for array in arrays), strict=True)),
            columns=names,
        )
        return list(
            await connection.fetch(
                "(SELECT r::text FROM by_columns r EXCEPT ALL SELECT r::text FROM by_tuples r) "
                "UNION ALL "
                "(SELECT r::text FROM by_tuples r EXCEPT ALL SELECT r::text FROM by_columns r)"
            )
        )
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def two_tables(embedded_postgres: EmbeddedPostgres) -> Iterator[str]:
    async def run(script: str) -> None:
        connection = await asyncpg.connect(embedded_postgres.dsn)
        try:
            await connection.execute(script)
        finally:
            await connection.close()

    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in zip(NAMES, COLUMNS, strict=True))
    asyncio.run(
        run(f"CREATE TABLE by_columns ({columns}); CREATE TABLE by_tuples (LIKE by_columns);")
    )
    yield embedded_postgres.dsn
    asyncio.run(run("DROP TABLE by_columns, by_tuples"))


@examples(20, long=100)
@given(some_columns(), st.sampled_from([1, 100, 2_000, 1 << 18]))
def test_columns_and_tuples_are_stored_alike(
    two_tables: str, columns: tuple[list[int], list[Any]], piece_bytes: int
) -> None:
    """P-T19: any columns beside each other, in pieces of any size."""
    assert asyncio.run(differences(two_tables, *columns, piece_bytes)) == []


def test_a_large_value_is_sent_in_parts() -> None:
    """No message is as large as the server refuses, and rows around a large value stay together."""
    large = 5 * MESSAGE // 2
    values = pa.array(["a" * size for size in (1, 2, large, 3, 4)])
    sizes = [len(piece) for piece in binary_copy([(values, "text")])]
    assert max(sizes) == MESSAGE
    assert len(sizes) == 5
    assert sum(sizes) == 19 + 5 * 6 + 1 + 2 + large + 3 + 4 + 2


def test_many_rows_are_encoded_in_pieces() -> None:
    values = pa.array(range(100_000), pa.int64())
    sizes = [len(piece) for piece in binary_copy([(values, "bigint")])]
    assert max(sizes) <= PIECE + 19
    assert sum(sizes) == 19 + 100_000 * 14 + 2
