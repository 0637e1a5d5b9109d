"""A writer, or a server, that is killed and restarted: objects are whole, and none is lost or
duplicated.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.object_servers import object_server
from tests.objects.object_help import Bucket, items_in

from sluicegate import Backoff, Batcher, Limits, Retry, stack
from sluicegate.objects import ObjectSink
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock

BATCHES = 40
WRITER = """
import asyncio, json, os, random, signal, sys
from sluicegate import RowBatch, send
from sluicegate._core.batch import Lineage
from sluicegate.objects import ObjectSink

url, config, seed, begin, end = sys.argv[1], json.loads(sys.argv[2]), *map(int, sys.argv[3:])
chance = random.Random(seed)

async def main():
    async with ObjectSink(url, config=config, compression="gzip", partition_by=["half"]) as sink:
        for number in range(begin, end):
            items = [{"batch": number, "n": n, "half": n % 2} for n in range(20)]
            batch = RowBatch(items, lineage=Lineage(id=f"batch-{number}"))
            write = asyncio.ensure_future(send(sink, batch))
            if chance.random() < 0.1:
                await asyncio.wait([write], timeout=chance.random() * 0.02)
                os.kill(os.getpid(), signal.SIGKILL)
            assert await write == {}
            print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 20))]
)
def test_kills_lose_nothing_and_repeat_nothing(bucket: Bucket, seed: int) -> None:
    """batcher/B28: killed before, during and after uploads. Each reported batch is stored once;
    interrupted ones are written again under the same id, as a source does, and replace their
    earlier objects.
    """
    told, kills = -1, 0
    while told < BATCHES - 1:
        settings = [bucket.url, json.dumps(bucket.config)]
        numbers = [seed * 1000 + kills, told + 1, BATCHES]
        done = subprocess.run(
            [sys.executable, "-c", WRITER, *settings, *map(str, numbers)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode in {0, -signal.SIGKILL}
        kills += done.returncode != 0
        told = max([told, *map(int, done.stdout.split())])
    found = [(item["batch"], item["n"]) for item in items_in(bucket.objects())]
    assert sorted(found) == [(batch, n) for batch in range(BATCHES) for n in range(20)]
    assert kills


@pytest.mark.long
async def test_a_server_that_is_killed_has_what_it_confirmed(real_clock: LoopClock) -> None:
    """MinIO is killed three times while four workers write. (The others keep objects in memory, at
    least for some seconds.)
    """
    items = [{"n": n} for n in range(400)]
    with there_or_skip("minio", object_server("minio")) as server:
        bucket = Bucket(server, "bucket")
        sink = stack(
            ObjectSink(bucket.url, config=bucket.config, timeout=5.0),
            Retry(attempts=50, backoff=Backoff(longest=0.2)),
        )
        async with Batcher(sink, limits=Limits(max_items=5, workers=4)) as batcher:
            receipts = [await batcher.submit(each) for each in items]
            for number in (50, 150, 250):
                await receipts[number]
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            outcomes = [await each for each in receipts]
        assert {each.value for each in outcomes} == {"delivered"}
        assert sorted(items_in(bucket.objects()), key=lambda item: item["n"]) == items
