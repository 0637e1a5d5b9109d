"""A source of one log, read by the test's own host. White box: the slot of a stream."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.postgres.access_help import access_from

from sluicegate.consumer import Position
from sluicegate.postgres import PostgresStreamSource
from sluicegate.postgres.streams.selection import slot_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.postgres.streams.log_help import Log

    from sluicegate.consumer import Fetched, Source
    from sluicegate.testing.conformance.source.subject import HeldClaim, RecordingHost

LONG = 60.0
"""Seconds that no test waits for."""
WITHIN = 45.0


def source_of(log: Log, **options: Any) -> PostgresStreamSource:
    """A source of the subscription `s`."""
    given: dict[str, Any] = {
        "subscription": "s",
        "poll": 0.02,
        "lease": LONG,
        "close_timeout": 20.0,
        **options,
    }
    return PostgresStreamSource(access_from(log.dsn, given), schema=log.schema, **given)


async def read(source: Source, host: RecordingHost) -> dict[int, list[int]] | None:
    """The positions of the next records, by slot; `None` at the end of the source."""
    found = await _fetched(source, host)
    if found is None:
        return None
    return {
        each.claim.partition.partition: [record.offset for record in each.records] for each in found
    }


async def _fetched(source: Source, host: RecordingHost) -> Sequence[Fetched] | None:
    """Fetch from all claims, including those that begin meanwhile."""
    while True:
        claims = host.open
        fetching = asyncio.create_task(source.fetch(claims, 1000))
        changed = asyncio.create_task(host.news.wait_for(partial(_differ, host, claims)))
        try:
            await asyncio.wait({fetching, changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            fetching.cancel()
            await asyncio.wait({fetching, changed})
        if not fetching.cancelled():
            return fetching.result()


def _differ(host: RecordingHost, claims: list[HeldClaim]) -> bool:
    return host.open != claims


async def positions(source: Source, host: RecordingHost) -> list[int]:
    """The positions of the next records; none at the end of the source."""
    found = await read(source, host)
    return sorted(position for each in (found or {}).values() for position in each)


async def until_the_end(source: Source, host: RecordingHost) -> list[int]:
    """The positions of all records of a source that ends; each claim's position is stored."""
    all_of_them: list[int] = []
    while (found := await read(source, host)) is not None:
        all_of_them += [position for each in found.values() for position in each]
        done = {slot: each[-1] + 1 for slot, each in found.items() if each}
        claims = {each.partition.partition: each for each in host.open}
        await source.commit({claims[slot]: Position(at) for slot, at in done.items()})
    return sorted(all_of_them)


def claim_on(host: RecordingHost, stream: str) -> HeldClaim:
    """The open claim of the slot of a stream."""
    (claim,) = [each for each in host.open if each.partition.partition == slot_of(stream)]
    return claim
