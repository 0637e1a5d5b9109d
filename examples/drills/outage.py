"""An outage: the server is down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .drill import stored

if TYPE_CHECKING:
    from .drill import Drill

ALERTS = {"BatcherDestinationUnavailable": 5, "BatcherOutage": 8}


async def run(drill: Drill) -> set[int]:
    async with drill.table():
        pass
    async with drill.service(drill.sink()) as batcher:
        await drill.incident(
            batcher,
            lambda: asyncio.to_thread(drill.server.stop),
            lambda: asyncio.to_thread(drill.server.start),
            "start the server; the service needs no restart",
        )
    return drill.end(await stored(drill))
