"""Readings to a Redis stream, with the readings' ids, so a repeated reading is stored once."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from redis import Redis
from sluicegate import Batcher, DeadLetter, Limits, Retry, stack
from sluicegate.redis import RedisSink

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
READINGS: list[dict[str, Any]] = [
    {"at": "1700000000000-1", "sensor": "north", "celsius": 4.5},
    {"at": "1700000000000-2", "sensor": "south", "celsius": 6.25},
    {"at": "1700000060000-1", "sensor": "north", "celsius": float("nan")},
    {"at": "1700000060000-2", "sensor": "south", "celsius": 6.5},
]


def make_batcher() -> Batcher[dict[str, Any]]:
    readings = RedisSink(
        URL,
        stream="readings",
        fields=["sensor", "celsius"],
        id="at",
        on_conflict="ignore",
        maxlen=1_000_000,
    )
    letters = RedisSink(URL, stream="dead-readings", encode=lambda letter: f"{letter.item}")
    sink = stack(readings, Retry(attempts=5), DeadLetter(letters))
    return Batcher(sink, name="readings", limits=Limits(max_items=1000, max_delay=0.1))


async def main() -> None:
    for _ in range(2):  # the second time as after a crash
        async with make_batcher() as batcher:
            for reading in READINGS:
                await batcher.add(reading)
        assert batcher.report is not None
        print(batcher.report.tally)
    with Redis.from_url(URL, decode_responses=True) as client:
        for entry, fields in client.xrange("readings"):
            print(entry, fields)
        for _, fields in client.xrange("dead-readings", count=1):
            print(fields)


if __name__ == "__main__":
    asyncio.run(main())
