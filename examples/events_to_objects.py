"""Events as Parquet files in an object store; here a folder, which needs no account."""

from __future__ import annotations

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyarrow import dataset

from sluicegate import Batcher, DeadLetter, Limits, Retry, stack
from sluicegate.objects import ParquetSink
from sluicegate.sinks import DeadLetterRecord, MemorySink

START = datetime(2026, 1, 31, 23, 59, 30, tzinfo=UTC)
SCHEMA = {"user": "int64", "action": "string", "took": "float64"}


def day(event: dict[str, Any]) -> object:
    return event["at"].date()


async def main(folder: Path) -> None:
    url = folder.as_uri()  # such as s3://bucket/events
    files = ParquetSink(url, schema=SCHEMA, partition_by={"day": day}, prefix="events")
    letters = MemorySink[DeadLetterRecord[dict[str, Any]]]()
    sink = stack(files, Retry(attempts=5), DeadLetter(letters))
    # a file for 50,000 events or 64 MiB, and at least once a minute
    limits = Limits(max_items=50_000, max_bytes=64 << 20, max_delay=60.0)
    async with Batcher(sink, limits=limits, size_of=lambda _: 100) as batcher:
        for number in range(60):
            at = START + timedelta(seconds=number)
            event = {"at": at, "user": number % 7, "action": "click", "took": 0.25}
            await batcher.add(event)
        await batcher.add({"at": START, "user": 1.5, "action": "click", "took": 0.1})
    assert batcher.report is not None
    print(batcher.report.tally)
    for letter in letters.items:
        print(letter.message)
    read = dataset.dataset(folder, format="parquet", partitioning="hive").to_table()
    print(read.num_rows, "rows of", ", ".join(read.column_names))
    print(read.group_by("day").aggregate([("user", "count")]).sort_by("day").to_pylist())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
