"""P-T11: in a batch with keys nothing is stored behind a refused row of its key, however the row
was found.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("asyncpg")
from tests.postgres.sink.postgres_help import database  # noqa: E402
from tests.properties import examples  # noqa: E402

from sluicegate import ArrowBatch, PermanentError, RowBatch, send, transaction  # noqa: E402
from sluicegate.errors import KeyStopped  # noqa: E402

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

DDL = (
    "id int PRIMARY KEY, key text, word varchar(9) CHECK (word <> 'check'), child int "
    "REFERENCES parents DEFERRABLE"
)
BAD: dict[str, Any] = {
    "too long": ("much too long", 1),
    "check": ("check", 1),
    "NUL": ("\0", 1),
    "foreign key": ("fine", 7),
    "no int": ("fine", 2**40),
}


def rows_of(count: int, bad: dict[int, str]) -> list[Any]:
    """Three keys in turn."""
    return [(n, "abc"[n % 3], *(BAD[bad[n]] if n in bad else ("fine", 1))) for n in range(count)]


def batch_of(rows: list[Any], *, columns: bool) -> Any:
    keys = [row[1] for row in rows]
    if not columns:
        return RowBatch(rows, keys=keys)
    ids, key, words, children = zip(*rows, strict=True)
    return ArrowBatch(
        pa.record_batch(
            {"id": ids, "key": key, "word": words, "child": pa.array(children, pa.int64())}
        ),
        keys=keys,
    )


def expected(rows: list[Any], bad: set[int]) -> tuple[set[int], set[int]]:
    """The stored rows, and the rows left out behind others."""
    first = {key: min((n for n in bad if rows[n][1] == key), default=len(rows)) for key in "abc"}
    stored = {n for n, row in enumerate(rows) if n < first[row[1]]}
    return stored, set(range(len(rows))) - stored - set(first.values())


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("mode", ["error", "update"])
async def test_nothing_goes_in_behind_a_refused_row_of_its_key(
    embedded_postgres: EmbeddedPostgres,
    real_clock: LoopClock,
    mode: str,
    columns: bool,
    inside: bool,
) -> None:
    """P-T11: other keys continue, in the same write, whatever the fault of the row."""
    async with database(embedded_postgres.dsn, "id int PRIMARY KEY") as parents:
        await parents.con.execute(f"INSERT INTO {parents.table} VALUES (1)")
        ddl = DDL.replace("parents DEFERRABLE", parents.table)
        async with (
            database(embedded_postgres.dsn, ddl) as db,
            db.sink(("id", "key", "word", "child"), on_conflict=mode) as sink,
        ):
            for what in BAD:
                await db.con.execute(f"TRUNCATE {db.table}")
                rows = rows_of(120, {30: what, 33: what})
                batch = batch_of(rows, columns=columns)
                if inside:
                    async with transaction(sink) as tx:
                        errors = await send(tx, batch)
                else:
                    errors = await send(sink, batch)
                stored, behind = expected(rows, {30, 33})
                assert {row[0] for row in await db.rows()} == stored, what
                stopped = {at for at, error in errors.items() if isinstance(error, KeyStopped)}
                assert stopped == behind, what
                assert isinstance(errors[30], PermanentError), what
                assert str(errors[36]).startswith(
                    f"an earlier item of its key failed: PermanentError: {str(errors[30])[:20]}"
                )


async def test_without_keys_a_refused_row_fails_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with (
        database(embedded_postgres.dsn, "id int, word varchar(9) CHECK (word <> 'check')") as db,
        db.sink() as sink,
    ):
        errors = await send(sink, RowBatch([(0, "a"), (1, "check"), (2, "b")]))
        assert list(errors) == [1]
        assert [row[0] for row in await db.rows()] == [0, 2]


faults = st.dictionaries(
    st.integers(0, 59),
    st.sampled_from([name for name in BAD if name != "foreign key"]),
    max_size=12,
)


@examples(12, long=100)
@given(bad=faults, columns=st.booleans(), mode=st.sampled_from(["error", "ignore", "update"]))
def test_any_mixture_of_faults_leaves_whole_prefixes(
    embedded_postgres: EmbeddedPostgres, bad: dict[int, str], columns: bool, mode: str
) -> None:
    """P-T11."""

    async def run() -> None:
        ddl = DDL.replace(" REFERENCES parents DEFERRABLE", "")
        async with (
            database(embedded_postgres.dsn, ddl) as db,
            db.sink(("id", "key", "word", "child"), on_conflict=mode) as sink,
        ):
            rows = rows_of(60, bad)
            errors = await send(sink, batch_of(rows, columns=columns))
            stored, behind = expected(rows, set(bad))
            assert {row[0] for row in await db.rows()} == stored
            assert {
                index for index, error in errors.items() if isinstance(error, KeyStopped)
            } == behind
            assert set(errors) == set(range(60)) - stored

    asyncio.run(run())


@pytest.mark.parametrize("more", [0, 300])
@pytest.mark.parametrize("mode", ["error", "ignore"])
async def test_a_row_that_was_left_out_is_no_conflict_for_a_later_one(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, mode: str, more: int
) -> None:
    """P-T11: a row behind a failed one of its key is not stored, so another key may use its id."""
    rows = [(1, "a", "fine", 7), (2, "a", "fine", 1), (2, "b", "fine", 1), (2, "b", "fine", 1)]
    rows += [(n, "c", "fine", 1) for n in range(10, 10 + more)]
    async with (
        database(
            embedded_postgres.dsn,
            DDL.replace(" REFERENCES parents DEFERRABLE", " CHECK (child < 7)"),
        ) as db,
        db.sink(("id", "key", "word", "child"), on_conflict=mode) as sink,
    ):
        errors = await send(sink, batch_of(rows, columns=False))
        assert await db.rows() == rows[2:3] + rows[4:]
    kinds = {0: PermanentError, 1: KeyStopped} | ({3: PermanentError} if mode == "error" else {})
    assert {index: type(error) for index, error in errors.items()} == kinds
