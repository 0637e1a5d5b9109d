"""The page on enqueueing: its program runs on a database and prints the output on the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest


def test_jobs_commit_with_their_orders_and_an_id_is_enqueued_once(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Q-T14"""
    asyncio.run(load("enqueue_jobs").main(database))
    assert capsys.readouterr().out == printed_on("how-to/enqueue-jobs.md")[0]
