"""`SqlSink` compared with `PostgresSink` and SQLAlchemy's own ways, and on MariaDB with its
drivers.

Commits do not wait for the disk: that wait is the same for all.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sluicegate import RowBatch, send

from ..destination import NO_WAIT, Destination, installed, postgres_server
from ..events import ALONG, EPOCH, EVENTS, QUICK_ROWS, ROWS, contender, our_sink, sizes
from ..harness import US_PER_ITEM, Case, CaseUnavailableError, Contender, Target, name_of, placed
from ..postgres import by_sqlalchemy
from ..stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from ..destination import Row, Write
    from ..stopwatch import TimedTurn, Took

SQL, POSTGRES = "SqlSink, asyncpg", "PostgresSink"
ONE_BY_ONE, MANY = "SQLAlchemy, insert().values() for each row", "SQLAlchemy, a list of rows"
MARIADB, BY_PYMYSQL = "SqlSink, asyncmy", "SqlSink, PyMySQL"
EXECUTEMANY, EXECUTEMANY_PYMYSQL = "asyncmy, executemany", "PyMySQL, executemany"
MOST = 1_000
COLUMNS = tuple(EVENTS.columns)
MARIADB_TABLE = "CREATE TABLE events (event_id BIGINT, user_id BIGINT, action TEXT, ts DATETIME)"
INSERT = "INSERT INTO events (event_id, user_id, action, ts) VALUES (%s, %s, %s, %s)"


def sqlalchemy_url(dsn: str) -> str:
    """Return the URL of the same server for asyncpg, with options in asyncpg's form."""
    import sqlalchemy

    url = sqlalchemy.make_url(dsn.removesuffix(NO_WAIT))
    return url.set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)


@asynccontextmanager
async def by_sql_sink(to: Destination) -> AsyncGenerator[Write]:
    """Write with one connection of the sink."""
    from sluicegate.sql import SqlSink

    options = {"connect_args": {"server_settings": {"synchronous_commit": "off"}}}
    sink = SqlSink(
        sqlalchemy_url(to.dsn),
        table=to.table.name,
        columns=COLUMNS,
        pool_size=1,
        engine_options=options,
    )
    async with sink:
        yield writing(sink)


def writing(sink: Any) -> Write:
    """Write batches into a sink."""

    async def write(batch: Sequence[Row]) -> None:
        if errors := await send(sink, RowBatch(batch)):
            raise AssertionError(f"a row was refused: {errors}")

    return write


@asynccontextmanager
async def one_by_one(to: Destination) -> AsyncGenerator[Write]:
    """Execute a statement for each row, in a transaction for each batch."""
    import asyncpg
    from sqlalchemy.ext.asyncio import create_async_engine

    table = by_sqlalchemy.table_of(to)
    engine = create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda *_, **__: asyncpg.connect(to.dsn)
    )
    async with engine.connect() as connection:

        async def write(batch: Sequence[Row]) -> None:
            async with connection.begin():
                for row in batch:
                    values = dict(zip(COLUMNS, row, strict=True))
                    await connection.execute(table.insert().values(values))

        yield write
    await engine.dispose()


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    if not installed(*by_sqlalchemy.REQUIRES):
        raise CaseUnavailableError("SQLAlchemy is not installed")
    ways = {
        SQL: by_sql_sink,
        POSTGRES: our_sink(),
        ONE_BY_ONE: one_by_one,
        MANY: by_sqlalchemy.executemany,
    }
    with postgres_server() as dsn:
        to = Destination(dsn + NO_WAIT, EVENTS)
        yield [
            contender(line, size, opener, to, count=count, ours=line == SQL)
            for size in sizes(count, MOST)
            for line, opener in ways.items()
        ]


# -- MariaDB ---------------------------------------------------------------------------------------


def _batches(size: int, rows: int) -> list[list[Row]]:
    at = EPOCH.replace(tzinfo=None)
    made = [(n, n % 977, f"action {n % 31}", at) for n in range(rows + size)]
    return [made[first : first + size] for first in range(0, rows + size, size)]


def _turn(url: str, size: int, rows: int, way: Any) -> TimedTurn:
    import sqlalchemy

    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)

    def empty() -> None:
        with engine.begin() as con:
            con.exec_driver_sql("DROP TABLE IF EXISTS events")
            con.exec_driver_sql(MARIADB_TABLE)

    async def turn() -> Took:
        batches = _batches(size, rows)
        async with way(engine.url) as write:
            await write(batches[0])
            watch = Stopwatch()
            for batch in batches[1:]:
                await write(batch)
            return watch.read()

    def run() -> Took:
        empty()
        took = asyncio.run(turn())
        with engine.connect() as con:
            found = con.exec_driver_sql("SELECT count(*) FROM events").scalar()
        assert found == rows + size, f"{found} of {rows + size} rows arrived"
        return took

    return run


def by_sql_sink_with(driver: str) -> Any:
    """Write by `SqlSink` with this driver and one connection."""

    @asynccontextmanager
    async def opened(url: Any) -> AsyncGenerator[Write]:
        from sluicegate.sql import SqlSink

        made = url.set(drivername=f"mysql+{driver}").render_as_string(hide_password=False)
        async with SqlSink(made, table="events", columns=COLUMNS, pool_size=1) as sink:
            yield writing(sink)

    return opened


@asynccontextmanager
async def by_asyncmy(url: Any) -> AsyncGenerator[Write]:
    """Write by `executemany` and a COMMIT for each batch."""
    import asyncmy

    con = await asyncmy.connect(host=url.host, port=url.port, user=url.username, db=url.database)

    async def write(batch: Sequence[Row]) -> None:
        async with con.cursor() as cursor:
            await cursor.executemany(INSERT, batch)
        await con.commit()

    yield write
    con.close()


@asynccontextmanager
async def by_pymysql(url: Any) -> AsyncGenerator[Write]:
    """Do the same in a thread."""
    import pymysql

    con = pymysql.connect(host=url.host, port=url.port, user=url.username, database=url.database)

    def write_all(batch: Sequence[Row]) -> None:
        with con.cursor() as cursor:
            cursor.executemany(INSERT, batch)
        con.commit()

    async def write(batch: Sequence[Row]) -> None:
        await asyncio.to_thread(write_all, batch)

    yield write
    con.close()


@contextlib.contextmanager
def prepare_mariadb(count: int) -> Iterator[Sequence[Contender]]:
    if not installed(*by_sqlalchemy.REQUIRES, "asyncmy", "pymysql"):
        raise CaseUnavailableError("SQLAlchemy, asyncmy or PyMySQL is not installed")
    from tests.sql.mariadb import mariadb_server

    from sluicegate.testing import EmbeddedUnavailable

    ways = {
        MARIADB: by_sql_sink_with("asyncmy"),
        BY_PYMYSQL: by_sql_sink_with("pymysql"),
        EXECUTEMANY: by_asyncmy,
        EXECUTEMANY_PYMYSQL: by_pymysql,
    }
    with contextlib.ExitStack() as opened:
        try:
            server = opened.enter_context(
                mariadb_server("--innodb-flush-log-at-trx-commit=0", "--skip-log-bin")
            )
        except EmbeddedUnavailable as reason:
            raise CaseUnavailableError(str(reason)) from None
        found: list[Contender] = []
        for size in sizes(count, MOST):
            rows = size * max(1, min(count // size, 300))
            found += [
                placed(
                    line,
                    size,
                    _turn(server.url(), size, rows, way),
                    ours=line in {MARIADB, BY_PYMYSQL},
                    items=rows,
                )
                for line, way in ways.items()
            ]
        yield found


CASES = (
    Case(
        name="sql",
        title="Rows into PostgreSQL by SQLAlchemy",
        prepare=prepare,
        items=ROWS,
        quick_items=QUICK_ROWS,
        along=ALONG,
        unit=US_PER_ITEM,
        peers=(POSTGRES,),
        targets=tuple(
            target
            for size in (10, 30)
            for target in (
                Target(name_of(SQL, size), name_of(POSTGRES, size), 0.8),
                Target(name_of(SQL, size), name_of(ONE_BY_ONE, size), 3.0),
            )
        ),
    ),
    Case(
        name="sql-mariadb",
        title="Rows into MariaDB by SQLAlchemy",
        prepare=prepare_mariadb,
        items=ROWS,
        quick_items=QUICK_ROWS,
        along=ALONG,
        unit=US_PER_ITEM,
        peers=(EXECUTEMANY,),
        targets=(
            Target(name_of(MARIADB, 100), name_of(EXECUTEMANY, 100), 1.0),
            Target(name_of(BY_PYMYSQL, 100), name_of(EXECUTEMANY_PYMYSQL, 100), 1.0),
        ),
    ),
)
