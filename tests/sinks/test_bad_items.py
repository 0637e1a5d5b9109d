"""An item that a sink cannot convert fails alone, with its own error, and is no bug of the program."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.sink.postgres_help import database

from sluicegate import Batcher, Limits, Outcome, PermanentError, Retry, stack
from sluicegate.files import FileSink
from sluicegate.objects import ObjectSink, ParquetSink
from sluicegate.sql import SqlSink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres

SECRET = "the item's value"


@dataclass
class Half:
    """An object without one of the attributes."""

    id: int


BAD_ROWS: list[tuple[object, str]] = [
    ({"id": 1, "note": SECRET}, "the item cannot become a row: it has no 'word'"),
    (Half(1), "the item cannot become a row: it has no 'word'"),
    ((1,), "the item cannot become a row: it has 1 values for 2 columns"),
    (SECRET, "the item cannot become a row: it is a str, and no mapping or sequence"),
    (None, "the item cannot become a row: it is a NoneType, and no mapping or sequence"),
]
GOOD = {"id": 5, "word": "good"}
BAD_RECORDS: list[tuple[object, str]] = [
    ({"id": 1, "word": Half}, "the item cannot be encoded"),
    ({"id": 1, "word": float("nan"), "note": SECRET}, "the item cannot be encoded"),
    (object(), "the item cannot be encoded"),
]


def _sqlite(folder: Path, **options: Any) -> SqlSink:
    path = folder / "shop.db"
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT)")
    con.close()
    url = f"sqlite:///{path}"
    return SqlSink(url, table="words", columns=("id", "word"), **options)


SINKS: dict[str, tuple[Callable[[Path], Any], list[tuple[object, str]]]] = {
    "SqlSink": (_sqlite, BAD_ROWS),
    "FileSink": (lambda folder: FileSink(folder / "words.jsonl"), BAD_RECORDS),
    "ObjectSink": (lambda folder: ObjectSink(folder.as_uri()), BAD_RECORDS),
    "ParquetSink": (
        lambda folder: ParquetSink(folder.as_uri(), schema={"id": "int64", "word": "string"}),
        [({"id": "x", "word": SECRET}, "the item")],
    ),
}


async def _rejects(sink: Any, bad: list[tuple[object, str]], caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    errors: list[BaseException] = []
    batcher = Batcher(
        stack(sink, Retry()),
        limits=Limits(max_items=100),
        on_failure=lambda _, error: errors.append(error),
    )
    async with batcher:
        receipts = [await batcher.submit(item) for item in (*(item for item, _ in bad), GOOD)]
        await batcher.flush()
    assert [receipt.outcome for receipt in receipts] == [
        *[Outcome.REJECTED] * len(bad),
        Outcome.DELIVERED,
    ]
    assert all(isinstance(error, PermanentError) for error in errors)
    told = [str(error) for error in errors]
    assert all(any(text.startswith(words) for text in told) for _, words in bad), told
    assert "bug" not in caplog.text
    assert SECRET not in caplog.text
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("name", SINKS)
async def test_a_bad_item_says_what_is_wrong_with_it(
    name: str, tmp_path: Path, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    make, bad = SINKS[name]
    await _rejects(make(tmp_path), bad, caplog)


async def test_a_bad_item_for_postgresql_says_what_is_wrong_with_it(
    embedded_postgres: EmbeddedPostgres, real_clock: LoopClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with database(embedded_postgres.dsn) as db:
        await _rejects(db.sink(), BAD_ROWS, caplog)
        assert await db.rows() == [(5, "good")]
