"""A refusal: the right to insert is revoked in a migration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .drill import stored

if TYPE_CHECKING:
    from .drill import Drill

ALERTS = {"BatcherDestinationRefuses": 4, "BatcherOutage": 8}


async def run(drill: Drill) -> set[int]:
    async with drill.table() as con:
        async with drill.service(drill.sink()) as batcher:
            await drill.incident(
                batcher,
                lambda: con.execute("REVOKE INSERT ON events FROM app"),
                lambda: con.execute("GRANT INSERT ON events TO app"),
                "the statement after `to repair:`",
            )
        return drill.end(await stored(drill))
