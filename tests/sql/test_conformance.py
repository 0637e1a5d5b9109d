"""batcher/4b.12: `SqlSink` passes the conformance suite, in each database and with every conflict
mode.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import sqlalchemy as sa

from sluicegate.sql import SqlSink
from sluicegate.testing.conformance import SinkConformance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.sql.mariadb import MariaDbServer


class TestSqlite(SinkConformance[tuple[int, str]]):
    """In a file, with threads."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def on(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path / 'rows.db'}"
        self.look = sa.create_engine(self.url)
        with self.look.begin() as con:
            con.exec_driver_sql(
                "CREATE TABLE words (nr INTEGER PRIMARY KEY AUTOINCREMENT, id INT NOT NULL UNIQUE, "
                "word TEXT NOT NULL)"
            )

    def sink(self) -> SqlSink:
        return SqlSink(self.url, table="words", columns=("id", "word"), **self.options)

    def item(self, number: int) -> tuple[int, str]:
        return number, "x"

    def bad_item(self, number: int) -> Any:
        return number, None

    def columns(self, items: Sequence[Any]) -> Any:
        pa = pytest.importorskip("pyarrow")
        ids, words = zip(*items, strict=True)
        return pa.record_batch({"id": ids, "word": pa.array(words, pa.string())})

    async def stored(self) -> list[tuple[int, str]]:
        def read() -> list[tuple[int, str]]:
            with self.look.connect() as con:
                rows = con.exec_driver_sql("SELECT id, word FROM words ORDER BY nr")
                return [tuple(row) for row in rows]

        return await asyncio.to_thread(read)


@pytest.mark.long
class TestSqliteIgnoring(TestSqlite):
    """Existing rows stay."""

    options: ClassVar[dict[str, Any]] = {"on_conflict": "ignore"}


@pytest.mark.long
class TestSqliteUpdating(TestSqlite):
    """Existing rows are replaced."""

    options: ClassVar[dict[str, Any]] = {"on_conflict": "update"}


class TestMariaDb(TestSqlite):
    """MariaDB."""

    driver = "pymysql"

    @pytest.fixture(autouse=True)
    def on(self, mariadb: MariaDbServer) -> None:
        self.look = sa.create_engine(mariadb.url(), poolclass=sa.NullPool)
        self.url = mariadb.url(self.driver)
        with self.look.begin() as con:
            con.exec_driver_sql("DROP TABLE IF EXISTS words")
            con.exec_driver_sql(
                "CREATE TABLE words (nr INT AUTO_INCREMENT PRIMARY KEY, id INT NOT NULL UNIQUE, "
                "word VARCHAR(20) NOT NULL)"
            )


@pytest.mark.long
class TestMariaDbUpdating(TestMariaDb):
    """Existing rows are replaced."""

    options: ClassVar[dict[str, Any]] = {"on_conflict": "update"}


@pytest.mark.long
class TestMariaDbIgnoring(TestMariaDb):
    """Existing rows stay."""

    options: ClassVar[dict[str, Any]] = {"on_conflict": "ignore"}
