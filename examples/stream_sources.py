"""Sources of streams in PostgreSQL: the start point, the selection, and the division of work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sluicegate import Consumer, Message
from sluicegate.postgres import PostgresAdvisoryLocks, PostgresStreamSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sluicegate.consumer import DrainReport


def where_to_begin(dsn: str) -> list[PostgresStreamSource]:
    # --8<-- [start:start]
    everything = PostgresStreamSource(dsn, subscription="mails")
    only_new = PostgresStreamSource(dsn, subscription="alerts", start="next")
    yesterday = datetime.now(UTC) - timedelta(days=1)
    recent = PostgresStreamSource(dsn, subscription="report", start=yesterday)
    # --8<-- [end:start]
    return [everything, only_new, recent]


def what_to_read(dsn: str) -> list[PostgresStreamSource]:
    # --8<-- [start:filter]
    category = PostgresStreamSource(dsn, subscription="mails", category="order")
    wildcard = PostgresStreamSource(dsn, subscription="german", streams="order-de-*")
    several = PostgresStreamSource(dsn, subscription="two", streams=["order-17", "account-*"])
    # --8<-- [end:filter]
    return [category, wildcard, several]


def how_to_divide(dsn: str) -> list[PostgresStreamSource]:
    # --8<-- [start:instances]
    evenly = PostgresStreamSource(dsn, subscription="mails", lease=10.0)
    in_turns = PostgresStreamSource(
        dsn,
        subscription="thumbnails",
        locks=PostgresAdvisoryLocks(dsn),
        slots_at_once=64,
        hold=5.0,
    )
    # --8<-- [end:instances]
    return [evenly, in_turns]


async def for_a_minute(dsn: str, send: Callable[[Message], Awaitable[None]]) -> DrainReport:
    # --8<-- [start:budget]
    mails = PostgresStreamSource(dsn, subscription="mails", category="order", ends=True)
    report = await Consumer(mails, name="mails", budget=60.0).run(send)
    if report.work_remaining:
        print("more to do: run me again soon")
    # --8<-- [end:budget]
    return report
