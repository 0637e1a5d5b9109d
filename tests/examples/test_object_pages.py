"""The page on object stores: its program prints the output on the page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("obstore")

from tests.examples.example import load, printed_on

if TYPE_CHECKING:
    from pathlib import Path


def test_events_reach_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("events_to_objects").main(tmp_path))
    assert capsys.readouterr().out == printed_on("how-to/write-to-objects.md")[0]
