"""The demo's scene on tenants: one carrier floods the batcher, small ones send single flights.

It runs twice, with one queue for all and with each carrier as a tenant, to compare the waiting
times of the small carriers.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import asyncpg

from sluicegate import Batcher, Limits, Observer, Retry, Timeout, stack
from sluicegate.postgres import PostgresSink

from .flights import NAMES
from .proof import CONNECT_SECONDS, Finding

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from sluicegate import Batch

    from .flights import Flight

WORKERS = 2
BATCH = 50
"""Items per batch: few, so that the flood takes a while."""
QUIET = 5
"""Number of quiet carriers."""
EACH = 40
"""Flights of each quiet carrier."""
PAUSE = 0.02
"""Seconds between two flights of a quiet carrier."""
NOISY = 40_000
"""Maximum number of flights that the largest carrier sends at once."""

Item = tuple[str, int]
"""A carrier, and a flight's line in the file."""


class _Mixed(Observer):
    """Counts batches of several carriers."""

    def __init__(self) -> None:
        self.batches = 0

    def on_flushed(self, batch: Batch[Any], seconds: float, errors: object) -> None:
        self.batches += len({item[0] for item in batch}) > 1


class TenantsScene:
    """One run of the scene, in its own schema."""

    def __init__(self, dsn: str, schema: str, flights: Iterable[Flight]) -> None:
        self._dsn = dsn
        self._schema = schema
        self._noisy, self._quiet = _shares(flights)
        self.waits: dict[str, float] = {}
        """99th percentile of a quiet carrier's wait in seconds, with one queue and with tenants."""

    async def play(self) -> list[Finding]:
        """Write both ways, and prove the result."""
        expected = len(self._noisy) + sum(map(len, self._quiet))
        findings: list[Finding] = []
        for way in ("one queue", "tenants"):
            mixed = _Mixed()
            found = await self._write(way, mixed)
            findings.append(Finding(f"{way}: flights, each once", (expected, expected), found))
        findings.append(Finding("batches of several carriers, with tenants", 0, mixed.batches))
        return findings

    async def _write(self, way: str, mixed: _Mixed) -> tuple[int, int]:
        con = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS)
        try:
            table = f"{self._schema}.by_carrier"
            await con.execute(
                f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (carrier text NOT NULL, "
                "line bigint NOT NULL)"
            )
            sink = stack(
                PostgresSink(
                    self._dsn,
                    table="by_carrier",
                    schema=self._schema,
                    columns=("carrier", "line"),
                    pool_size=WORKERS,
                ),
                Timeout(10.0),
                Retry(),
            )
            limits = Limits(
                max_items=BATCH, workers=WORKERS, max_delay=0.01, max_pending_items=100_000
            )
            tenant = _carrier if way == "tenants" else None
            async with Batcher(
                sink, tenant=tenant, limits=limits, name=way, observers=[mixed]
            ) as batcher:
                self.waits[way] = await _send(batcher, self._noisy, self._quiet)
            found = await con.fetchrow(f"SELECT count(*), count(DISTINCT line) FROM {table}")
            return (0, 0) if found is None else (found[0], found[1])
        finally:
            con.terminate()


def _carrier(item: Item) -> str:
    return item[0]


async def _send(batcher: Batcher[Item], noisy: list[Item], quiet: list[list[Item]]) -> float:
    """Send the flood and the quiet flights; return the 99th percentile of the quiet ones' wait."""
    waits: list[float] = []

    async def one(item: Item) -> None:
        began = time.monotonic()
        await batcher.deliver(item)
        waits.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as group:
        group.create_task(batcher.add_from(noisy))
        for number in range(max(map(len, quiet), default=0)):
            for items in quiet:
                if number < len(items):
                    group.create_task(one(items[number]))
            await asyncio.sleep(PAUSE)
    return statistics.quantiles(waits, n=100)[98] if len(waits) > 1 else sum(waits)


def _shares(flights: Iterable[Flight]) -> tuple[list[Item], list[list[Item]]]:
    """Select flights of the largest carrier, and some of each of the smallest ones."""
    carrier, line = NAMES.index("carrier"), NAMES.index("line")
    by_carrier: defaultdict[str, list[Item]] = defaultdict(list)
    for each in flights:
        name, place = each[carrier], each[line]
        if isinstance(name, str) and isinstance(place, int) and place > 0:
            by_carrier[name].append((name, place))
    counts = Counter({name: len(items) for name, items in by_carrier.items()})
    largest, *others = [name for name, _ in counts.most_common()] or [""]
    return by_carrier[largest][:NOISY], [by_carrier[name][:EACH] for name in others[-QUIET:]]
