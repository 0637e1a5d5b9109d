"""The page on conditional upserts: its program prints the output on the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("sqlalchemy")

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from pathlib import Path


def test_only_newer_rows_replace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("conditional_upsert").main(tmp_path / "orders.db"))
    assert capsys.readouterr().out == printed_on("how-to/conditional-upsert.md")[0]
