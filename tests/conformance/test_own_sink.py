"""The sink on the how-to page, and how a user runs the suite on it."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from tests.examples.example import load

from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class TestSqliteSink(SinkConformance[tuple[int, str]]):
    """The example fulfils its declared contract."""

    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "events.db")
        with sqlite3.connect(self.path) as database:
            database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, action TEXT NOT NULL)")
        database.close()

    def sink(self) -> Any:
        return load("own_sink").SqliteSink(self.path)

    def item(self, number: int) -> tuple[int, str]:
        return number, "login"

    def bad_item(self, number: int) -> Any:
        return number, None

    async def stored(self) -> Sequence[tuple[int, str]]:
        database = sqlite3.connect(self.path)
        try:
            return database.execute("SELECT id, action FROM events ORDER BY id").fetchall()
        finally:
            database.close()
