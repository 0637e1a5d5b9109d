"""`sluicegate tune`: its output, also after a failed write and after an interruption."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.tune_help import QUICK
from tests.examples.example import EXAMPLES

from sluicegate.cli import main

if TYPE_CHECKING:
    from sluicegate.testing import EmbeddedPostgres


def test_it_measures_and_prints_limits(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """batcher/B51: a sink with a constant write time: the largest size is the best. The figures
    depend on the machine, their form does not.
    """
    arguments = ("--sizes", "1,10,100", "--rate", "100", "--latency", "50ms")
    assert main(["tune", "tuned:slow", *QUICK, *arguments]) == 0
    out, err = capsys.readouterr()
    assert (
        "WARNING: this writes about 888 made-up items to the real destination of tuned:slow" in err
    )
    assert re.findall(r"^ +(\d+) +\d+\.\d\d +[\d,]+$", out, re.MULTILINE) == ["1", "10", "100"]
    assert "no knee: still rising at 100 items: try larger sizes with --sizes 100,300,1000" in out
    assert (
        "    max_items=80,\n    max_delay=0.05,\n    workers=1,\n    max_pending_items=360,\n"
        in out
    )


def test_a_size_that_the_sink_refuses_ends_the_sizes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "tuned:narrow", *QUICK, "--sizes", "1,10,100,1000"]) == 0
    out, err = capsys.readouterr()
    assert "a write of 100 items failed: PermanentError: too wide; larger sizes are skipped" in err
    assert "no knee: 10 items are the largest size that was accepted" in out
    assert "limits = Limits(" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_closes_the_sink(here: Path, number: signal.Signals, code: int) -> None:
    """It prints how much was written."""
    command = [sys.executable, "-m", "sluicegate.cli", "tune", "tuned:deaf", *QUICK]
    with subprocess.Popen(
        command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while process.stdout.readline() != "writing\n":
            assert process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert out == "closed\n"
    told = "ended early; about 0 items were written"
    assert err.splitlines()[-1] == told


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_what_was_measured(
    here: Path, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, "-m", "sluicegate.cli", "tune", "tuned:stuck", *QUICK]
    with subprocess.Popen(
        [*command, "--sizes", "1,10,100"],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("      10 "):
            assert process.poll() is None
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.splitlines()[-1] == "ended early; about 88 items were written"


def test_a_real_table(
    embedded_postgres: EmbeddedPostgres,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The example of the how-to page."""
    import asyncpg

    async def execute(sql: str) -> Any:
        connection = await asyncpg.connect(embedded_postgres.dsn)
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()

    asyncio.run(execute("CREATE TABLE audit (id bigint PRIMARY KEY, action text NOT NULL)"))
    try:
        monkeypatch.setenv("DSN", embedded_postgres.dsn)
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.delitem(sys.modules, "tune_me", raising=False)
        assert (
            main(
                [
                    "tune",
                    "tune_me:sink",
                    "--items",
                    "tune_me:row",
                    "--sizes",
                    "1,100",
                    "--yes",
                    "--rate",
                    "500",
                ]
            )
            == 0
        )
        ((rows,),) = asyncio.run(execute("SELECT count(*) FROM audit"))
        assert rows == 8 * 101
    finally:
        asyncio.run(execute("DROP TABLE audit"))
    assert "limits = Limits(" in capsys.readouterr().out
