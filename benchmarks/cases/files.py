"""A backfill from files, compared with bare loops over the same rows: an NDJSON and a Parquet file.

Handlers do nothing, and the bare loops call a function that does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sluicegate.consumer import Keys

from ..destination import installed
from ..harness import NS_PER_ITEM, Case, CaseUnavailableError, placed
from ..stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..harness import Contender
    from ..stopwatch import Took

OURS = "Consumer of a FileSource"
LOOP = "bare loop"
NDJSON, PARQUET = "NDJSON", "Parquet"
USERS = 1_000
BATCH = 1_000
"""Rows per batch in the bare loop over Parquet, as in the source."""


def _row(at: int) -> dict[str, object]:
    return {"user": f"user-{at % USERS}", "at": at, "cents": at * 7 % 10_000, "note": "x" * 40}


def _make(folder: Path, count: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with (folder / "rows.ndjson").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(_row(at)) + "\n" for at in range(count))
    table = pa.Table.from_pylist([_row(at) for at in range(count)])
    parquet.write_table(table, folder / "rows.parquet", row_group_size=100_000)


def _consumed(path: Path, count: int) -> Took:
    from sluicegate import Consumer
    from sluicegate.files import FileSource

    seen = 0

    async def handle(_: object) -> None:
        nonlocal seen
        seen += 1

    async def turn() -> Took:
        source = FileSource(path, subscription=f"x{uuid.uuid4().hex}")
        watch = Stopwatch()
        await Consumer(source, name="benchmark", key=Keys(keyless="parallel")).run(handle)
        took = watch.read()
        assert seen == count, f"{seen} of {count}"
        return took

    return asyncio.run(turn())


def _handle(_: object) -> None:
    pass


def _lines(path: Path, count: int) -> Took:
    seen = 0
    watch = Stopwatch()
    with path.open("rb") as file:
        for line in file:
            _handle(line)
            seen += 1
    took = watch.read()
    assert seen == count, f"{seen} of {count}"
    return took


def _rows(path: Path, count: int) -> Took:
    from pyarrow import parquet

    seen = 0
    watch = Stopwatch()
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH):
            for row in batch.to_pylist():
                _handle(row)
                seen += 1
    took = watch.read()
    assert seen == count, f"{seen} of {count}"
    return took


@contextlib.contextmanager
def prepare(count: int) -> Iterator[Sequence[Contender]]:
    if not installed("pyarrow"):
        raise CaseUnavailableError("pyarrow is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make(folder, count)
        lines, rows = folder / "rows.ndjson", folder / "rows.parquet"
        yield [
            placed(OURS, NDJSON, partial(_consumed, lines, count), ours=True),
            placed(LOOP, NDJSON, partial(_lines, lines, count)),
            placed(OURS, PARQUET, partial(_consumed, rows, count), ours=True),
            placed(LOOP, PARQUET, partial(_rows, rows, count)),
        ]


CASE = Case(
    name="files",
    title="Rows of a file, through a consumer and in a bare loop",
    prepare=prepare,
    items=1_000_000,
    quick_items=20_000,
    unit=NS_PER_ITEM,
    peers=(LOOP,),
    along="format",
    is_drawn=False,
)
