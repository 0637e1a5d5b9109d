"""`SqlSink` behind a pooler in transaction mode: a statement of another client writes no rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from tests.sql.sql_help import SqlTable, names, written

from sluicegate import ConfigError

if TYPE_CHECKING:
    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")


def _url(dsn: str, driver: str) -> str:
    url = sa.make_url(dsn).set(drivername=f"postgresql+{driver}")
    return url.render_as_string(hide_password=False)


def _table(server: EmbeddedPostgres, bouncer: PgBouncer, driver: str) -> SqlTable:
    table = SqlTable(_url(bouncer.dsn, driver), _url(server.dsn, "psycopg"))
    table.make()
    return table


async def test_asyncpg_is_refused_unless_the_pooler_keeps_its_statements(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer
) -> None:
    table = _table(embedded_postgres, bouncer, "asyncpg")
    with pytest.raises(
        ConfigError, match="there is a pooler in front of the database, and asyncpg"
    ):
        async with table.sink():
            pass
    direct = _url(embedded_postgres.dsn, "asyncpg")
    async with table.sink(url=direct) as sink:
        assert await written(sink, [(1, "a")]) == {}


async def test_psycopg_prepares_no_statements(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer
) -> None:
    """Concurrent clients write batches of many sizes, some with a bad row."""
    table = _table(embedded_postgres, bouncer, "psycopg")

    async def client(sink: Any, first: int) -> None:
        for number in range(first, first + 400, 20):
            size = 1 + number // 20 % 3 * 7
            rows: list[Any] = [(number + at, "w") for at in range(size)]
            bad = [size // 2] if size > 1 and number % 100 == 0 else []
            for at in bad:
                rows[at] = (rows[at][0], None)
            assert names(await written(sink, rows)) == dict.fromkeys(bad, "PermanentError")
            stored.extend(row for at, row in enumerate(rows) if at not in bad)

    stored: list[Any] = []
    async with table.sink(on_conflict="update") as one, table.sink(on_conflict="update") as other:
        clients = [client(sink, 1000 * at) for at, sink in enumerate([one, other] * 3)]
        await asyncio.gather(*clients)
    assert sorted(await table.looked()) == sorted(stored)
    engine = sa.create_engine(table.url)
    with pytest.raises(ConfigError, match="set prepare_threshold=None in the engine"):
        async with table.sink(url=engine):
            pass
    engine.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", pytest.param("psycopg", marks=pytest.mark.long)])
async def test_statements_are_prepared_if_the_user_knows_that_the_mode_is_session(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, driver: str
) -> None:
    """The mode cannot be detected; another client has statements of the same names."""
    table = _table(embedded_postgres, bouncer, driver)
    await bouncer.restart(pool_mode="session")
    try:
        if driver == "asyncpg":
            with pytest.raises(ConfigError, match=r"mode only .* pass prepared_statements=True"):
                async with table.sink():
                    pass
        engines: list[Any] = [table.url, table.url]
        if driver == "psycopg":  # a user's engine would also be refused
            engines = [sa.create_engine(table.url) for _ in engines]
        sinks = [table.sink(url=engine, prepared_statements=True) for engine in engines]
        async with sinks[0] as one, sinks[1] as other:
            for number in range(0, 40, 2):  # psycopg prepares after the fifth execution
                writes = [written(one, [(number, "a")]), written(other, [(number + 1, "b")])]
                assert await asyncio.gather(*writes) == [{}, {}]
        assert sorted(await table.looked()) == [(at, "ab"[at % 2]) for at in range(40)]
        for engine in engines if driver == "psycopg" else ():
            engine.dispose()
    finally:
        await bouncer.restart()
    with pytest.raises(ConfigError, match='prepared_statements=False: must be "auto" or True'):
        table.sink(prepared_statements=False)
