"""Print the growth of this process in bytes after the client has prefetched partitions that are not
read: `python -m benchmarks.kafka.programs.held BOOTSTRAP TOPIC`.
"""

from __future__ import annotations

import asyncio
import sys

import psutil

from ...peers.task_recipe import Host
from ..ways import source_of

SETTLED = 3.0
"""Seconds after which nothing more is prefetched."""


async def grown(bootstrap: str, topic: str) -> int:
    host, process = Host(), psutil.Process()
    async with source_of(bootstrap, topic).open(host):
        before: int = process.memory_info().rss
        async with asyncio.timeout(30.0):
            await host.wait_assigned()
        await asyncio.sleep(SETTLED)
        after: int = process.memory_info().rss
        return max(0, after - before)


if __name__ == "__main__":
    print(asyncio.run(grown(sys.argv[1], sys.argv[2])))
