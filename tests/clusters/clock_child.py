"""A program whose wall clock is moved by hours while it runs: `python -m ... HOURS`.

Prints the seconds that waits took. Needs the environment of
`moved_clock`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.clusters.postgres_parts import CLOCK

from sluicegate import Batcher, Limits, Retry, Timeout, stack
from sluicegate.sinks import RateLimit


def move(hours: float) -> None:
    file = Path(os.environ["FAKETIME_TIMESTAMP_FILE"])
    new = file.with_suffix(".child")
    new.write_text(f"{hours * 3600:+.0f}\n")
    new.replace(file)


async def waits(hours: float) -> dict[str, float]:
    """The seconds of waits during each of which the clock is moved."""
    began: dict[str, float] = {}
    tries = 0

    async def hang_once(batch: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            move(hours)
            await CLOCK.sleep(60.0)

    limited = Batcher(
        stack(hang_once, Timeout(0.5), Retry(attempts=3)),
        limits=Limits(max_items=10, max_delay=0.1),
    )
    before = CLOCK.now()
    async with limited as batcher:
        await batcher.deliver(1)
    began["timeout"] = CLOCK.now() - before

    async def take(batch: Any) -> None:
        move(-hours)

    before = CLOCK.now()
    limits = Limits(max_items=5)
    sink = stack(take, RateLimit(items_per_second=20, burst=5))
    async with Batcher(sink, limits=limits) as batcher:
        for number in range(20):
            await batcher.add(number)
    began["rate"] = CLOCK.now() - before
    return began


async def main(hours: float) -> None:
    before = time.time()
    found = {"waits": await waits(hours)}
    move(0)
    print(json.dumps({**found, "moved": time.time() - before}))  # noqa: T201  # its answer


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
