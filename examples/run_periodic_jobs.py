"""Periodic jobs: schedules in the database, which the consumers of their queue fire."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import TYPE_CHECKING

from sluicegate import Consumer
from sluicegate.postgres import PostgresQueueSource, QueueAdmin, install_streams
from sluicegate.testing import embedded_postgres

if TYPE_CHECKING:
    from sluicegate import Message


async def schedule(dsn: str) -> None:
    async with QueueAdmin(dsn) as admin:
        await admin.create("reports")  # as `sluicegate queue create` does
        schedules = await admin.schedules("reports")
        await schedules.put("beat", every=1, key="beat", payload={"report": "health"})
        await schedules.put(
            "nightly",
            cron="30 2 * * *",
            timezone="Europe/Berlin",
            payload={"report": "sales"},
        )
        await schedules.run_now("nightly")  # beside its ticks


async def main(dsn: str) -> None:
    await install_streams(dsn)  # once per database, as `sluicegate pg install` does
    await schedule(dsn)

    sources = [PostgresQueueSource(dsn, queue="reports") for _ in range(3)]  # as three processes
    consumers = [Consumer(source, name=f"reports-{n}") for n, source in enumerate(sources)]
    beats: list[datetime] = []

    async def report(message: Message) -> None:
        if message.header("schedule") == "nightly":
            print(json.loads(message.value))
            return
        beats.append(datetime.fromisoformat(message.header("scheduled_for") or ""))
        if len(beats) == 4:
            for each in consumers:
                each.stop()

    await asyncio.gather(*[each.run(report) for each in consumers])
    print([(beat - beats[0]).seconds for beat in beats[:4]])


if __name__ == "__main__":
    with embedded_postgres() as server:
        asyncio.run(main(server.dsn))
