"""The demo's scene on order: every aircraft's history, written by eight workers despite refusals.

1. A spoiled flight stops only its own aircraft: later flights are parked until the aircraft is
   unparked at the end.
2. The table numbers its rows as they are written, so it records the order itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import asyncpg

from sluicegate import Batcher, DeadLetter, Limits, Retry, Timeout, stack
from sluicegate.postgres import PostgresSink
from sluicegate.sinks import MemorySink

from .flights import NAMES
from .proof import CONNECT_SECONDS, Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .flights import Flight

WORKERS = 8
FLIGHTS = 60_000
STOPPED = 3
"""Number of aircraft with a refused flight."""
_TABLE = """
CREATE TABLE {schema}.history (written bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tailnum text NOT NULL, number integer NOT NULL,
    flight integer NOT NULL CHECK (flight > 0))
"""
_TURNED = """
SELECT count(*) FROM (SELECT number - lag(number) OVER (PARTITION BY tailnum ORDER BY written) AS step FROM {schema}.history) AS steps
WHERE step <= 0
"""

Leg = tuple[str, int, int]
"""An aircraft, the flight's position in its history, and the flight's number."""


class OrderScene:
    """One run of the scene, in its own schema."""

    def __init__(self, dsn: str, schema: str, flights: Iterable[Flight]) -> None:
        self._dsn = dsn
        self._schema = schema
        self._legs, self._refused = _spoil(_legs(flights))
        self.parked = 0
        """Number of flights that were parked behind a refused one."""

    async def play(self) -> list[Finding]:
        """Write, unpark, and prove the result."""
        con = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS)
        try:
            await con.execute(_TABLE.format(schema=self._schema))
            behind = await self._write(con)
            return [
                *behind,
                Finding(
                    "flights in the histories",
                    len(self._legs) - len(self._refused),
                    await self._ask(con, "count(*)"),
                ),
                Finding(
                    "flights written after a later one of their aircraft",
                    0,
                    await con.fetchval(_TURNED.format(schema=self._schema)),
                ),
            ]
        finally:
            con.terminate()

    async def _write(self, con: asyncpg.Connection[asyncpg.Record]) -> list[Finding]:
        table = PostgresSink(
            self._dsn,
            table="history",
            schema=self._schema,
            columns=("tailnum", "number", "flight"),
            pool_size=WORKERS,
        )
        letters: MemorySink[object] = MemorySink()
        sink = stack(table, Timeout(10.0), Retry(), DeadLetter(letters))
        async with Batcher(
            sink,
            key=lambda leg: leg[0],
            on_key_failure="park",
            limits=Limits(workers=WORKERS),
            name="histories",
        ) as batcher:
            for leg in self._legs:
                await batcher.add(leg)
            await batcher.flush()
            self.parked = batcher.stats().held_items
            passed = sum(
                [
                    await self._ask(con, "count(*)", tailnum, number)
                    for tailnum, number in self._refused.items()
                ]
            )
            behind = sum(
                number > self._refused.get(tailnum, number) for tailnum, number, _ in self._legs
            )
            for tailnum in self._refused:
                batcher.unpark(tailnum)
            await batcher.flush()
        return [
            Finding(
                "refused flights among the dead letters", len(self._refused), len(letters.items)
            ),
            Finding("flights written past a refused one of their aircraft", 0, passed),
            Finding("flights parked behind a refused one", behind, self.parked),
        ]

    async def _ask(
        self,
        con: asyncpg.Connection[asyncpg.Record],
        what: str,
        tailnum: str | None = None,
        after: int = 0,
    ) -> int:
        query = (
            f"SELECT {what} FROM {self._schema}.history WHERE $1::text IS NULL OR (tailnum "
            "= $1 AND number > $2)"
        )
        return int(await con.fetchval(query, tailnum, after))


def _legs(flights: Iterable[Flight]) -> list[Leg]:
    tailnum, flight, line = (NAMES.index(name) for name in ("tailnum", "flight", "line"))
    seen: Counter[str] = Counter()
    found: list[Leg] = []
    for each in flights:
        aircraft, number = each[tailnum], each[flight]
        if isinstance(aircraft, str) and isinstance(number, int) and str(each[line])[0] != "-":
            seen[aircraft] += 1
            found.append((aircraft, seen[aircraft], number))
            if len(found) == FLIGHTS:
                break
    return found


def _spoil(legs: list[Leg]) -> tuple[list[Leg], dict[str, int]]:
    """Spoil a flight in the middle of each of the busiest histories; return legs and positions."""
    busiest = Counter(tailnum for tailnum, _, _ in legs).most_common(STOPPED)
    refused = {tailnum: max(1, count // 2) for tailnum, count in busiest}
    return [
        (tailnum, number, -flight if refused.get(tailnum) == number else flight)
        for tailnum, number, flight in legs
    ], refused
