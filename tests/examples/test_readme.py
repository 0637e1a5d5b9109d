"""The README: its programs run, its links are valid, and its tables stay readable."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.examples.example import DOCS, ROOT

from sluicegate import Batcher, ItemFailed
from sluicegate.consumer import MemoryLog, MemorySource
from sluicegate.postgres import QueueAdmin, install_streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluicegate.testing import FakeClock

README = (ROOT / "README.md").read_text()
DSN = "postgresql://localhost/app"
RUN = (
    "Sluicegate",
    "Sinks",
    "Consumers",
    "Pipes",
    "Queues in PostgreSQL",
    "Spark",
    "Test your code",
)
"""The headings of the programs that the tests of this file run."""


def blocks(heading: str, language: str) -> list[str]:
    """The blocks of a section, without those of other sections."""
    (section,) = re.findall(rf"^#+ {heading}\n(.*?)(?=^#+ [A-Z]|\Z)", README, re.M | re.S)
    return re.findall(rf"```{language}\n(.*?)```", section, re.S)


def program(heading: str, *replaced: tuple[str, str]) -> str:
    (text,) = blocks(heading, "python")
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    return text


def printed(heading: str) -> str:
    (text,) = blocks(heading, "text")
    return text


def in_memory(log: MemoryLog) -> Callable[..., MemorySource]:
    """A source in memory in place of the real one, whose arguments are checked."""

    def source(kind: type, *args: Any, **options: Any) -> MemorySource:
        kind(*args, **options)  # does no I/O
        return MemorySource(log, ends=True)

    return source


def test_every_program_is_run() -> None:
    sections = re.findall(r"^#+ (.*)\n(?:(?!^#+ [A-Z])[^\n]*\n)*?```python", README, re.M)
    assert tuple(sections) == RUN
    assert README.count("```python") == len(RUN)


def test_the_first_program(capsys: pytest.CaptureFixture[str]) -> None:
    exec(program("Sluicegate"), {})
    assert capsys.readouterr().out == printed("Sluicegate")


def test_the_home_page_shows_the_same_program() -> None:
    shown = "".join(
        f"```{each}\n{blocks('Sluicegate', each)[0]}```\n\n" for each in ("python", "text")
    )
    assert shown in (DOCS / "index.md").read_text()


def test_sinks(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(execute(database, "CREATE TABLE audit (id int PRIMARY KEY, action text NOT NULL)"))
    names: dict[str, Any] = {}
    exec(program("Sinks", (DSN, database)), names)
    asyncio.run(names["audit"]())
    assert capsys.readouterr().out == printed("Sinks")
    (letter,) = (tmp_path / "refused.jsonl").read_text().splitlines()
    assert json.loads(letter)["item"] == {"id": 2, "action": None}
    answers = asyncio.run(endpoint(names["sink"], [(3, "again"), (4, None), (5, "login")]))
    assert answers == {3: "dead_lettered", 4: "dead_lettered", 5: "delivered"}
    rows = asyncio.run(execute(database, "SELECT * FROM audit ORDER BY id"))
    assert [tuple(row) for row in rows] == [(1, "login"), (3, "logout"), (5, "login")]


async def endpoint(sink: Any, rows: list[tuple[int, str | None]]) -> dict[int, str]:
    """What `deliver` returns or raises for each row."""
    ends: dict[int, str] = {}
    async with Batcher(sink) as batcher:
        for number, action in rows:
            try:
                outcome = await batcher.deliver({"id": number, "action": action}, timeout=30.0)
                assert outcome.is_success
            except ItemFailed as failed:
                outcome = failed.outcome
            ends[number] = outcome.value
    return ends


def test_consumers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = MemoryLog()
    for cents in (5, 7):
        log.produce("charges", cents, key="ann")
    charged: list[tuple[str, int]] = []

    class Bank:
        async def charge(self, account: str, cents: int) -> None:
            charged.append((account, cents))

    changed = program("Consumers", ("KafkaSource(", "source_for(KafkaSource, "))
    exec(changed, {"bank": Bank(), "source_for": in_memory(log)})
    assert charged == [("ann", 5), ("ann", 7)]


def test_pipes(database: str) -> None:
    table = "CREATE TABLE payments (place text PRIMARY KEY, account text, amount int)"
    asyncio.run(execute(database, table))
    log = MemoryLog()
    for amount in (5, 7):
        log.produce("payments", json.dumps({"account": "ann", "amount": amount}))
    changed = program("Pipes", (DSN, database), ("KafkaSource(", "source_for(KafkaSource, "))
    exec(changed, {"source_for": in_memory(log)})
    rows = asyncio.run(execute(database, "SELECT * FROM payments ORDER BY place"))
    assert [tuple(row) for row in rows] == [("payments/0@0", "ann", 5), ("payments/0@1", "ann", 7)]


def test_queues(database: str) -> None:
    (insert,) = blocks("Queues in PostgreSQL", "sql")
    sent: list[Any] = []

    async def set_up() -> None:
        await install_streams(database)
        async with QueueAdmin(database) as admin:
            await admin.create("mails")
        await execute(database, insert)

    async def send(message: Any) -> None:
        sent.append((message.key, json.loads(message.value)))
        names["consumer"].stop()

    asyncio.run(set_up())
    names: dict[str, Any] = {"send": send}
    exec(program("Queues in PostgreSQL", (DSN, database)), names)
    assert sent == [("ann", {"mail": "welcome"})]


def test_spark() -> None:
    """Without a session: the tests of `sluicegate.spark` write DataFrames."""
    pytest.importorskip("pyspark")
    from sluicegate.spark import write_dataframe

    bound = inspect.signature(write_dataframe).bind
    exec(program("Spark", ("write_dataframe(df", "bound(df")), {"df": object(), "bound": bound})


async def test_tests(fake_clock: FakeClock) -> None:
    names: dict[str, Any] = {}
    exec(program("Test your code"), names)
    (test,) = (names[name] for name in names if name.startswith("test_"))
    await test(fake_clock)


def test_every_link_leads_somewhere() -> None:
    wrong: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", README):
        path, _, anchor = link.partition("#")
        if path.startswith("https://"):
            continue
        page = ROOT / (path or "README.md")
        if not page.exists() or (anchor and anchor not in anchors(page)):
            wrong.append(link)
    assert wrong == []


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub and the documentation generate them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_every_extra_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r"`([\w-]+)`", README)) | set(re.findall(r'"\.\[(\w+)\]"', README))
    assert set(project["optional-dependencies"]) - named == set()


def test_a_cell_is_one_line() -> None:
    cells = [
        re.sub(r"\]\([^)]*\)", "]", cell).strip()
        for row in re.findall(r"^\|(.*)\|$", README, re.M)
        for cell in row.split("|")
    ]
    assert [cell for cell in cells if len(cell) > 110] == []


async def execute(dsn: str, statement: str) -> list[Any]:
    con = await asyncpg.connect(dsn)
    try:
        return await con.fetch(statement)
    finally:
        await con.close()
