"""A full disk: the file of events cannot grow. A limit of the process stands in for the disk."""

from __future__ import annotations

import json
import resource
from typing import TYPE_CHECKING

from sluicegate import Limits
from sluicegate.files import FileSink

if TYPE_CHECKING:
    from .drill import Drill

ALERTS = {"BatcherDestinationRefuses": 4, "BatcherOutage": 8}


async def run(drill: Drill) -> set[int]:
    file = drill.folder / "events.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, before[1]))

    async def free() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    async with drill.service(
        FileSink(file), Limits(max_items=100, max_pending_items=2000)
    ) as batcher:
        try:
            await drill.incident(batcher, fill, free, "free space, or extend the file system")
        finally:
            await free()
    return drill.end(json.loads(line)["id"] for line in file.read_text().splitlines())
