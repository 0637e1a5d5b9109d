"""Dead letters in a table: written by the sink, viewed, replayed into another table exactly once,
and removed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.cli.dlq_help import Cli, keep, module, process, record

from sluicegate import (
    Batcher,
    Consumer,
    DeadLetter,
    Limits,
    Message,
    PermanentError,
    WriteResult,
    stack,
)
from sluicegate.cli import main
from sluicegate.consumer import Commits, MemoryLog, MemorySource, Poison, PoisonError, Record
from sluicegate.postgres import PostgresSink
from sluicegate.sinks import DeadLetterRecord

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sluicegate import Batch
    from sluicegate.testing import EmbeddedPostgres


class Letters:
    """A database with a table of dead letters and their destination table."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; return the rows of the last one."""

        async def run() -> list[tuple[Any, ...]]:
            con = await asyncpg.connect(self.dsn)
            try:
                for statement in statements[:-1]:
                    await con.execute(statement)
                return [tuple(row) for row in await con.fetch(statements[-1])]
            finally:
                await con.close()

        return asyncio.run(run())

    def sink(self) -> PostgresSink:
        return PostgresSink(
            self.dsn,
            table="dead_letters",
            columns=DeadLetterRecord.COLUMNS,
            row=DeadLetterRecord.as_row,
            on_conflict="ignore",
        )

    def keep(self, records: Iterable[DeadLetterRecord[Any]]) -> None:
        keep(self.sink(), records)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return Cli(capsys)


@pytest.fixture
def letters(embedded_postgres: EmbeddedPostgres) -> Letters:
    made = Letters(embedded_postgres.dsn)
    made.ask(
        "DROP TABLE IF EXISTS dead_letters, events",
        "CREATE TABLE events (n int PRIMARY KEY, word text)",
        "SELECT 1",
    )
    assert main(["dlq", "init", made.dsn]) == 0
    return made


def test_what_a_batcher_buries_in_a_table_can_be_read_back(cli: Cli, letters: Letters) -> None:
    """B-T19, batcher/4a.7: including the poisoned ones whose fault is a character that a table
    cannot store.
    """

    async def refuse(batch: Batch[Any]) -> WriteResult:
        return WriteResult.failed(
            batch, {index: PermanentError(f"bad \0 {item!r}") for index, item in enumerate(batch)}
        )

    async def bury() -> None:
        async with Batcher(
            stack(refuse, DeadLetter(letters.sink())), name="audit", limits=Limits(max_items=2)
        ) as batcher:
            await batcher.add_many(["a\0b", {"k": [1, None]}, ("x", 2.5)])

    asyncio.run(bury())
    found = cli.letters(letters.dsn)
    assert len(found) == 3
    assert all(
        item in [letter["item"] for letter in found]
        for item in ("a\0b", ["x", 2.5], {"k": [1, None]})
    )
    assert {(letter["batcher"], letter["attempts"], letter["state"]) for letter in found} == {
        ("audit", 1, "pending")
    }
    assert all("bad \\x00" in letter["message"] for letter in found)


def test_letters_are_chosen_as_in_a_file(cli: Cli, letters: Letters) -> None:
    letters.keep(record(number, tenant={"of": number % 2}, trace_id="t") for number in range(1200))
    assert cli.keys(letters.dsn) == list(range(1200))
    assert cli.keys(letters.dsn, "--since", "2026-01-31T12:05", "--until", "2026-01-31T12:08") == [
        5,
        6,
        7,
    ]
    assert cli.keys(letters.dsn, "--letter", "key-000", "--limit", "4") == [0, 1, 2, 3]
    assert cli.letters(letters.dsn, "--limit", "1")[0]["tenant"] == {"of": 0}
    letters.ask(
        "UPDATE dead_letters SET state = 'interrupted' WHERE key IN ('key-0700', 'key-0800')",
        "SELECT 1",
    )
    assert cli.keys(letters.dsn, "--limit", "4") == [700, 800, 0, 1], "interrupted ones come first"


@pytest.mark.long
def test_a_replay_into_a_table_is_exactly_once_though_it_is_killed_anywhere(
    cli: Cli, letters: Letters, tmp_path: Path
) -> None:
    """batcher/4b.11: if it is killed after rows are stored but before this is recorded, they are
    found there and reported as duplicates.
    """
    letters.keep(record(number) for number in range(40))
    module(
        tmp_path,
        "into_events",
        f"""
import os, signal
from sluicegate import send, stack
from sluicegate.cli import main
from sluicegate.postgres import PostgresSink
dsn = {letters.dsn!r}

class Fragile:
    def __init__(self, inner): self.inner = inner
    async def __aenter__(self): await self.inner.__aenter__()
    async def __aexit__(self, *error): await self.inner.__aexit__(*error)
    async def write(self, batch):
        answer = await self.inner.write(batch)
        if batch[0]["n"] == int(os.environ.get("KILL_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

sink = Fragile(PostgresSink(dsn, table="events", columns=("n", "word"), row=lambda item: (item["n"], "again")))
""",
    )
    for at in (0, 10, 20):
        os.environ["KILL_AT"] = str(at)
        try:
            with process(
                tmp_path, "replay", letters.dsn, "--to", "into_events:sink", "--batch-size", "10"
            ) as killed:
                killed.communicate()
        finally:
            del os.environ["KILL_AT"]
        assert killed.returncode == -signal.SIGKILL
    cli("replay", letters.dsn, "--to", "into_events:sink", "--batch-size", "10")
    assert "10 delivered, 10 duplicate" in cli.err
    assert letters.ask("SELECT n, word FROM events ORDER BY n") == [
        (number, "again") for number in range(40)
    ]
    assert cli.keys(letters.dsn) == []
    assert letters.ask("SELECT outcome, count(*) FROM dead_letters GROUP BY 1 ORDER BY 1") == [
        ("delivered", 10),
        ("duplicate", 30),
    ]


def test_what_fails_again_keeps_its_attempts_and_tells_its_new_error(
    cli: Cli, letters: Letters, tmp_path: Path
) -> None:
    letters.keep(record(number) for number in range(3))
    module(
        tmp_path,
        "into_checked",
        f"""
from sluicegate.cli import main
from sluicegate.postgres import PostgresSink
sink = PostgresSink({letters.dsn!r}, table="events", columns=("n", "word"), row=lambda item: (item["n"], "x\\0" if item["n"] == 1 else "x"))
""",
    )
    cli("replay", letters.dsn, "--to", "into_checked:sink", code=1)
    assert cli.err == (
        "replayed: 2 delivered, 1 rejected\n"
        "1 rejected: PermanentError: CharacterNotInRepertoireError, SQLSTATE 22021\n"
    )
    (left,) = cli.letters(letters.dsn)
    assert (left["key"], left["attempts"], left["state"], left["outcome"]) == (
        "key-0001",
        4,
        "pending",
        "rejected",
    )
    assert "0x00" in left["message"]


def test_one_replay_at_a_time_and_purging_is_one_too(
    cli: Cli, letters: Letters, tmp_path: Path
) -> None:
    letters.keep(record(number) for number in range(3))
    module(
        tmp_path,
        "hangs",
        "import asyncio\nasync def sink(batch):\n    print('inside', flush=True)\n    await "
        "asyncio.Event().wait()",
    )
    with process(tmp_path, "replay", letters.dsn, "--to", "hangs:sink") as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        cli("replay", letters.dsn, "--to", "hangs:sink", code=2)
        assert "another replay" in cli.err
        cli("purge", letters.dsn, "--state", "all", "--yes", code=2)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate()
    assert "3 unknown" in said
    assert cli.keys(letters.dsn, "--state", "interrupted") == [0, 1, 2]


def test_purging_removes_what_is_meant(cli: Cli, letters: Letters) -> None:
    letters.keep(record(number) for number in range(1100))
    letters.ask("UPDATE dead_letters SET state = 'replayed' WHERE key < 'key-0600'", "SELECT 1")
    cli("purge", letters.dsn)
    assert cli.err == "removed 600 dead letters\n"
    cli("purge", letters.dsn, "--state", "pending", "--letter", "key-10", "--yes")
    assert cli.keys(letters.dsn, "--state", "all") == list(range(600, 1000))


def test_a_store_that_is_lost_on_the_way_is_told_and_the_next_run_goes_on(
    cli: Cli, letters: Letters, tmp_path: Path
) -> None:
    """The server ends the session of the store while a batch is at its destination."""
    letters.keep(record(number) for number in range(3))
    module(
        tmp_path,
        "cuts",
        f"""
import asyncpg
async def sink(batch):
    con = await asyncpg.connect({letters.dsn!r})
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'UPDATE%dead_letters%' AND pid <> pg_backend_pid()"
    assert batch.maybe_applied or await con.fetch(kill)
    await con.close()
""",
    )
    cli("replay", letters.dsn, "--to", "cuts:sink", code=2)
    assert '"dead_letters" at 127.0.0.1' in cli.err
    assert cli.keys(letters.dsn, "--state", "interrupted") == [0, 1, 2]
    cli("replay", letters.dsn, "--to", "cuts:sink")
    assert cli.err == "replayed: 3 delivered\n"


def test_a_store_that_is_none_is_told_without_the_password(cli: Cli, letters: Letters) -> None:
    found = re.search(r"//[^:]+:([^@]+)@", letters.dsn)
    assert found is not None
    secret = found[1]
    cases = [
        ((letters.dsn, "--table", "nothing"), '"nothing" is not a table of dead letters'),
        (
            (letters.dsn, "--table", "events", "--schema", "public"),
            '"public"."events" is not a table of dead letters',
        ),
        ((letters.dsn.replace("/postgres", "/nowhere"),), "nowhere"),
        ((letters.dsn.replace(secret, "hush-hush"),), "no connection to 127.0.0.1"),
        ((f"postgresql://someone:{secret}@127.0.0.1:1/x",), "no connection to 127.0.0.1:1/x"),
    ]
    for arguments, told in cases:
        cli("list", *arguments, code=2)
        assert told in cli.err
        assert secret not in cli.err
        assert "hush" not in cli.err


def test_the_letters_of_a_consumer_in_a_table_are_handled_again_exactly(
    cli: Cli, letters: Letters, tmp_path: Path
) -> None:
    """consumer/C:F2, consumer/O25: a letter written twice exists once."""
    values: list[object] = [b"\x00\xff", "a\0b", None, {"n": [1, b"\xff"]}, "\ud800"]
    log = MemoryLog(
        [
            Record("t", 0, n, b"\xff", value, [("h", b"\0"), ("h", b"")], 5)
            for n, value in enumerate(values)
        ]
    )

    async def give_up(message: Message) -> None:
        raise PoisonError(f"bad \0 {message.value!r}")

    async def consume(name: str) -> None:
        source = MemorySource(log, ends=True)
        await Consumer(
            source,
            name=name,
            poison=Poison("skip", dead_letters=letters.sink()),
            commits=Commits(every=60.0),
        ).run(give_up)
        log.positions.clear()

    for name in ("billing", "billing", "shipping"):
        asyncio.run(consume(name))
    found = cli.letters(letters.dsn)
    assert [letter["batcher"] for letter in found] == ["billing"] * 5 + ["shipping"] * 5
    text = (
        f"VALUES = {values!r}\n"
        "def handle(message):\n"
        "    assert message.key == b'\\xff' and message.value == VALUES[message.offset]\n"
        "    assert message.headers == [('h', b'\\0'), ('h', b'')] and message.timestamp == 5\n"
        "    print(message.coordinates)\n"
    )
    module(tmp_path, "table_handlers", text)
    said = cli("replay", letters.dsn, "--handler", "table_handlers:handle", "--batcher", "billing")
    assert said == [f"t/0@{n}" for n in range(5)]
    assert cli.err == "replayed: 5 delivered\n"
    assert len(cli.letters(letters.dsn)) == 5
