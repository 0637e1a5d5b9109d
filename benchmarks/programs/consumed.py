"""Print the bytes that a consumer uses for records, without the records themselves: `python -m
benchmarks.programs.consumed WHAT COUNT`.

WHAT is `key` (each record has its own key, and all are handled), `waiting` (all wait behind the
first record of their key) or `settled` (all are settled except the first, whose handler hangs).
"""

from __future__ import annotations

import asyncio
import base64
import gc
import sys
import tracemalloc
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.consumer import MemoryLog, MemorySource, Record, TopicPartition

if TYPE_CHECKING:
    from sluicegate import Message

WARM, MEASURED = TopicPartition("warm", 0), TopicPartition("measured", 0)
WARM_RECORDS = 1_000
"""Number of records that are handled before the first measurement."""


def records(partition: TopicPartition, count: int, *, one_key: bool = False) -> list[Record]:
    return [
        Record(*partition, offset, 0 if one_key else offset, b"value") for offset in range(count)
    ]


def held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def until_inside(consumer: Consumer, messages: int, count: int) -> None:
    """Wait until this number of messages is inside, and the others of `count` are handled."""
    while True:
        await asyncio.sleep(0.05)
        stats = consumer.stats()
        if stats.in_flight.messages == messages and stats.counts.acked == count - messages:
            return


async def grown(what: str, count: int) -> int:
    """Measure the increase of traced bytes by `count` records."""
    released = asyncio.Event()

    async def handler(message: Message) -> None:
        if message.topic == WARM.topic:
            await asyncio.sleep(0)  # so that all workers are started
        elif what != "key" and message.offset == 0:
            await released.wait()

    given = records(MEASURED, count, one_key=what == "waiting")
    source = MemorySource(MemoryLog([*records(WARM, WARM_RECORDS), *given]))
    async with Consumer(source, in_flight=count + 1, drain=600.0) as consumer:
        consumer.pause(MEASURED)
        run = asyncio.create_task(consumer.run(handler))
        await until_inside(consumer, 0, WARM_RECORDS)
        await consumer.commit()
        base64.b85encode(b"")  # as for offset maps; the module creates its table now
        tracemalloc.start()
        before = held()
        consumer.resume(MEASURED)
        inside = {"key": 0, "settled": 1, "waiting": count}[what]
        await until_inside(consumer, inside, WARM_RECORDS + count)
        await consumer.commit()
        after = held()
        tracemalloc.stop()
        released.set()
        consumer.stop()
        await run
    return max(0, after - before)


def main(what: str, count: int) -> int:
    """Run the measurement; return the bytes."""
    return asyncio.run(grown(what, count))


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2])))
