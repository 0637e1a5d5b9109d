"""Several rows of one key in columns: replaced ones are omitted before sending, without a visible
difference.

White box: the choice of rows, without a server.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")
asyncpg = pytest.importorskip("asyncpg")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from sluicegate import ArrowBatch, RowBatch, send  # noqa: E402
from sluicegate.postgres import PostgresSink  # noqa: E402
from sluicegate.postgres.sink.rows.columns import latest  # noqa: E402

if TYPE_CHECKING:
    from sluicegate import Batch
    from sluicegate.testing import EmbeddedPostgres

KEYS = st.lists(
    st.tuples(
        st.sampled_from([None, 1, 2, 3]),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([1, 2]),
    ),
    min_size=1,
)


@settings(deadline=None)  # pyarrow is imported inside
@given(KEYS)
def test_the_last_row_of_a_key_stays_and_what_holds_null_has_no_equal(
    rows: list[tuple[Any, Any, Any]],
) -> None:
    """P-T9: duplicate keys within a chunk."""
    first, second, versions = (
        pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), KINDS, strict=True)
    )
    whole = [place for place, (a, b, _) in enumerate(rows) if a is None or b is None]
    last = {
        (a, b): place for place, (a, b, _) in enumerate(rows) if a is not None and b is not None
    }
    assert found(latest([first, second]), len(rows)) == sorted([*whole, *last.values()])
    newest: dict[Any, int] = {}
    for place, (a, b, version) in enumerate(rows):
        before = rows[newest[a, b]][2] if (a, b) in newest else None
        if a is not None and b is not None and (before is None or version > before):
            newest[a, b] = place
    assert found(latest([first, second], versions), len(rows)) == sorted([*whole, *newest.values()])


KINDS = (pa.int64(), pa.string(), pa.int32())


def found(places: Any, count: int) -> list[int]:
    return list(range(count)) if places is None else places.tolist()


def test_floats_are_left_to_the_server() -> None:
    assert latest([pa.array([0.0, -0.0, 0.0])]) is None


async def table_after(
    dsn: str, batches: list[Batch[Any]], kind: str, **options: Any
) -> tuple[list[list[int]], list[tuple[Any, ...]]]:
    con = await asyncpg.connect(dsn)
    try:
        await con.execute("DROP TABLE IF EXISTS versions")
        await con.execute(
            f"CREATE TABLE versions (id {kind} PRIMARY KEY, at integer, name text CHECK (name "
            "<> 'bad'))"
        )
        async with PostgresSink(
            dsn, table="versions", columns=("id", "at", "name"), on_conflict="update", **options
        ) as sink:
            errors = [sorted(await send(sink, batch)) for batch in batches]
        return errors, [tuple(row) for row in await con.fetch("SELECT * FROM versions ORDER BY id")]
    finally:
        await con.close()


@pytest.mark.parametrize("kind", ["bigint", "text"])
@pytest.mark.parametrize("options", [{}, {"version_column": "at"}], ids=["last", "version"])
@pytest.mark.parametrize("bad", [False, True], ids=["good", "with-bad-rows"])
def test_columns_leave_the_table_that_rows_leave(
    embedded_postgres: EmbeddedPostgres, kind: str, options: dict[str, Any], bad: bool
) -> None:
    """P-T9, P-T10: with several versions of a key in a batch, including rows that the table
    refuses.
    """
    dice = random.Random(4)
    by_rows: list[Batch[Any]] = []
    by_columns: list[Batch[Any]] = []
    for _ in range(6):
        names = ["bad" if bad and dice.random() < 0.02 else f"n{dice.random()}" for _ in range(200)]
        ids: list[Any] = [dice.randrange(50) for _ in names]
        ids = ids if kind == "bigint" else list(map(str, ids))
        ats = [None if dice.random() < 0.1 else dice.randrange(1000) for _ in names]
        by_rows.append(RowBatch(zip(ids, ats, names, strict=True)))
        by_columns.append(
            ArrowBatch(pa.record_batch({"id": ids, "at": pa.array(ats, pa.int32()), "name": names}))
        )
    ways = [
        asyncio.run(table_after(embedded_postgres.dsn, batches, kind, **options))
        for batches in (by_rows, by_columns)
    ]
    assert ways[0] == ways[1]
    assert len(ways[0][1]) == 50


def test_a_row_that_staging_refuses_is_named_though_rows_before_it_were_left_out(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """The server's line number counts the sent rows."""

    async def work() -> tuple[list[int], list[Any]]:
        con = await asyncpg.connect(embedded_postgres.dsn)
        try:
            await con.execute("DROP TABLE IF EXISTS moods, dated; DROP DOMAIN IF EXISTS hundreds")
            await con.execute(
                "CREATE DOMAIN hundreds AS integer CHECK (value < 100); CREATE TABLE dated (id "
                "integer PRIMARY KEY, v hundreds)"
            )
            async with PostgresSink(
                embedded_postgres.dsn, table="dated", columns=("id", "v"), on_conflict="update"
            ) as sink:
                batch = pa.record_batch(
                    {
                        "id": pa.array([1, 1, 1, 2, 3], pa.int32()),
                        "v": pa.array([1, 2, 3, 200, 5], pa.int32()),
                    }
                )
                errors = await send(sink, ArrowBatch(batch))
            return sorted(errors), [
                tuple(row) for row in await con.fetch("SELECT * FROM dated ORDER BY id")
            ]
        finally:
            await con.close()

    assert asyncio.run(work()) == ([3], [(1, 3), (3, 5)])
