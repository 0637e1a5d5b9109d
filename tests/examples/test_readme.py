"""The README: its programs run, its links are valid, and its tables stay readable."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.examples.example import DOCS, ROOT

from sluicegate import Batcher, ItemFailed

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "README.md").read_text()
DSN = "postgresql://localhost/app"
FIRST, SINKS = re.findall(r"```python\n(.*?)```", README, re.S)
PRINTED = re.findall(r"```text\n(.*?)```", README, re.S)


def test_the_first_program(capsys: pytest.CaptureFixture[str]) -> None:
    exec(FIRST, {})
    assert capsys.readouterr().out == PRINTED[0]


def test_the_home_page_shows_the_same_program() -> None:
    shown = f"```python\n{FIRST}```\n\n```text\n{PRINTED[0]}```\n"
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
    assert DSN in SINKS
    exec(SINKS.replace(DSN, database), names)
    asyncio.run(names["audit"]())
    assert capsys.readouterr().out == PRINTED[1]
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


def test_the_figures_are_those_of_the_benchmarks() -> None:
    page = " ".join((DOCS / "explanation" / "benchmarks.md").read_text().split())
    told = re.findall(r"[\d.]+ times \([\d.]+ to [\d.]+", README)
    assert len(told) == 3
    assert [each for each in told if each not in page] == []


def test_every_extra_is_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r"`([\w-]+)`", README)) | set(
        re.findall(r'"sluicegate\[(\w+)\]"', README)
    )
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
