"""The page on SQL databases: its program prints the output on the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("sqlalchemy")

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_reach_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("rows_to_sql").main(tmp_path / "stock.db"))
    assert capsys.readouterr().out == printed_on("how-to/write-to-sql.md")[0]
