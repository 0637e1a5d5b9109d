"""The horizon of readers: messages behind it never change, in any order of commits.

Each scenario also runs with a planted fault, and must detect it (long).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.postgres.streams import horizon_help as planted
from tests.postgres.streams.horizon_help import (
    GapReader,
    OneStatementReader,
    Reader,
    TransactionIdReader,
    faults,
    scene,
)
from tests.postgres.streams.log_help import Log, fresh_name, install_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.postgres.streams.horizon_help import Scene

    from sluicegate.batcher import LoopClock

MANY = 20_000


async def by_function(scene: Scene, con: Any) -> None:
    await scene.append(con)


async def by_insert(scene: Scene, con: Any) -> None:
    await con.execute(
        f"INSERT INTO {scene.log.sql}.message {planted.MESSAGE} VALUES ('s-insert', 0, 't', '1')"
    )


async def by_copy(scene: Scene, con: Any, count: int = 3) -> None:
    await con.copy_records_to_table(
        "message",
        schema_name=scene.log.schema,
        columns=("stream", "version", "type", "data"),
        records=[("s-copy", version, "t", json.dumps(version)) for version in range(count)],
    )


@pytest.mark.parametrize("append", [by_function, by_insert, by_copy])
@pytest.mark.parametrize(
    "bug",
    faults(
        planted.NO_MARK,
        planted.DEFAULT_WITHOUT_MARK,
        planted.MARK_OF_FRESH_SEQUENCE,
        planted.HORIZON_WITHOUT_MARKS,
    ),
    ids=["as installed", "no mark", "default without mark", "fresh sequence", "no horizon"],
)
async def test_a_position_that_commits_late_is_delivered(
    log: Log,
    real_clock: LoopClock,
    bug: str | None,
    append: Callable[[Scene, Any], Awaitable[None]],
) -> None:
    """S-T1, S18: the first transaction has the lower positions, including the first one of the log,
    and commits last, however it appends.
    """
    async with scene(log, bug) as here:
        open_one = here.first.transaction()
        await open_one.start()
        await append(here, here.first)
        await here.append(here.second)
        await here.reader.read()
        await open_one.commit()
        assert bool(await here.lost()) == (bug is not None)


@pytest.mark.parametrize("reader", [Reader, TransactionIdReader])
async def test_ids_of_transactions_and_positions_may_cross(
    log: Log, real_clock: LoopClock, reader: type[Reader]
) -> None:
    """S-T1, S18: the older transaction has the later position. A reader that relies on transaction
    ids and resumes by position loses the earlier one.
    """
    async with scene(log, reader=reader) as here:
        older = here.first.transaction()
        await older.start()
        await here.first.execute("SELECT pg_current_xact_id()")
        younger = here.second.transaction()
        await younger.start()
        await here.append(here.second)
        await here.append(here.first)
        await older.commit()
        await here.reader.read()
        await younger.commit()
        assert bool(await here.lost()) == (reader is TransactionIdReader)


@pytest.mark.parametrize("reader", [Reader, TransactionIdReader])
async def test_foreign_transactions_hold_up_no_reader(
    log: Log, real_clock: LoopClock, reader: type[Reader]
) -> None:
    """S18: a transaction in another database and one in another table of this database are open. A
    reader that waits for every older transaction would wait for them.
    """
    database = f"beside_{log.schema}"
    async with scene(log, reader=reader) as here:
        await here.operator.execute(f"CREATE DATABASE {database}")
        elsewhere = await asyncpg.connect(urlunsplit(urlsplit(log.dsn)._replace(path=database)))
        for con in (elsewhere, here.second):
            await con.execute(
                "BEGIN; CREATE TEMP TABLE other (x int); INSERT INTO other VALUES (1)"
            )
        await here.append(here.first)
        await here.reader.read()
        assert bool(here.reader.delivered) == (reader is Reader)
        await elsewhere.close()
        await here.operator.execute(f"DROP DATABASE {database}")


@pytest.mark.parametrize("reader", [Reader, GapReader])
async def test_a_rollback_leaves_a_gap_that_readers_pass(
    log: Log, real_clock: LoopClock, reader: type[Reader]
) -> None:
    """S18: a reader that waits for gaps to be filled would wait forever."""
    async with scene(log, reader=reader) as here:
        given_up = here.first.transaction()
        await given_up.start()
        await here.append(here.first, count=2)
        appended = await here.append(here.second)
        await here.reader.read()
        assert here.reader.delivered == []
        await given_up.rollback()
        await here.reader.read()
        assert here.reader.delivered == (appended if reader is Reader else [])


@pytest.mark.parametrize("bug", faults(planted.NOTE_OF_SESSION))
@pytest.mark.parametrize("end", ["COMMIT; BEGIN", "COMMIT AND CHAIN"])
async def test_each_transaction_of_a_connection_takes_the_mark(
    log: Log, real_clock: LoopClock, end: str, bug: str | None
) -> None:
    """S18: if the note of the mark outlived its transaction, the next one would have no mark."""
    async with scene(log, bug) as here:
        await here.first.execute("BEGIN")
        await here.append(here.first)
        await here.first.execute(end)
        await here.append(here.first)
        await here.append(here.second)
        await here.reader.read()
        await here.first.execute("COMMIT")
        assert bool(await here.lost()) == (bug is not None)


@pytest.mark.parametrize("bug", faults(planted.NOTE_BEYOND_SAVEPOINT))
async def test_a_rollback_to_a_savepoint_gives_the_mark_back_and_the_note_of_it(
    log: Log, real_clock: LoopClock, bug: str | None
) -> None:
    """S18: the rollback releases the lock, so the next position needs a new one."""
    async with scene(log, bug) as here:
        await here.first.execute("BEGIN; SAVEPOINT before")
        await here.append(here.first)
        await here.first.execute("ROLLBACK TO SAVEPOINT before")
        assert await here.marks() == []
        await here.append(here.first)
        await here.append(here.second)
        await here.reader.read()
        await here.first.execute("COMMIT")
        assert bool(await here.lost()) == (bug is not None)


@pytest.mark.parametrize("bug", faults(planted.MARK_AFTER_POSITION))
async def test_the_mark_is_taken_before_the_position(
    log: Log, real_clock: LoopClock, bug: str | None
) -> None:
    """S18: another transaction commits, and readers read, between the two steps."""
    async with scene(log, bug) as here:
        if bug is None:
            await here.gated("next_position", "RETURN nextval(")
        async with here.at_gate(here.first, here.append(here.first)) as appended:
            await here.append(here.second)
            await here.reader.read()
        await appended
        assert bool(await here.lost()) == (bug is not None)


@pytest.mark.parametrize("bug", faults(planted.HORIZON_MARKS_FIRST))
async def test_the_last_position_is_read_before_the_marks(
    log: Log, real_clock: LoopClock, bug: str | None
) -> None:
    """S18: a transaction takes a mark and a position between the two steps of the horizon."""
    async with scene(log, bug) as here:
        if bug is None:
            await here.gated("horizon", "SELECT min(mark)")
        async with here.at_gate(here.reader.con, here.reader.read()) as read:
            await here.first.execute("BEGIN")
            await here.append(here.first)
        await read
        await here.first.execute("COMMIT")
        await here.append(here.second)
        assert bool(await here.lost()) == (bug is not None)


@pytest.mark.parametrize("reader", [Reader, OneStatementReader])
async def test_messages_are_read_in_a_later_statement_than_the_horizon(
    log: Log, real_clock: LoopClock, reader: type[Reader]
) -> None:
    """S18: a transaction commits while the statement runs, before it reads the horizon. In the
    statement's snapshot the mark is gone but the message is not visible.
    """
    async with scene(log, reader=reader) as here:
        await here.gated("horizon", "SELECT last_value")
        await here.first.execute("BEGIN")
        await here.append(here.first)
        async with here.at_gate(here.reader.con, here.reader.read()) as read:
            await here.first.execute("COMMIT")
        await read
        assert bool(await here.lost()) == (reader is OneStatementReader)


@pytest.mark.parametrize("level", ["repeatable_read", "serializable"])
@pytest.mark.parametrize("bug", faults(planted.HORIZON_ANYWHERE))
async def test_an_old_snapshot_is_refused(
    log: Log, real_clock: LoopClock, bug: str | None, level: str
) -> None:
    """S18: at these levels every statement uses the snapshot of the first one, which may be older
    than the horizon. Without the check a message is lost.
    """
    async with scene(log, bug) as here:
        async with here.reader.con.transaction(isolation=level):
            await here.reader.con.fetch("SELECT 1")
            await here.append(here.first)
            if bug is None:
                with pytest.raises(asyncpg.PostgresError, match="READ COMMITTED") as refused:
                    await here.reader.con.fetch(f"SELECT {log.sql}.horizon()")
                assert refused.value.sqlstate == "PS004"
                return
            await here.reader.read()
        assert await here.lost()


@pytest.mark.parametrize("bug", faults(planted.MARK_PER_POSITION))
async def test_a_large_copy_takes_one_lock(
    log: Log, real_clock: LoopClock, bug: str | None
) -> None:
    """S18: one mark per position would overflow the server's lock table."""
    async with scene(log, bug) as here:
        await here.first.execute("BEGIN")
        if bug is not None:
            with pytest.raises(asyncpg.OutOfMemoryError):
                await by_copy(here, here.first, MANY)
            return
        await by_copy(here, here.first, MANY)
        assert await here.marks() == [0]
        await here.first.execute("COMMIT")
        assert await here.reader.read() == MANY
        assert len(here.reader.delivered) == MANY


async def test_appends_of_one_transaction_share_a_mark(log: Log, real_clock: LoopClock) -> None:
    """S18: the lowest position of the transaction decides."""
    async with scene(log) as here:
        await here.append(here.second)
        await here.first.execute("BEGIN")
        for number in range(3):
            await here.append(here.first, stream=f"s-{number}", count=2)
        assert await here.marks() == [1]
        assert await here.reader.read() == 1


@pytest.mark.parametrize("bug", faults(planted.MARKS_OF_ANY_LOG))
async def test_a_mark_of_another_log_holds_up_no_reader(
    log: Log, real_clock: LoopClock, bug: str | None
) -> None:
    """S18: each log of a database has its own class."""
    other = Log(log.dsn, fresh_name())
    await install_log(other)
    async with scene(log, bug) as here, other.connected() as con, con.transaction():
        await other.append(con, "s-1", 1)
        await here.append(here.first)
        await here.reader.read()
        assert bool(here.reader.delivered) == (bug is None)
