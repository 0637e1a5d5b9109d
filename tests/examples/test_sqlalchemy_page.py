"""The page on SQLAlchemy: its program prints the output on the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("sqlalchemy")

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from pathlib import Path


def test_sessions_and_batches_share_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(load("shared_engine").main(tmp_path / "views.db"))
    assert capsys.readouterr().out in printed_on("how-to/write-to-sql.md")
