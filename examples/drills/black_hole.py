"""A black hole: the server accepts connections and never answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .drill import stored

if TYPE_CHECKING:
    from .drill import Drill

ALERTS = {"BatcherDestinationUnavailable": 7, "BatcherOutage": 9}


async def run(drill: Drill) -> set[int]:
    async with drill.table():
        pass
    async with drill.service(drill.sink()) as batcher:
        await drill.incident(
            batcher,
            lambda: asyncio.to_thread(drill.server.pause),
            lambda: asyncio.to_thread(drill.server.resume),
            "repair the network, or restart the server; the service needs no restart",
        )
    return drill.end(await stored(drill))
