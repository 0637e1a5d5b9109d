"""Faults are reported by name when the sink is opened, without the password."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.sink.postgres_help import database, written

from sluicegate import ConfigError, UnavailableError
from sluicegate.postgres import PostgresAccess, PostgresSink

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


async def opening_error(dsn: str, kind: type[Exception], secret: str, **options: Any) -> str:
    usual: dict[str, Any] = {"table": "events", "columns": ("id",)}
    sink = PostgresSink(dsn, **{**usual, **options})
    with pytest.raises(kind) as caught:
        async with sink:
            pass
    assert not sink.is_open
    shown = f"{caught.value} {caught.value.__cause__} {sink!r}"
    assert secret not in shown
    return shown


def secret_of(dsn: str) -> str:
    found = re.search(r"//[^:]+:([^@]+)@", dsn)
    assert found is not None
    return found[1]


async def test_a_wrong_table_names_the_ones_there(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await db.con.execute(
            "CREATE SCHEMA IF NOT EXISTS aside; DROP TABLE IF EXISTS aside.only; CREATE TABLE "
            "aside.only (id int)"
        )
        secret = secret_of(db.dsn)
        shown = await opening_error(db.dsn, ConfigError, secret, table=f"{db.table}s")
        assert f"there are {db.table!r}" in shown, (
            "the one that may be meant stands first, however many there are"
        )
        assert "'only'" in await opening_error(
            db.dsn, ConfigError, secret, table="nowhere", schema="aside"
        )
        assert "pass schema='aside'" in await opening_error(
            db.dsn, ConfigError, secret, table="aside.only"
        )
        assert "'aside'" in await opening_error(
            db.dsn, ConfigError, secret, table="only", schema="asid"
        )
        await db.con.execute("DROP SCHEMA aside CASCADE")


async def test_a_wrong_column_names_the_ones_there(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    async with database(
        embedded_postgres.dsn, "id int, word text, twice int GENERATED ALWAYS AS (id * 2) STORED"
    ) as db:
        secret = secret_of(db.dsn)
        shown = await opening_error(
            db.dsn, ConfigError, secret, table=db.table, columns=("id", "Word")
        )
        assert "columns=['Word']" in shown
        assert "'word'" in shown
        assert "computes" in await opening_error(
            db.dsn, ConfigError, secret, table=db.table, columns=("id", "twice")
        )


@pytest.mark.parametrize(
    ("part", "wrong"), [("password", "hush-hush"), ("user", "nobody"), ("database", "nothing")]
)
async def test_a_wrong_login_names_what_was_refused(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, part: str, wrong: str
) -> None:
    dsn, secret = embedded_postgres.dsn, secret_of(embedded_postgres.dsn)
    changed = {
        "password": dsn.replace(secret, wrong),
        "user": dsn.replace("//postgres:", f"//{wrong}:"),
        "database": dsn.rpartition("/")[0] + f"/{wrong}",
    }[part]
    shown = await opening_error(changed, ConfigError, wrong if part == "password" else secret)
    assert ("postgres" if part == "password" else wrong) in shown
    assert "127.0.0.1" in shown


@pytest.mark.parametrize(
    "dsn",
    ["postgresql://u:hush-hush@127.0.0.1:1/x", "postgresql://u:hush-hush@no-such-host.invalid/x"],
)
async def test_a_server_that_is_not_there_is_unavailable_at_once(
    real_clock: LoopClock, dsn: str
) -> None:
    assert "no connection to" in await opening_error(dsn, UnavailableError, "hush-hush")


async def test_a_conflict_key_must_be_unique_in_the_table(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    ddl = (
        "id serial PRIMARY KEY, word text, a int, b int, c int, UNIQUE (b, a), UNIQUE (c) "
        "DEFERRABLE"
    )
    async with database(embedded_postgres.dsn, ddl) as db:
        secret = secret_of(db.dsn)
        options: dict[str, Any] = {
            "table": db.table,
            "columns": ("word", "a"),
            "on_conflict": "ignore",
        }
        assert "unique keys: id; b, a" in await opening_error(
            db.dsn, ConfigError, secret, **options
        )
        options |= {"columns": ("word", "a", "b", "c"), "conflict_columns": ("c",)}
        assert "conflict_columns=('c',)" in await opening_error(
            db.dsn, ConfigError, secret, **options
        )
        await db.con.execute(f"ALTER TABLE {db.table} DROP COLUMN c")
        async with db.sink(
            ("word", "a", "b"), on_conflict="update", conflict_columns=("a", "b")
        ) as sink:
            assert await written(sink, [("x", 1, 2), ("y", 1, 2)]) == {}
        async with db.sink(("word", "a", "b"), on_conflict="ignore") as sink:
            assert await written(sink, [("z", 1, 2)] * 60) == {}
        assert [row[1:] for row in await db.rows()] == [("y", 1, 2)]


async def test_a_function_that_makes_no_pool_is_named(real_clock: LoopClock) -> None:
    with pytest.raises(ConfigError, match="pool='dict'"):
        async with PostgresSink(PostgresAccess(pool=dict), table="events", columns=("id",)):
            pass


async def test_options_reach_the_client(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock
) -> None:
    asked: list[str] = []

    def no_tls() -> bool:
        asked.append("ssl")
        return False

    async with database(
        embedded_postgres.dsn,
        "id int, word text DEFAULT current_setting('application_name'), t text",
    ) as db:
        options: dict[str, Any] = {
            "server_settings": {"application_name": "the tests"},
            "ssl": no_tls,
        }
        async with db.sink(("id",), connect_options=options, statement_timeout=5) as sink:
            assert await written(sink, [(1,)]) == {}
        assert await db.rows() == [(1, "the tests", None)]
        assert asked == ["ssl"]
