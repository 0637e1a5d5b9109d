"""`sluicegate dlq init`: a table for letters, or a refusal of another table.

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
    assert cli.err == "created the table dead_letters\n"
    made = database.columns()
    assert {name for name, *_ in made} == {*COLUMNS}
    database.keep(2, 1)
    cli("init", database.dsn)
    assert cli.err == "the table exists already\n"
    assert database.columns() == made
    assert cli.keys(database.dsn) == [2, 1], "in the order of their arrival"


def test_every_field_of_a_record_has_its_column() -> None:
    assert {*COLUMNS} >= set(DeadLetterRecord.COLUMNS)


def test_the_schema_is_an_argument(cli: Cli, database: Database) -> None:
    arguments = ("--table", "letters", "--schema", "audit")
    cli("init", database.dsn, *arguments, code=2)
    assert 'schema "audit" does not exist' in cli.err
    database.ask("CREATE SCHEMA audit")
    cli("init", database.dsn, *arguments)
    assert cli.err == "created the table letters\n"
    assert cli.keys(database.dsn, *arguments) == []
    cli("init", database.dsn, "--table", "audit.letters", code=2)
    assert "--table='audit.letters': must be a name without its schema" in cli.err


def test_a_table_of_something_else_is_refused(cli: Cli, database: Database) -> None:
    database.ask(creation("dead_letters"))
    database.ask("ALTER TABLE dead_letters DROP COLUMN item")
    before = database.columns()
    cli("init", database.dsn, code=2)
    assert "UndefinedColumnError" in cli.err or "item" in cli.err
    assert database.columns() == before


def test_a_column_of_the_owner_and_jsonb_are_no_differences(cli: Cli, database: Database) -> None:
    database.ask(creation("dead_letters"))
    database.ask(
        "ALTER TABLE dead_letters ADD COLUMN at timestamptz NOT NULL DEFAULT now(), "
        "ADD COLUMN note text, ALTER item TYPE jsonb, ALTER attempts TYPE bigint"
    )
    cli("init", database.dsn)
    assert cli.err == "the table exists already\n"
    database.keep(1)
    assert cli.letters(database.dsn)[0]["item"] == {"n": 1}


def test_a_dry_run_prints_the_statements_and_changes_nothing(cli: Cli, database: Database) -> None:
    printed = cli("init", database.dsn, "--dry-run")
    assert cli.err == "would create the table dead_letters\n"
    assert database.columns() == []
    database.ask("\n".join(printed))
    assert cli("init", database.dsn, "--dry-run") == []


def test_two_at_once_create_it_once(database: Database) -> None:
    with ThreadPoolExecutor() as threads:
        made = threads.map(
            lambda _: asyncio.run(prepare(database.dsn, "dead_letters", None)), range(4)
        )
        assert sorted(each is not None for each in made) == [False, False, False, True]


def test_a_file_needs_no_preparation(cli: Cli, tmp_path: Path) -> None:
    cli("init", str(tmp_path / "dead.jsonl"))
    assert cli.err.endswith(
        "dead.jsonl: nothing to do, FileSink creates a file of dead letters itself\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_table_is_told_with_the_command_that_creates_it(
    cli: Cli, database: Database
) -> None:
    cli("list", database.dsn, code=2)
    assert "`sluicegate dlq init` creates it" in cli.err
