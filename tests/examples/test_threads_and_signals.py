"""The examples for threads, for a script that drains on a signal, and for log records."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.examples.example import EXAMPLES, load

if TYPE_CHECKING:
    from pathlib import Path


def test_readings_of_four_threads_reach_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them, in the order of each thread."""
    path = tmp_path / "readings.db"
    load("threaded").main(str(path))
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT sensor, value FROM readings ORDER BY rowid").fetchall()
    for sensor in range(4):
        assert [value for owner, value in rows if owner == sensor] == list(range(1_000))
    first, report = capsys.readouterr().out.splitlines()
    assert first == "the last one: delivered"
    assert ": 4001 accepted: 4001 delivered" in report


@pytest.mark.parametrize("end", ["input", "SIGTERM", "SIGINT"])
def test_a_script_writes_what_it_has_however_it_ends(tmp_path: Path, end: str) -> None:
    """A hundred lines are a batch; the drain writes the three lines behind them."""
    path = tmp_path / "lines.txt"
    lines = [f"line {number}\n" for number in range(103)]
    command = [sys.executable, str(EXAMPLES / "run_script.py"), str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write("".join(lines))
        process.stdin.flush()
        assert process.stdout.readline() == "100 lines, because of size\n"
        if end == "input":
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[end])
        assert process.stdout.readline() == "3 lines, because of shutdown\n"
        assert process.wait(120) == 0
        assert "103 accepted: 103 delivered" in process.stderr.read()
    assert path.read_text() == "".join(lines)


def test_log_records_are_shipped_and_those_of_the_shipping_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A handler whose batcher does not feed itself."""
    load("log_handler").main()
    assert capsys.readouterr().out.splitlines() == [
        "record 0",
        "record 1",
        "record 2",
        "3 accepted: 3 delivered",
    ]
