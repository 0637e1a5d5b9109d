"""Subscriptions that consumers serve for a test, or that are only stored.

White box: a selection as it is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.postgres.access_help import access_from

from sluicegate import Consumer
from sluicegate.postgres import PostgresStreamSource
from sluicegate.postgres.streams.selection import StreamSelection

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate import Message


def served(log: Log, name: str = "s", **options: Any) -> PostgresStreamSource:
    """A source of the subscription."""
    given: dict[str, Any] = {"poll": 0.02, "close_timeout": 20.0, **options}
    return PostgresStreamSource(
        access_from(log.dsn, given), subscription=name, schema=log.schema, **given
    )


async def consumed(log: Log, name: str = "s", **options: Any) -> list[int]:
    """Serve the subscription until it has handled everything; return the handled positions,
    sorted.
    """
    found: list[int] = []

    async def handle(message: Message) -> None:
        found.append(message.offset)

    async with Consumer(served(log, name, ends=True, **options)) as consumer:
        await consumer.run(handle)
    return sorted(found)


async def stored_offsets(log: Log, con: Any, name: str = "s") -> list[int]:
    """The distinct positions of its slots, by a separate query."""
    rows = await con.fetch(
        f"SELECT DISTINCT position FROM {log.sql}.subscription_slot WHERE name = $1 ORDER BY 1",
        name,
    )
    return [row["position"] for row in rows]


async def subscribe(
    log: Log, con: Any, name: str, position: int, selection: StreamSelection | None = None
) -> None:
    """Store a subscription that has handled everything before this position."""
    text = (selection or StreamSelection()).text
    await con.execute(
        f"INSERT INTO {log.sql}.subscription (name, selection, start) VALUES ($1, $2, '')",
        name,
        text,
    )
    await con.execute(
        f"INSERT INTO {log.sql}.subscription_slot (name, slot, position) "
        "SELECT $1, slot, $2 FROM generate_series(0, 255) AS s (slot)",
        name,
        position,
    )
