"""A slow destination: each write takes a second longer, since a trigger was added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluicegate import Limits

from .drill import stored

if TYPE_CHECKING:
    from .drill import Drill

ALERTS = {"BatcherQueueFilling": 10}
BUSY = """\
SELECT now() - query_start AS since, wait_event_type, wait_event, left(query, 60) AS query
FROM pg_stat_activity WHERE application_name = 'audit' AND state = 'active'
"""


async def run(drill: Drill) -> set[int]:
    limits = Limits(max_items=20, workers=2, max_pending_items=1000)
    async with drill.table() as con:

        async def slow_down() -> None:
            await con.execute(f"""
                CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
                AS 'BEGIN PERFORM pg_sleep({drill.limit(1.0)}); RETURN NULL; END';
                CREATE TRIGGER slow AFTER INSERT ON events EXECUTE FUNCTION slow()
            """)
            await drill.burst(batcher, 500)

        async def repair() -> None:
            for row in await con.fetch(BUSY):
                drill.show(f"pg_stat_activity: {dict(row)}")
            await con.execute("DROP TRIGGER slow ON events")

        async with drill.service(drill.sink(), limits) as batcher:
            await drill.incident(batcher, slow_down, repair, "drop the trigger")
        return drill.end(await stored(drill))
