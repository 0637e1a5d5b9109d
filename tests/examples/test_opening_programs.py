"""Guides begin with a program and its output."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.examples.conftest import execute
from tests.examples.example import EXAMPLES, load, printed_on

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from sluicegate.testing import FakeClock


async def test_a_consumer_is_explained(
    fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    await load("explained").main()
    assert capsys.readouterr().out == printed_on("how-to/troubleshooting.md")[1]


def test_a_sink_of_your_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("own_sink").main(str(tmp_path / "events.db")))
    assert capsys.readouterr().out == printed_on("how-to/write-your-own-sink.md")[0]


def test_commits_of_the_first_and_the_last_step(database: str) -> None:
    """In a separate process: the program imports the steps from its folder."""
    migration = EXAMPLES / "migration"
    asyncio.run(execute(database, (migration / "tables.sql").read_text()))
    said = printed_on("how-to/migrate.md")[0]
    steps = [line.partition(":")[0] for line in said.splitlines()]
    command = [sys.executable, str(migration / "commits.py"), database, *steps]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == said
