"""The page on files and on items of other libraries: its program prints the output on the page."""

from __future__ import annotations

import asyncio
import re
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("pydantic")
pytest.importorskip("msgspec")

from tests.examples.example import load, printed_on
from tests.examples.snippets import snippet_on

from sluicegate import ArrowBatch, send
from sluicegate.objects import ParquetSink

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "how-to/write-to-a-file.md"


def test_models_become_rows_and_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(load("models_as_items").main(tmp_path))
    assert capsys.readouterr().out in printed_on(PAGE)


def test_the_stack_of_the_page() -> None:
    exec(snippet_on(PAGE, "import sluicegate"), {"dsn": "postgresql://localhost/app"})


@pytest.mark.parametrize(
    ("texts", "has_schema"),
    [
        ("string", True),
        ("large_string", True),
        ("string_view", True),
        ("string_view", False),
    ],
)
def test_a_frame_is_sent_as_columns(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    texts: str,
    has_schema: bool,
) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    pq: Any = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("obstore")
    program = snippet_on(PAGE, "frame = ").replace("/tmp/frames", str(tmp_path))
    if not has_schema:
        program = re.sub(r"schema=\{.*?\}", "schema=None", program)
    first, rest = program.split("\n", 1)
    kind = f"frame = frame.set_column(1, 'name', frame['name'].cast(pa.{texts}()))\n"
    names: dict[str, Any] = {
        "pa": pa, "ArrowBatch": ArrowBatch, "ParquetSink": ParquetSink, "send": send,
    }  # fmt: skip
    body = textwrap.indent(first + "\n" + kind + rest, "    ")
    exec(f"async def main():\n{body}", names)
    asyncio.run(names["main"]())
    assert not capsys.readouterr().out
    rows = [row for path in tmp_path.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert len(rows) == 3
