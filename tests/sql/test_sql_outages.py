"""`SqlSink` with killed servers, lost responses and missing permissions.

White box: errors are judged by the class that a retry would see.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from tests.postgres.sink.postgres_help import proxied
from tests.sql.sql_help import SqlTable, names, written

from sluicegate import (
    Backoff,
    Batcher,
    ConfigError,
    ErrorClass,
    Limits,
    Outcome,
    Retry,
    RowBatch,
    send,
    stack,
)
from sluicegate._core.classify import classified
from sluicegate.batcher import LoopClock

if TYPE_CHECKING:
    from tests.sql.mariadb import MariaDbServer

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

CLOCK = LoopClock()


@pytest.fixture
def postgres(embedded_postgres: EmbeddedPostgres) -> SqlTable:
    """The table `words` of PostgreSQL."""
    url = sa.make_url(embedded_postgres.dsn)
    made = [
        url.set(drivername=f"postgresql+{each}").render_as_string(hide_password=False)
        for each in ("asyncpg", "psycopg")
    ]
    table = SqlTable(*made)
    table.make()
    return table


@pytest.mark.parametrize(("count", "word"), [(50, "INSERT"), (17_000, "COMMIT")])
async def test_a_lost_answer_is_found_out_by_the_key(
    postgres: SqlTable, count: int, word: str
) -> None:
    """batcher/B38: with autocommit and in a transaction; nothing is duplicated."""
    rows = [(number, "w") for number in range(count)]
    dsn = sa.make_url(postgres.url)
    plain = dsn.set(drivername="postgresql").render_as_string(hide_password=False)
    async with proxied(plain) as (proxy, through):
        way = sa.make_url(through)
        url = dsn.set(host=way.host, port=way.port).render_as_string(hide_password=False)
        async with postgres.sink(url=url, engine_options={"connect_args": {"ssl": False}}) as sink:
            batch = RowBatch(rows)
            proxy.cut_answer = word
            errors = await send(sink, batch)
            assert {*names(errors).values()} == {"UnknownOutcomeError"}
            assert len(errors) == count
            assert await send(sink, batch) == {}
            assert {batch.delivery.verdict(at) for at in range(count)} == {Outcome.DUPLICATE}
    assert await postgres.looked() == rows


@pytest.mark.parametrize("at", ["the statement", "the COMMIT"])
async def test_rows_behind_a_lost_connection_were_not_tried(postgres: SqlTable, at: str) -> None:
    """If each row has its own transaction, only the row whose COMMIT was lost is unknown."""
    for statement in (
        "DROP TABLE IF EXISTS words, known",
        "CREATE TABLE known (id int PRIMARY KEY); INSERT INTO known VALUES (1), (3), (4)",
    ):
        postgres.run(statement)
    postgres.make(
        "id int NOT NULL UNIQUE REFERENCES known DEFERRABLE INITIALLY DEFERRED, word text"
    )
    singly = "SELECT FROM words WHERE id = 1 AND pg_xact_status(xmin::text::xid8) = 'committed'"
    postgres.run(
        f"""
        CREATE OR REPLACE FUNCTION end_it() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.word = 'end' AND EXISTS ({singly}) THEN
                PERFORM pg_terminate_backend(pg_backend_pid());
            END IF;
            SET CONSTRAINTS ALL DEFERRED;  -- so that only the COMMIT refuses a row
            RETURN NEW;
        END $$
        """
    )
    kind, when, clause = (
        ("", "BEFORE", "")
        if at == "the statement"
        else ("CONSTRAINT", "AFTER", "DEFERRABLE INITIALLY DEFERRED")
    )
    postgres.run(
        f"CREATE {kind} TRIGGER a_end {when} INSERT ON words {clause} FOR EACH ROW EXECUTE FUNCTION end_it()"
    )
    async with postgres.sink() as sink:
        errors = await written(sink, [(1, "w"), (2, "w"), (3, "end"), (4, "w")])
        lost = "UnavailableError" if at == "the statement" else "UnknownOutcomeError"
        assert names(errors) == {1: "PermanentError", 2: lost, 3: "UnavailableError"}
    assert await postgres.looked() == [(1, "w")]
    postgres.run("DROP TABLE words, known; DROP FUNCTION end_it")


@pytest.mark.parametrize("driver", ["asyncmy", pytest.param("pymysql", marks=pytest.mark.long)])
async def test_a_server_that_is_killed_under_load(mariadb: MariaDbServer, driver: str) -> None:
    """Every row is stored once, and every outcome is correct."""
    table = SqlTable(mariadb.url(driver), mariadb.url())
    await asyncio.to_thread(table.make)
    retry = Retry(attempts=20, give_up_after=60.0, backoff=Backoff(base=0.05, jitter="none"))
    receipts: list[Any] = []
    async with Batcher(
        stack(table.sink(pool_size=4), retry),
        limits=Limits(max_items=50, max_delay=0.01, workers=4),
    ) as batcher:

        async def produce() -> None:
            for number in range(6000):
                receipts.append(await batcher.submit((number, "w")))
                if number % 20 == 0:
                    await CLOCK.sleep(0.001)

        producing = asyncio.create_task(produce())
        for least in (1000, 3000):
            while sum(receipt.done for receipt in receipts[:least]) < least:
                await CLOCK.sleep(0.01)
            await asyncio.to_thread(mariadb.kill)
            await asyncio.to_thread(mariadb.start)
        await producing
        outcomes = [await receipt.settled() for receipt in receipts]
    assert {*outcomes} <= {Outcome.DELIVERED, Outcome.DUPLICATE}
    assert sorted(await table.looked()) == [(number, "w") for number in range(6000)]


async def test_a_right_that_is_missing_gives_no_row_up(
    postgres: SqlTable, mariadb: MariaDbServer
) -> None:
    """For the login and for the table, when the sink is opened and later; once permitted, the rows
    are stored. An update needs its privilege, too.
    """
    SqlTable(mariadb.url()).run(
        "CREATE DATABASE IF NOT EXISTS rights"
    )  # everyone may use the one named test
    other = SqlTable(mariadb.url("asyncmy", "rights"), mariadb.url(database="rights"))
    other.make()
    for statement in (
        "CREATE USER IF NOT EXISTS clerk IDENTIFIED BY 'c'",
        "GRANT SELECT ON rights.* TO clerk",
    ):
        other.run(statement)
    for statement in (
        "DROP OWNED BY clerk; DROP ROLE clerk" if _has_role(postgres) else "SELECT 1",
        "CREATE ROLE clerk LOGIN PASSWORD 'c'",
        "GRANT SELECT ON words TO clerk",
        "GRANT USAGE ON SEQUENCE words_nr_seq TO clerk",
    ):
        postgres.run(statement)
    for table, grant in (
        (postgres, "GRANT INSERT ON words TO clerk"),
        (other, "GRANT INSERT ON rights.words TO clerk"),
    ):
        for way in (table.url, str(table.engine.url.render_as_string(hide_password=False))):
            url = sa.make_url(way).set(username="clerk", password="c")
            own = url.render_as_string(hide_password=False)
            with pytest.raises(
                ConfigError, match=r"table='words'.*lacks a privilege.*; grant INSERT"
            ):
                await table.sink(url=own).__aenter__()
            table.run(grant)
            async with table.sink(url=own) as sink:
                table.run(grant.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))
                errors = await written(sink, [(1, "a"), (2, "b")])
                assert {*errors} == {0, 1}, url
                kinds = {classified(error, sink.classify) for error in errors.values()}
                assert kinds == {ErrorClass.REFUSED}, errors
        url = sa.make_url(table.url).set(username="clerk", password="c")
        table.run(grant)
        own = url.render_as_string(hide_password=False)
        update = {"on_conflict": "update", "conflict_columns": ["id"]}
        with pytest.raises(ConfigError, match="grant INSERT, UPDATE, SELECT on table"):
            await table.sink(url=own, **update).__aenter__()
        async with table.sink(url=own) as sink:
            assert await written(sink, [(1, "a"), (2, "b")]) == {}
        assert await table.looked() == [(1, "a"), (2, "b")]
    postgres.run("DROP OWNED BY clerk; DROP ROLE clerk")


def _has_role(table: SqlTable) -> bool:
    with table.engine.connect() as con:
        return (
            con.exec_driver_sql("SELECT 1 FROM pg_roles WHERE rolname = 'clerk'").first()
            is not None
        )


async def test_a_write_that_is_cancelled_waits_for_its_thread(mariadb: MariaDbServer) -> None:
    """It does not overtake the next write; its stored rows are found by the key."""
    table = SqlTable(mariadb.url("pymysql"), mariadb.url())
    table.make()
    with table.engine.connect() as con:
        con.exec_driver_sql("LOCK TABLES words WRITE")
        async with table.sink(close_timeout=5.0) as sink:
            batch = RowBatch([(1, "a")])
            write = asyncio.create_task(send(sink, batch))
            await CLOCK.sleep(0.2)
            write.cancel()
            await CLOCK.sleep(0.2)
            assert not write.done()
            await asyncio.to_thread(con.exec_driver_sql, "UNLOCK TABLES")
            await asyncio.wait([write], timeout=30.0)
            assert write.cancelled()
            assert await send(sink, batch) == {}
    assert await table.looked() == [(1, "a")]


async def test_a_cancelled_write_that_waits_for_a_thread_is_not_made(
    mariadb: MariaDbServer,
) -> None:
    """Otherwise it would run late and overtake its retry."""
    table = SqlTable(mariadb.url("pymysql"), mariadb.url())
    table.make()
    with table.engine.connect() as con:
        async with table.sink(pool_size=1, on_conflict="update") as sink:
            con.exec_driver_sql("LOCK TABLES words WRITE")
            first = asyncio.create_task(send(sink, RowBatch([(1, "a")])))
            second = asyncio.create_task(send(sink, RowBatch([(2, "late")])))
            await CLOCK.sleep(0.1)
            second.cancel()
            await asyncio.wait([second], timeout=30.0)
            assert second.cancelled()
            await asyncio.to_thread(con.exec_driver_sql, "UNLOCK TABLES")
            assert await first == {}
            assert await written(sink, [(3, "c")]) == {}
    assert await table.looked() == [(1, "a"), (3, "c")]
