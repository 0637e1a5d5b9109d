"""The page on transactions shows the output of its program."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    import pytest


def test_a_rolled_back_attempt_is_sent_again(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows of the first attempt are gone, and those of the second are all present."""
    asyncio.run(load("write_in_a_transaction").main(database))
    assert capsys.readouterr().out == printed_on("how-to/exactly-once.md")[3]
