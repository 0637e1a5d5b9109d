"""The page on periodic jobs: its program runs on a database and prints the output on the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest


def test_three_consumers_fire_each_tick_once(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(load("run_periodic_jobs").main(database))
    assert capsys.readouterr().out == printed_on("how-to/enqueue-jobs.md")[1]
