"""Other users of PostgreSQL through a PgBouncer in transaction mode: transactions with their
ledger, stages, and the store of dead letters.

White box: the stages of a sink, which only Spark uses.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.cli.dlq_help import Cli, keep, module, process, record
from tests.postgres.pooler.crowd import crowd, crowd_beside
from tests.postgres.sink.postgres_help import batch_of, database

from sluicegate import send, transaction
from sluicegate._core.staging import Epoch, stages_of
from sluicegate.cli import main
from sluicegate.postgres import PostgresSink
from sluicegate.sinks import Counts, DeadLetterRecord, Unit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

CHECKED = "id int PRIMARY KEY, word text CHECK (word <> 'bad')"


async def test_units_are_committed_once_however_often_they_are_tried(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    async with database(embedded_postgres.dsn, CHECKED) as db, crowd(bouncer.dsn):
        ledger = f"{db.table}_ledger"
        async with db.sink(dsn=bouncer.dsn, ledger=ledger, statement_timeout=20.0) as sink:

            async def attempt(version: int) -> bool:
                unit = Unit(application="pooler", version=version)
                async with transaction(sink, unit) as within:
                    is_replay = within.committed is not None
                    rows = [(version * 100 + n, "bad" if n == 7 else "x") for n in range(80)]
                    errors = await send(within, batch_of(rows))
                    assert set(errors) == (set() if is_replay else {7})
                return is_replay

            replays = await asyncio.gather(*(attempt(number % 10) for number in range(30)))
            assert sum(replays) == 20
            assert await db.con.fetchval(f"SELECT count(*) FROM {ledger}") == 10
        assert len(await db.rows()) == 10 * 79


@pytest.mark.parametrize("overwrite", [False, True])
async def test_stages_are_published_at_once(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock, overwrite: bool
) -> None:
    """A stage is a normal table, not a temporary one: no session owns it."""
    async with database(embedded_postgres.dsn, CHECKED) as db, crowd(bouncer.dsn):
        await db.con.execute(f"INSERT INTO {db.table} VALUES (-1, 'before')")
        epoch = Epoch(unit=Unit(application=db.table, version=1), overwrite=overwrite)
        async with db.sink(dsn=bouncer.dsn, ledger=f"{db.table}_ledger") as sink:
            begun = await stages_of(sink).begin(epoch)

            async def stage(start: int) -> Any:
                async with stages_of(sink).stage(epoch) as opened:
                    rows = [(start + n, "bad" if n == 5 else "x") for n in range(200)]
                    assert set(await send(opened.sink, batch_of(rows))) == {5}
                    return await opened.inventory()

            stages = await asyncio.gather(*(stage(start) for start in (0, 1000, 2000)))
            assert len(await db.rows()) == 1
            counts = Counts(rows=597, delivered=597)
            assert await stages_of(sink).publish(epoch, stages, counts, begun.mark) is None
            assert await stages_of(sink).publish(epoch, stages, counts, begun.mark) is not None
        assert len(await db.rows()) == 597 + (not overwrite)


# -- dead letters ----------------------------------------------------------------------------------


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "accepts.py").write_text("async def sink(batch):\n    pass\n")
    return Cli(capsys)


@pytest.fixture
def letters(embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer) -> str:
    asyncio.run(_execute(embedded_postgres.dsn, "DROP TABLE IF EXISTS dead_letters"))
    assert main(["dlq", "init", bouncer.dsn]) == 0
    sink = PostgresSink(
        bouncer.dsn,
        table="dead_letters",
        columns=DeadLetterRecord.COLUMNS,
        row=DeadLetterRecord.as_row,
        on_conflict="ignore",
    )
    keep(sink, [record(number) for number in range(700)])
    return bouncer.dsn


async def _execute(dsn: str, statement: str) -> None:
    con = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        await con.execute(statement)
    finally:
        await con.close()


def test_letters_are_listed_and_replayed(
    cli: Cli, letters: str, bouncer: PgBouncer, tmp_path: Path
) -> None:
    with crowd_beside(bouncer.dsn):
        assert cli.keys(letters) == list(range(700))
        cli("replay", letters, "--to", "accepts:sink")
        assert cli.keys(letters) == []


def test_one_replay_at_a_time_holds_its_lock_across_transactions(
    cli: Cli, letters: str, bouncer: PgBouncer, tmp_path: Path, embedded_postgres: EmbeddedPostgres
) -> None:
    """A session lock would stay in a server that the next client gets, or be lost."""
    module(
        tmp_path,
        "hangs",
        "import asyncio\nasync def sink(batch):\n    print('inside', flush=True)\n    await "
        "asyncio.Event().wait()",
    )
    with crowd_beside(bouncer.dsn):
        with process(tmp_path, "replay", letters, "--to", "hangs:sink") as running:
            assert running.stdout is not None
            assert running.stdout.readline()
            cli("replay", letters, "--to", "accepts:sink", code=2)
            assert "another replay" in cli.err
            running.kill()
            running.communicate()
        lock = "(hashtext('sluicegate dlq'), 'dead_letters'::regclass::oid::int)"
        waits = f"SELECT pg_advisory_lock{lock}; SELECT pg_advisory_unlock{lock}"
        asyncio.run(_execute(embedded_postgres.dsn, waits))  # the server notices the kill later
        cli("replay", letters, "--to", "accepts:sink")
    assert cli.keys(letters) == []


def test_a_replay_that_loses_its_lock_writes_no_more_notes(
    cli: Cli, letters: str, bouncer: PgBouncer, tmp_path: Path, embedded_postgres: EmbeddedPostgres
) -> None:
    module(
        tmp_path,
        "cuts",
        f"""
import asyncpg
async def sink(batch):
    con = await asyncpg.connect({embedded_postgres.dsn!r})
    kill = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
    assert await con.fetch(kill)
    await con.close()
""",
    )
    cli("replay", letters, "--to", "cuts:sink", code=2)
    cli("replay", letters, "--to", "accepts:sink")
    assert cli.keys(letters) == []
