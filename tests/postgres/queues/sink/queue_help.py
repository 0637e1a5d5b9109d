"""A queue for one test."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.postgres.access_help import access_from

from sluicegate.postgres import PostgresQueueSink

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log


async def create_queue(log: Log, name: str = "jobs", **options: Any) -> None:
    """Create a queue with these columns."""
    columns = ["name", *options]
    places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    async with log.connected() as con:
        await con.execute(
            f"INSERT INTO {log.sql}.queue ({', '.join(columns)}) VALUES ({places})",
            name,
            *options.values(),
        )


def sink(log: Log, **options: Any) -> PostgresQueueSink:
    given: dict[str, Any] = {"dsn": log.dsn, "schema": log.schema, "queue": "jobs", **options}
    return PostgresQueueSink(access_from(given.pop("dsn"), given), **given)


def item(key: str | None, n: object, **more: Any) -> dict[str, Any]:
    return {"key": key, "n": n, **more}


class Stored(NamedTuple):
    key: str | None
    n: Any


async def stored(log: Log, queue: str = "jobs") -> list[Stored]:
    """Key and number of each job, by place."""
    async with log.connected() as con:
        rows = await con.fetch(
            f"SELECT key, payload FROM {log.sql}.job WHERE queue = $1 ORDER BY place", queue
        )
    return [Stored(row[0], json.loads(row[1])["n"]) for row in rows]
