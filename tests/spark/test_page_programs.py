"""The programs at the beginning of the pages on Spark print the output on their pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from tests.examples.conftest import database
from tests.examples.example import load, printed_on
from tests.spark.sql import query

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["database"]

CHECKED = "amount int CHECK (amount >= 0)"


def timeless(printed: str) -> list[str]:
    """The lines without alignment, with one character for every rate and duration."""
    return [
        re.sub(r"\d+\.\d\d(?= )|[\d,]+(?= rows/s)", "#", " ".join(line.split()))
        for line in printed.splitlines()
    ]


@pytest.mark.parametrize(
    ("page", "output", "program", "columns"),
    [
        ("write-from-spark", 1, "order_from_spark", f"account text, seq int, {CHECKED}"),
        pytest.param(
            "deliver-exactly-once-from-spark",
            0,
            "exactly_once_from_spark",
            "account text, seq int, amount int",
            marks=pytest.mark.long,
        ),
    ],
    ids=["order", "once"],
)
def test_a_program(
    spark: Any,
    database: str,
    page: str,
    output: int,
    program: str,
    columns: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    query(database, f"CREATE TABLE payments ({columns})")
    load(program).main(database)
    assert timeless(capsys.readouterr().out) == timeless(printed_on(f"how-to/{page}.md")[output])
