"""`sluicegate dlq init`: a table for letters, or a refusal that names the differences.

White box: the columns and statements of the table.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.cli.dlq_help import Cli, keep, record

from sluicegate.letters.store import StoreError
from sluicegate.postgres import PostgresSink
from sluicegate.postgres.letters.store import prepare
from sluicegate.postgres.letters.table import COLUMNS, creation
from sluicegate.sinks import DeadLetterRecord

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate.testing import EmbeddedPostgres


class Database:
    """A database to prepare."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        async def run() -> list[tuple[Any, ...]]:
            con = await asyncpg.connect(self.dsn)
            try:
                return [tuple(row) for row in await con.fetch(statement)]
            finally:
                await con.close()

        return asyncio.run(run())

    def columns(self) -> list[tuple[Any, ...]]:
        return self.ask(
            "SELECT column_name::text, data_type::text, is_nullable::text, is_identity::text, "
            "column_default::text FROM information_schema.columns "
            "WHERE table_schema = 'public' AND table_name = 'dead_letters' ORDER BY 1"
        )

    def keep(self, *numbers: int, schema: str | None = None) -> None:
        sink = PostgresSink(
            self.dsn,
            table="dead_letters",
            schema=schema,
            columns=DeadLetterRecord.COLUMNS,
            row=DeadLetterRecord.as_row,
            on_conflict="ignore",
        )
        keep(sink, [record(number) for number in numbers])


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Cli(capsys)


@pytest.fixture
def database(embedded_postgres: EmbeddedPostgres) -> Database:
    made = Database(embedded_postgres.dsn)
    made.ask("DROP TABLE IF EXISTS dead_letters CASCADE")
    made.ask("DROP SCHEMA IF EXISTS audit CASCADE")
    return made


def test_it_creates_the_table_and_a_second_time_changes_nothing(
    cli: Cli, database: Database
) -> None:
    assert cli("init", database.dsn) == []
    assert cli.err == "created the table public.dead_letters\n"
    made = database.columns()
    assert {name for name, *_ in made} == {column.name for column in COLUMNS}
    database.keep(2, 1)
    cli("init", database.dsn)
    assert cli.err == "public.dead_letters is up to date already\n"
    assert database.columns() == made
    assert cli.keys(database.dsn) == [2, 1], "in the order of their arrival"


def test_every_field_of_a_record_has_its_column() -> None:
    assert {column.name for column in COLUMNS} >= set(DeadLetterRecord.COLUMNS)
    assert len({column.name for column in COLUMNS}) == len(COLUMNS)


@pytest.mark.parametrize(
    "arguments",
    [("--table", "audit.letters"), ("--table", "letters", "--schema", "audit")],
    ids=["in the table's name", "an argument"],
)
def test_the_schema_may_be_named(cli: Cli, database: Database, arguments: tuple[str, ...]) -> None:
    cli("init", database.dsn, *arguments, code=2)
    assert 'schema "audit" does not exist' in cli.err
    database.ask("CREATE SCHEMA audit")
    cli("init", database.dsn, *arguments)
    assert cli.err == "created the table audit.letters\n"
    assert cli.keys(database.dsn, *arguments) == []


def test_two_schemas_for_one_table_are_refused(cli: Cli, database: Database) -> None:
    cli("init", database.dsn, "--table", "audit.letters", "--schema", "public", code=2)
    assert "--table='audit.letters': must be a table without its schema" in cli.err


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(each.name, marks=() if each.name in {"state", "number"} else pytest.mark.long)
        for each in COLUMNS
        if each.is_addable
    ],
)
def test_a_missing_column_is_added_beside_its_letters(
    cli: Cli, database: Database, column: str
) -> None:
    database.ask(creation("dead_letters"))
    whole = database.columns()
    database.keep(1, 2)
    database.ask(f"ALTER TABLE dead_letters DROP COLUMN {column}")
    cli("list", database.dsn, code=2)
    assert "`sluicegate dlq init` adds the column" in cli.err
    cli("init", database.dsn)
    assert cli.err == f"added to public.dead_letters: {column}\n"
    assert database.columns() == whole
    assert sorted(cli.keys(database.dsn)) == [1, 2]
    database.keep(3)
    assert cli.keys(database.dsn)[-1] == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP COLUMN item", "there is no column item"),
        ("DROP COLUMN code", "there is no column code"),
        ("DROP CONSTRAINT dead_letters_pkey", "key has no primary key or unique constraint"),
        (
            "ALTER message TYPE varchar(80)",
            "message is of type character varying(80), not text",
        ),
        (
            "ALTER last_at TYPE timestamp",
            "last_at is of type timestamp without time zone, not timestamp with time zone",
        ),
        ("ALTER trace_id SET NOT NULL", "trace_id is NOT NULL, but a letter may have none"),
        ("ALTER state DROP DEFAULT", "state has no default"),
        ("ALTER number DROP IDENTITY", "number has no default"),
        (
            "ADD COLUMN owner text NOT NULL",
            '"owner" is NOT NULL without a default, and is not a field of a letter',
        ),
    ],
)
def test_a_table_of_something_else_stays_unchanged_and_the_message_says_what_differs(
    cli: Cli, database: Database, change: str, told: str
) -> None:
    database.ask(creation("dead_letters"))
    database.ask(f"ALTER TABLE dead_letters {change}, DROP COLUMN outcome")
    before = database.columns()
    cli("init", database.dsn, code=2)
    assert cli.err.startswith(
        "public.dead_letters exists, but is not a table of dead letters, and stays"
    )
    assert told in cli.err
    assert database.columns() == before, "nor is the missing column added"


def test_a_column_of_the_owner_and_jsonb_are_no_differences(cli: Cli, database: Database) -> None:
    database.ask(creation("dead_letters"))
    database.ask(
        "ALTER TABLE dead_letters ADD COLUMN at timestamptz NOT NULL DEFAULT now(), "
        "ADD COLUMN note text, ALTER item TYPE jsonb, ALTER attempts TYPE bigint"
    )
    cli("init", database.dsn)
    assert cli.err == "public.dead_letters is up to date already\n"
    database.keep(1)
    assert cli.letters(database.dsn)[0]["item"] == {"n": 1}


def test_a_view_is_no_table(cli: Cli, database: Database) -> None:
    database.ask("CREATE VIEW dead_letters AS SELECT 1 AS key")
    try:
        cli("init", database.dsn, code=2)
        assert "it is not a table" in cli.err
    finally:
        database.ask("DROP VIEW dead_letters")


def test_a_dry_run_prints_the_statements_and_changes_nothing(cli: Cli, database: Database) -> None:
    printed = cli("init", database.dsn, "--dry-run")
    assert cli.err == 'would create the table "dead_letters"\n'
    assert database.columns() == []
    database.ask("\n".join(printed))
    assert cli("init", database.dsn, "--dry-run") == []
    database.ask("ALTER TABLE dead_letters DROP COLUMN replay")
    assert cli("init", database.dsn, "--dry-run") == [
        "ALTER TABLE public.dead_letters ADD COLUMN replay text;"
    ]


def test_two_at_once_create_it_once(database: Database) -> None:
    with ThreadPoolExecutor() as threads:
        made = threads.map(
            lambda _: asyncio.run(prepare(database.dsn, "dead_letters", None)), range(4)
        )
        assert sorted(each.is_new for each in made) == [False, False, False, True]


def test_a_table_in_use_for_long_is_not_waited_for(database: Database) -> None:
    """Waiting for the lock blocks every later write, so the wait is short."""
    database.ask(creation("dead_letters"))
    database.ask("ALTER TABLE dead_letters DROP COLUMN replay")

    async def blocked() -> str:
        con = await asyncpg.connect(database.dsn)
        try:
            async with con.transaction():
                await con.execute("SELECT * FROM dead_letters")
                with pytest.raises(StoreError) as caught:
                    await prepare(
                        f"{database.dsn}{separator}lock_timeout=100ms", "dead_letters", None
                    )
                return str(caught.value)
        finally:
            await con.close()

    separator = "&" if "?" in database.dsn else "?"
    assert "lock timeout" in asyncio.run(blocked())


def test_a_file_needs_no_preparation(cli: Cli, tmp_path: Path) -> None:
    cli("init", str(tmp_path / "dead.jsonl"))
    assert cli.err.endswith(
        "dead.jsonl: nothing to do, FileSink creates a file of dead letters itself\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_table_tells_which_there_are(cli: Cli, database: Database) -> None:
    database.ask("DROP TABLE IF EXISTS letters_of_audit")
    cli("list", database.dsn, code=2)
    assert "`sluicegate dlq init` creates it" in cli.err
    database.ask(creation("letters_of_audit"))
    try:
        cli("list", database.dsn, code=2)
        assert "tables of dead letters in this database: letters_of_audit" in cli.err
    finally:
        database.ask("DROP TABLE letters_of_audit")
