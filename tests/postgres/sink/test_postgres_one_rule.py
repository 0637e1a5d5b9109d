"""One rule per type of column: what one row by itself gives, the stored value or the refusal, is what
every statement gives, for every type of PostgreSQL that a column may have.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")
asyncpg = pytest.importorskip("asyncpg")
import numpy as np  # noqa: E402
from tests.postgres.sink.postgres_help import batch_of, database, written  # noqa: E402
from tests.postgres.sink.postgres_values_help import (  # noqa: E402
    BAD,
    GOOD,
    NANS,
    SEQUENCES,
    WRONG,
    alone,
    column_types,
    connected,
    table_of,
    tried,
)
from tests.postgres.sink.postgres_values_page import PAGE, page  # noqa: E402

from sluicegate import ArrowBatch, ConfigError, send, transaction  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tests.postgres.sink.postgres_help import Database

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

WAYS: dict[str, dict[str, Any]] = {
    "values": {"statement": "values"},
    "unnest": {"statement": "unnest"},
    "unnest, replacing": {"statement": "unnest", "on_conflict": "update"},
    "copy": {"statement": "copy"},
    "the default": {"copy_threshold": 2},
    "staging": {"copy_threshold": 1, "staging_threshold": 1, "on_conflict": "update"},
    "sifting": {},
    "a transaction": {"copy_threshold": 2},
    "after a lost answer": {},
    "columns": {},
}


NAMES = ("numeric", "jsonpath", "vector", "priced")
"""A type of each sort: of asyncpg in binary, of the sink as text, of an extension, of one's own."""
ARRAYS = ("int4",)
OTHER = "types without values"
ID = pa.field("id", pa.int32())


async def compared(
    db: Database, way: str, values: Sequence[Any], expected: Sequence[Any]
) -> list[str]:
    """The values that give something else in a batch of one value, or in a batch of all."""
    both = _fits(way, values, expected)
    pairs = [*([each] * 2 for each in both), both]
    try:
        async with db.sink(("id", "v"), pool_size=1, **WAYS[way]) as sink:
            found = await tried(
                db,
                [[value for value, _ in batch] for batch in pairs],
                lambda rows: _write(db, sink, way, rows),
            )
    except ConfigError:
        if way not in {"unnest", "unnest, replacing", "copy"}:
            raise
        return []
    return [
        f"{way}, {len(batch)} rows: {value!r}: {got} instead of {want}"
        for batch, outcomes in zip(pairs, found, strict=True)
        for (value, want), got in zip(batch, outcomes, strict=True)
        if got != want
    ]


async def _write(db: Database, sink: Any, way: str, rows: list[Any]) -> dict[int, BaseException]:
    if way == "after a lost answer":
        return await send(sink, batch_of(rows, range(len(rows))))
    if way == "sifting":  # the server does not name a row whose key exists
        await db.con.execute(f"INSERT INTO {db.table} VALUES (-1, NULL) ON CONFLICT DO NOTHING")
        errors = await send(sink, batch_of([*rows, (-1, None)]))
        assert isinstance(errors.pop(len(rows)).__cause__, asyncpg.UniqueViolationError)
        return errors
    if way == "a transaction":
        async with transaction(sink, None) as within:
            return await send(within, batch_of(rows))
    if way == "columns":
        numbers, texts = zip(*rows, strict=True) if rows else ((), ())
        batch = {"id": pa.array(numbers, pa.int32()), "v": pa.array(texts, pa.string())}
        return await send(sink, ArrowBatch(pa.record_batch(batch)))
    return await send(sink, batch_of(rows))


def _fits(way: str, values: Sequence[Any], expected: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Values that can be sent this way, with what they give alone; Arrow has one type per column."""
    both = [*zip(values, expected, strict=True)]
    if way != "columns":
        return both
    return [each for each in both if isinstance(each[0], str) and each[0].isascii()]


async def _check(
    dsn: str, names: Collection[str], *, arrays: bool, some: int | None = None
) -> None:
    """Compare types with these names, and their arrays; `some` limits the values of each sort."""
    con = await connected(dsn)
    wrong: list[str] = []
    try:
        for kind, name in await column_types(con, arrays=arrays):
            if (name if name in GOOD else OTHER) not in names:
                continue
            good = [*GOOD.get(name, ())]
            if arrays:  # in an array a list is a dimension
                takes_lists = name.endswith("multirange") or name in {
                    "json",
                    "jsonb",
                    "document",
                    "sizes",
                }
                good = [
                    [each, None] for each in good if not (takes_lists and isinstance(each, list))
                ]
            rest = [*SEQUENCES[:some], *WRONG[:some], *NANS[:some], *BAD.get(name, ()), None]
            async with table_of(con, dsn, f"{kind}[]" if arrays else kind) as db:
                async with db.sink(("id", "v"), pool_size=1) as sink:
                    expected = await alone(db, sink, [*good, *rest])
                    refused = sink.refused_columns(pa.schema({"v": pa.string()}).append(ID))
                assert {tuple} >= {type(each) for each in expected[: len(good)]}, kind
                assert {each for each in expected if type(each) is str} <= {"PermanentError"}
                for way in WAYS:
                    if way != "columns" or not refused:
                        found = await compared(db, way, [*good, *rest], expected)
                        wrong += [f"{kind}: {each}" for each in found]
    finally:
        await con.close()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [*NAMES, *(f"{name}[]" for name in ARRAYS)])
async def test_a_value_gives_in_every_statement_what_it_gives_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, name: str
) -> None:
    arrays = name.endswith("[]")
    names = {name.removesuffix("[]")}
    await _check(embedded_postgres.dsn, names, arrays=arrays, some=2 if arrays else 3)


@pytest.mark.parametrize(
    "arrays",
    [pytest.param(False, marks=pytest.mark.long), pytest.param(True, marks=pytest.mark.soak)],
    ids=["single", "arrays"],
)
@pytest.mark.parametrize("name", [*GOOD, OTHER])
async def test_so_does_every_type_that_a_column_may_have(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, name: str, *, arrays: bool
) -> None:
    await _check(embedded_postgres.dsn, {name}, arrays=arrays)


@pytest.mark.long
async def test_the_page_of_values_is_what_the_server_does(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    assert await page(embedded_postgres.dsn) == PAGE.read_text(encoding="utf-8")


ADDRESSES = [f"08:00:2b:01:{number // 250:02x}:{number % 250:02x}" for number in range(5000)]
TWICE = [*ADDRESSES, *(each.replace(":", "-") for each in ADDRESSES)]
"""10,000 rows, two of each key, which differ as text."""


@pytest.mark.parametrize("mode", ["error", "ignore", "update"])
@pytest.mark.parametrize(
    ("size", "is_bad"),
    [
        (3, False),
        (100, True),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in ((3, True), (100, False), (5000, False), (5000, True))
        ),
    ],
)
async def test_keys_that_are_sent_as_text_are_compared_by_their_type(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    mode: str,
    size: int,
    *,
    is_bad: bool,
) -> None:
    rows = [*enumerate([*ADDRESSES[:size], *TWICE[5000 : 5000 + size], *["no address"] * is_bad])]
    stored = [*range(size, 2 * size)] if mode == "update" else [*range(size)]
    failed = {*range(size, 2 * size)} if mode == "error" else set()
    for maybe in ((), range(2 * size)):
        async with database(embedded_postgres.dsn, "id int, word macaddr PRIMARY KEY") as db:
            async with db.sink(on_conflict=mode) as sink:
                errors = await written(sink, rows, maybe)
            assert [row[0] for row in await db.rows("1")] == stored
        assert errors.keys() == failed | ({2 * size} if is_bad else set())


async def test_an_array_that_a_codec_of_the_users_takes_is_no_dimension(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """As with pgvector's own package for asyncpg, in binary and in text format."""

    def text(value: Any) -> str:
        return str([*map(float, value)])

    def binary(value: Any) -> bytes:
        return struct.pack(f">HH{len(value)}f", len(value), 0, *value)

    values = [np.array([number, 0.5], "f4") for number in range(200)]
    async with database(embedded_postgres.dsn, "id int PRIMARY KEY, word real") as db:
        await db.con.execute(
            "CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public;"
            f"ALTER TABLE {db.table} ALTER word TYPE vector(2) USING NULL"
        )
        for form, encoder in (("text", text), ("binary", binary)):

            async def with_codec(con: Any, form: str = form, encoder: Any = encoder) -> None:
                await con.set_type_codec(
                    "vector", schema="public", encoder=encoder, decoder=str, format=form
                )

            async with db.sink(connect_options={"init": with_codec}, on_conflict="update") as sink:
                for size in (1, 200):
                    rows = [*enumerate(values[:size])]
                    assert await written(sink, [*rows, (-1, None)]) == {}
            found = await db.con.fetch(f"SELECT id, word::text FROM {db.table} WHERE id >= 0")
            assert dict(map(tuple, found)) == {
                number: f"[{number},0.5]" for number in range(200)
            }, form
            await db.con.execute(f"DELETE FROM {db.table}")
