"""Rows into a ClickHouse table, each stored once although batches may be sent again."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime

import httpx

from sluicegate import Batcher, DeadLetter, Limits, Retry, stack
from sluicegate.clickhouse import ClickHouseSink
from sluicegate.sinks import DeadLetterRecord, MemorySink

TABLE = """
CREATE TABLE clicks (at DateTime64(3, 'UTC'), page LowCardinality(String), visitor UUID, taps UInt8)
ENGINE = MergeTree ORDER BY at SETTINGS non_replicated_deduplication_window = 1000
"""
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
VISITOR = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
CLICKS = [
    {"at": NOON, "page": "/", "visitor": VISITOR, "taps": 1},
    {"at": NOON, "page": "/shop", "visitor": None, "taps": 2},
    {"at": NOON, "page": "/cart", "visitor": VISITOR, "taps": 300},
    {"at": NOON, "page": "/cart", "visitor": VISITOR, "taps": 3, "colour": "red"},
    {"at": NOON, "page": "/cart", "visitor": VISITOR, "taps": 3},
]


async def main(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        (await client.post("/", content=TABLE)).raise_for_status()
    letters = MemorySink[DeadLetterRecord[dict[str, object]]]()
    sink = stack(ClickHouseSink(url, table="clicks"), Retry(attempts=5), DeadLetter(letters))
    async with Batcher(sink, limits=Limits(max_items=10_000, max_delay=1.0)) as batcher:
        for click in CLICKS:
            await batcher.add(click)
    assert batcher.report is not None
    print(batcher.report.tally)
    for letter in letters.items:
        print(letter.item["page"], letter.message)
    async with httpx.AsyncClient(base_url=url) as client:
        found = await client.post("/", content="SELECT page, taps FROM clicks ORDER BY taps")
    print(found.text.expandtabs())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8123"))
