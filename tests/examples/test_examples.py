"""The examples run, and say what the docs say they say."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.examples.example import EXAMPLES, load

if TYPE_CHECKING:
    import pytest

    from penstock.testing import EmbeddedPostgres, FakeClock


async def test_the_first_batcher(fake_clock: FakeClock, capsys: pytest.CaptureFixture[str]) -> None:
    """The tutorial's first program."""
    await load("first_batcher").main()
    first, second, report = capsys.readouterr().out.splitlines()
    assert first == "3 items, because of size: ['ann', 'bob', 'cid']"
    assert second == "1 items, because of shutdown: ['dot']"
    assert report.endswith("4 accepted: 4 delivered")


def test_audit_events_reach_postgres(embedded_postgres: EmbeddedPostgres, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that the table refuses fails alone."""
    report = asyncio.run(load("audit_to_postgres").main(embedded_postgres.dsn, 1_000))
    assert (report.tally.delivered, report.tally.rejected) == (1_001, 1)
    out = capsys.readouterr().out
    assert "the last one: delivered" in out
    assert "refused alone: rejected" in out


async def test_the_users_own_test(fake_clock: FakeClock) -> None:
    """What the how-to page shows."""
    await load("test_my_code").test_an_event_survives_a_hiccup(fake_clock)


def test_a_postgres_to_try_the_examples_on(embedded_postgres: EmbeddedPostgres) -> None:
    """It prints where it is, has the tables, crashes and comes back, and ends in order. The fixture is there to skip where the server's package is missing."""
    command = [sys.executable, str(EXAMPLES / "a_postgres.py"), str(EXAMPLES / "migration" / "tables.sql")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        dsn = process.stdout.readline().removeprefix("export DSN=").strip()
        try:
            module = load("migration/step_07_write_at_once")
            process.send_signal(signal.SIGHUP)
            assert [process.stdout.readline() for _ in range(3)][1:] == ["# killed with SIGKILL\n", "# up again\n"]
            module.main(dsn, module.thousand_requests())
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
