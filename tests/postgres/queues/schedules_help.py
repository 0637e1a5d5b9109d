"""A queue with schedules, whose server's clock the tests set.

White box: the function that schedules take the time from.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.postgres.access_help import access_from

from sluicegate import Consumer
from sluicegate.postgres import PostgresQueueSource, QueueAdmin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message
    from sluicegate.postgres.queues.schedules import ScheduleAdmin

WITHIN = 30.0
CLOCK = """
CREATE TABLE {s}.clock AS SELECT {now} AS now;
CREATE OR REPLACE FUNCTION {s}.schedule_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT now FROM {s}.clock';
GRANT SELECT ON {s}.clock TO PUBLIC;
"""


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@dataclass
class Scheduled:
    """The queue `q`."""

    log: Log
    con: Any
    admin: QueueAdmin
    schedules: ScheduleAdmin

    async def set_clock(self, text: str) -> None:
        """Set the clock of schedules, in UTC."""
        await self.con.execute(f"UPDATE {self.log.sql}.clock SET now = $1", at(text))

    async def fired(self) -> list[str]:
        """The ticks of all jobs of the queue, in their order."""
        rows = await self.con.fetch(
            f"SELECT place, headers ->> 'scheduled_for' AS tick FROM {self.log.sql}.job "
            f"UNION ALL SELECT place, headers ->> 'scheduled_for' FROM {self.log.sql}.finished_job "
            "ORDER BY place"
        )
        return [row["tick"].removesuffix(":00Z") for row in rows]

    @asynccontextmanager
    async def consumer(self, **options: Any) -> AsyncGenerator[asyncio.Queue[Message]]:
        """A consumer while in the context, and the messages that it handles."""
        handled = asyncio.Queue[Any]()

        async def handle(message: Message) -> None:
            handled.put_nowait(message)

        settings: dict[str, Any] = {"schema": self.log.schema, "poll": 0.02, **options}
        dsn = settings.pop("dsn", self.log.dsn)
        source = PostgresQueueSource(access_from(dsn, settings), queue="q", **settings)
        async with Consumer(source, name="test") as consumer:
            task = asyncio.create_task(consumer.run(handle))
            try:
                yield handled
            finally:
                consumer.stop()
                await task


@asynccontextmanager
async def scheduled(
    log: Log, now: str = "2026-01-01T00:00", **settings: Any
) -> AsyncGenerator[Scheduled]:
    """A new queue; at this time in UTC."""
    async with (
        asyncio.timeout(WITHIN),
        log.connected() as con,
        QueueAdmin(log.dsn, schema=log.schema) as admin,
    ):
        await con.execute(CLOCK.format(s=log.sql, now=f"'{now}Z'::timestamptz"))
        await admin.create("q", keep_done=60, **settings)
        yield Scheduled(log, con, admin, await admin.schedules("q"))


def headers_of(message: Message) -> dict[str, str]:
    return {name: value.decode() for name, value in message.headers}


def value_of(message: Message) -> Any:
    return json.loads(message.value)
