"""The page on SQL databases: its program prints the output on the page."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("sqlalchemy")

from tests.examples.example import DOCS, load, printed_on

from sluicegate import Batcher
from sluicegate.sql import SqlSink

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_reach_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("rows_to_sql").main(tmp_path / "stock.db"))
    assert capsys.readouterr().out == printed_on("how-to/write-to-sql.md")[0]


def test_what_the_table_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("orders.db") as con:
        con.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount INT)")
    con.close()
    page = (DOCS / "how-to/write-to-sql.md").read_text()
    (snippet,) = re.findall(r"```python\n(sink = .*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"Batcher": Batcher, "SqlSink": SqlSink}
    exec(f"async def main():\n{textwrap.indent(snippet, '    ')}", names)  # the page's own
    asyncio.run(names["main"]())
    assert capsys.readouterr().out == "{'id': 1}\n"
