"""Batches whose rows the extension packs: which are stored or refused, and when asyncpg encodes
instead. Without the extension the results are the same.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.sink.postgres_help import batch_of, database, outcomes, proxied

from sluicegate import Outcome, PermanentError, UnavailableError, UnknownOutcomeError, send

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("encoder")
COLUMNS = ("id", "word", "moment")
TABLE = "id bigint PRIMARY KEY, word varchar(9), moment timestamptz"
NOW = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
LOCAL = NOW.replace(tzinfo=None)
"""A time without a zone, which asyncpg takes as local time."""
MANY = 5000
"""Rows of several pieces."""


def rows(count: int, start: int = 0) -> list[tuple[Any, ...]]:
    return [
        (number, f"word {number % 99}" if number % 3 else None, NOW + dt.timedelta(seconds=number))
        for number in range(start, start + count)
    ]


class Watched(asyncpg.Connection):
    """A connection that records how each COPY is encoded."""

    copies: list[str]

    async def copy_records_to_table(self, *arguments: Any, **named: Any) -> str:
        self.__class__.copies.append("asyncpg")
        return await super().copy_records_to_table(*arguments, **named)

    async def copy_to_table(self, *arguments: Any, **named: Any) -> str:
        self.__class__.copies.append("packed")
        return await super().copy_to_table(*arguments, **named)


@pytest.fixture
def watched() -> type[Watched]:
    return type("WatchedHere", (Watched,), {"copies": []})


@pytest.fixture
def way(encoder: str) -> str:
    """How rows are copied that the extension accepts."""
    return "packed" if encoder == "extension" else encoder


def watching(kind: type[Watched], **settings: str) -> dict[str, Any]:
    return {"connection_class": kind, "server_settings": settings}


@pytest.mark.parametrize("count", [60, MANY])
async def test_rows_of_known_types_are_packed(
    embedded_postgres: EmbeddedPostgres,
    watched: type[Watched],
    real_clock: LoopClock,
    way: str,
    count: int,
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:
        async with db.sink(COLUMNS, copy_threshold=50, connect_options=watching(watched)) as sink:
            assert await send(sink, batch_of(map(list, rows(count)))) == {}
        assert watched.copies == [way]
        assert await db.rows("1") == rows(count)


async def test_rows_are_packed_into_staging(
    embedded_postgres: EmbeddedPostgres, watched: type[Watched], real_clock: LoopClock, way: str
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:
        async with db.sink(
            COLUMNS,
            on_conflict="ignore",
            statement="copy",
            connect_options=watching(watched),
        ) as sink:
            assert await send(sink, batch_of(rows(60))) == {}
            assert await send(sink, batch_of(rows(100))) == {}
        assert watched.copies == [way, way]
        assert await db.rows("1") == rows(100)


@pytest.mark.parametrize("place", [0, 59])
async def test_a_declined_value_is_stored_as_asyncpg_stores_it(
    embedded_postgres: EmbeddedPostgres, watched: type[Watched], real_clock: LoopClock, place: int
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:
        given = rows(60)
        given[place] = (given[place][0], "local", LOCAL)
        async with db.sink(COLUMNS, copy_threshold=50, connect_options=watching(watched)) as sink:
            assert await send(sink, batch_of(given)) == {}
        assert watched.copies == ["asyncpg"], "nothing was sent before"
        stored = await db.rows("1")
        assert stored[place][2] == LOCAL.astimezone(dt.UTC)
        assert [row for row in stored if row[1] != "local"] == [
            row for row in given if row[1] != "local"
        ]


@pytest.mark.parametrize("mode", ["error", "ignore"])
async def test_a_value_declined_in_the_middle_ends_the_copy_and_asyncpg_writes_all(
    embedded_postgres: EmbeddedPostgres,
    watched: type[Watched],
    real_clock: LoopClock,
    way: str,
    mode: str,
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:
        given = rows(MANY)
        given[-2] = (given[-2][0], "local", LOCAL)
        async with db.sink(
            COLUMNS,
            pool_size=1,
            on_conflict=mode,
            statement="copy",
            connect_options=watching(watched),
        ) as sink:
            batch = batch_of(given)
            assert await send(sink, batch) == {}
            assert watched.copies == ["packed", "asyncpg"][way == "asyncpg" :]
            assert set(outcomes(batch)) == {Outcome.DELIVERED}
            assert len(await db.rows("1")) == MANY
            assert await send(sink, batch_of(rows(200, MANY))) == {}, "the connection works"
        assert watched.copies[-1] == "asyncpg"
        assert watched.copies.count("packed") == (way == "packed"), "it is not tried again at once"


async def test_rows_that_the_server_refuses_fail_alone(
    embedded_postgres: EmbeddedPostgres, watched: type[Watched], real_clock: LoopClock, way: str
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:
        given = rows(MANY)
        given[7] = (7, "far too long for it", NOW)
        given[-1] = (given[-1][0], "a\0b", NOW)
        given[300] = (6, "again", NOW)
        async with db.sink(COLUMNS, copy_threshold=50, connect_options=watching(watched)) as sink:
            errors = await send(sink, batch_of(given))
        assert errors.keys() == {7, 300, MANY - 1}
        assert "value too long" in str(errors[7])
        assert watched.copies.count(way) >= 2
        assert len(await db.rows("1")) == MANY - 3


@pytest.mark.parametrize(
    "bad",
    [(2**63, "x", NOW), (1.5, "x", NOW), ("1", "x", NOW), (1, 5, NOW), (1, "\ud800", NOW), (1, "x", "now")],
)  # fmt: skip
async def test_rows_that_asyncpg_refuses_fail_alone(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, bad: tuple[Any, ...]
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:
        async with db.sink(COLUMNS, copy_threshold=50) as sink:
            errors = await send(sink, batch_of([*rows(60, 10), bad]))
        assert {place: type(error) for place, error in errors.items()} == {60: PermanentError}
        assert await db.rows("1") == rows(60, 10)


async def test_text_for_a_client_encoding_other_than_utf8_is_left_to_asyncpg(
    embedded_postgres: EmbeddedPostgres, watched: type[Watched], real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:
        given = [(number, "é", NOW) for number in range(60)]
        options = watching(watched, client_encoding="latin1")
        async with db.sink(COLUMNS, copy_threshold=50, connect_options=options) as sink:
            assert await send(sink, batch_of(given)) == {}
        assert watched.copies == ["asyncpg"]
        assert await db.rows("1") == given


async def test_a_codec_of_the_users_encodes_its_values(
    embedded_postgres: EmbeddedPostgres, watched: type[Watched], real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:

        async def init(con: Any) -> None:
            await con.set_type_codec(
                "varchar", schema="pg_catalog", encoder=str.upper, decoder=str, format="text"
            )

        async with db.sink(
            COLUMNS, copy_threshold=50, connect_options={**watching(watched), "init": init}
        ) as sink:
            assert await send(sink, batch_of([(n, "a", NOW) for n in range(60)])) == {}
        assert "packed" not in watched.copies
        assert {row[1] for row in await db.rows("1")} == {"A"}


async def test_a_lost_answer_is_unknown_and_repaired(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:
        async with (
            proxied(db.dsn) as (proxy, through),
            db.sink(COLUMNS, dsn=through, copy_threshold=50) as sink,
        ):
            batch = batch_of(rows(MANY))
            proxy.cut_answer = "COPY"
            errors = await send(sink, batch)
            assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
            assert await send(sink, batch) == {}
            assert set(outcomes(batch)) == {Outcome.DUPLICATE}
        assert await db.rows("1") == rows(MANY)


async def test_a_connection_lost_among_the_pieces_stores_nothing(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, TABLE) as db:
        async with (
            proxied(db.dsn) as (proxy, through),
            db.sink(COLUMNS, dsn=through, copy_threshold=50) as sink,
        ):
            batch = batch_of(rows(10 * MANY))
            proxy.cut_request = lambda kind, body: kind == b"d" and not body.startswith(b"PGCOPY")
            errors = await send(sink, batch)
            assert {type(error) for error in errors.values()} <= {
                UnavailableError,
                UnknownOutcomeError,
            }
            assert len(errors) == 10 * MANY
            assert await db.rows("1") == []
            assert await send(sink, batch) == {}
        assert len(await db.rows("1")) == 10 * MANY


async def test_a_column_that_was_altered_is_not_packed_by_its_old_type(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    """The eight bytes of a timestamp would also be a valid number."""
    async with (
        database(embedded_postgres.dsn, "id bigint, word text, moment timestamptz") as db,
        db.sink(COLUMNS, copy_threshold=50) as sink,
    ):
        assert await send(sink, batch_of(rows(60))) == {}
        await db.con.execute(
            f"ALTER TABLE {db.table} ALTER moment TYPE bigint USING extract(epoch FROM moment)"
        )
        errors = await send(sink, batch_of(rows(60, 60)))
        assert len(errors) == 60
        assert len(await db.rows("1")) == 60
