"""Every kind of item is accepted by every sink, as a letter once refused, and by a replay."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.cli.dlq_help import Cli, module
from tests.http.http_help import batch_of, reply, serving
from tests.letters.item_kinds import KINDS, WITHOUT_FORM, documents, items, rows

from sluicegate import Batcher, DeadLetter, Limits, PermanentError, send, stack
from sluicegate.files import FileSink
from sluicegate.http import HttpSink
from sluicegate.postgres import PostgresSink
from sluicegate.sinks import DeadLetterRecord

if TYPE_CHECKING:
    from pathlib import Path

    from sluicegate import Sink
    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

COLUMNS = ("id", "word", "detail")
DDL = "CREATE TABLE things (id int PRIMARY KEY, word text CHECK (word <> 'bad'), detail jsonb)"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Cli(capsys)


def ask(dsn: str, *statements: str) -> list[tuple[Any, ...]]:
    async def run() -> list[tuple[Any, ...]]:
        con = await asyncpg.connect(dsn)
        try:
            for statement in statements[:-1]:
                await con.execute(statement)
            return [tuple(row) for row in await con.fetch(statements[-1])]
        finally:
            await con.close()

    return asyncio.run(run())


def stored(dsn: str) -> list[tuple[int, str, Any]]:
    found = ask(dsn, "SELECT * FROM things ORDER BY 1")
    return [(number, word, json.loads(detail)) for number, word, detail in found]


async def test_a_file_and_a_server_get_the_same_json_of_every_kind(
    tmp_path: Path, real_clock: LoopClock
) -> None:
    """An object of a plain class has no JSON form and fails alone."""
    path = tmp_path / "items.jsonl"
    refused = [number for number, kind in enumerate(KINDS) if kind in WITHOUT_FORM]
    async with serving() as server, HttpSink(f"{server.url}/bulk") as http, FileSink(path) as file:
        for sink in (http, file):
            errors = await send(sink, batch_of(items()))
            assert sorted(errors) == refused
            assert all(isinstance(error, PermanentError) for error in errors.values())
        (request,) = server.requests
        assert request.items == [*documents().values()]
    assert [json.loads(line) for line in path.read_text().splitlines()] == request.items


@pytest.mark.parametrize("kept_in", ["file", "table"])
def test_a_refused_item_of_every_kind_becomes_a_letter_and_the_same_row_by_a_replay(
    cli: Cli, tmp_path: Path, embedded_postgres: EmbeddedPostgres, kept_in: str
) -> None:
    dsn = embedded_postgres.dsn
    ask(dsn, "DROP TABLE IF EXISTS things, dead_letters", DDL, "SELECT 1")
    place, target = dead_letters(cli, tmp_path, dsn, kept_in)
    things = PostgresSink(dsn, table="things", columns=COLUMNS)
    assert asyncio.run(outcomes(stack(things, DeadLetter(target)), items("bad"))) == {
        "dead_lettered"
    }
    assert stored(dsn) == []
    selected = ("--error-type", "CheckViolationError", "--code", "23514")
    assert len(cli("list", place, *selected)) == len(KINDS)
    assert cli("list", place, "--error-type", "CheckViolationError", "--code", "23502") == []
    assert {letter["item_form"] for letter in cli.letters(place)} == {"plain"}
    ask(dsn, "ALTER TABLE things DROP CONSTRAINT things_word_check", "SELECT 1")
    module(
        tmp_path,
        f"to_{kept_in}",
        "from sluicegate.postgres import PostgresSink\n"
        f"sink = PostgresSink({dsn!r}, table='things', columns={COLUMNS})",
    )
    cli("replay", place, "--to", f"to_{kept_in}:sink", *selected)
    assert cli.err == f"replayed: {len(KINDS)} delivered\n"
    replayed = stored(dsn)
    assert replayed == rows("bad")
    ask(dsn, "TRUNCATE things", "SELECT 1")
    assert asyncio.run(outcomes(things, items("bad"))) == {"delivered"}
    assert replayed == stored(dsn)


def dead_letters(cli: Cli, folder: Path, dsn: str, kept_in: str) -> tuple[str, Sink[Any]]:
    """A store of letters for the command, and the sink that fills it."""
    if kept_in == "file":
        return str(folder / "dead.jsonl"), FileSink(folder / "dead.jsonl")
    cli("init", dsn)
    return dsn, PostgresSink(
        dsn,
        table="dead_letters",
        columns=DeadLetterRecord.COLUMNS,
        row=DeadLetterRecord.as_row,
        on_conflict="ignore",
    )


async def outcomes(sink: Sink[Any], given: list[Any]) -> set[str]:
    async with Batcher(sink, limits=Limits(max_items=len(given))) as batcher:
        receipts = [await batcher.submit(item) for item in given]
        await batcher.flush()
        return {receipt.outcome.value for receipt in receipts if receipt.outcome}


def test_an_item_refused_by_a_server_becomes_a_letter_with_the_status(
    cli: Cli, tmp_path: Path
) -> None:
    path = tmp_path / "dead.jsonl"

    async def bury() -> None:
        async with serving() as server:
            server.steps.extend([reply(422)] * len(KINDS))
            sink = stack(HttpSink(f"{server.url}/items"), DeadLetter(FileSink(path)))
            async with Batcher(sink, limits=Limits(max_items=1)) as batcher:
                await batcher.add_many(items())

    asyncio.run(bury())
    letters = cli.letters(str(path), "--code", "422", "--error-type", "HttpStatusError")
    given = [letter["item"] for letter in letters]
    assert [*documents().values()] == [item for item in given if item in documents().values()]
    assert len(cli.letters(str(path))) == len(KINDS)
    without_form = cli.letters(str(path), "--error-type", "TypeError")
    assert len(without_form) == len(WITHOUT_FORM)
    assert {(letter["code"], letter["item"]["word"]) for letter in without_form} == {("", "good")}
