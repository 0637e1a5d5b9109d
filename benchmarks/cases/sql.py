"""`SqlSink` on MariaDB, compared with its drivers. Commits do not wait for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sluicegate import RowBatch, send

from ..destination import installed
from ..events import ALONG, EPOCH, EVENTS, QUICK_ROWS, ROWS, sizes
from ..harness import US_PER_ITEM, Case, CaseUnavailableError, Contender, Target, name_of, placed
from ..postgres import by_sqlalchemy
from ..stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from ..destination import Row, Write
    from ..stopwatch import TimedTurn, Took

BY_PYMYSQL, EXECUTEMANY_PYMYSQL = "SqlSink, PyMySQL", "PyMySQL, executemany"
MOST = 1_000
COLUMNS = tuple(EVENTS.columns)
MARIADB_TABLE = "CREATE TABLE events (event_id BIGINT, user_id BIGINT, action TEXT, ts DATETIME)"
INSERT = "INSERT INTO events (event_id, user_id, action, ts) VALUES (%s, %s, %s, %s)"


def writing(sink: Any) -> Write:
    """Write batches into a sink."""

    async def write(batch: Sequence[Row]) -> None:
        if errors := await send(sink, RowBatch(batch)):
            raise AssertionError(f"a row was refused: {errors}")

    return write


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


@asynccontextmanager
async def by_sql_sink(url: Any) -> AsyncGenerator[Write]:
    """Write by `SqlSink` with one connection."""
    from sluicegate.sql import SqlSink

    made = url.set(drivername="mysql+pymysql").render_as_string(hide_password=False)
    async with SqlSink(made, table="events", columns=COLUMNS, pool_size=1) as sink:
        yield writing(sink)


@asynccontextmanager
async def by_pymysql(url: Any) -> AsyncGenerator[Write]:
    """Write by `executemany` and a COMMIT for each batch, in a thread."""
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
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    if not installed(*by_sqlalchemy.REQUIRES, "pymysql"):
        raise CaseUnavailableError("SQLAlchemy or PyMySQL is not installed")
    from tests.sql.mariadb import mariadb_server

    from sluicegate.testing import EmbeddedUnavailable

    ways = {
        BY_PYMYSQL: by_sql_sink,
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
                    ours=line == BY_PYMYSQL,
                    items=rows,
                )
                for line, way in ways.items()
            ]
        yield found


CASES = (
    Case(
        name="sql-mariadb",
        title="Rows into MariaDB by SQLAlchemy",
        prepare=prepare,
        items=ROWS,
        quick_items=QUICK_ROWS,
        along=ALONG,
        unit=US_PER_ITEM,
        peers=(EXECUTEMANY_PYMYSQL,),
        targets=(Target(name_of(BY_PYMYSQL, 100), name_of(EXECUTEMANY_PYMYSQL, 100), 1.0),),
    ),
)
