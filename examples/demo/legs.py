"""Flights as legs of their aircraft: created, stored as they arrive, and proven by SQL.

1. The table numbers its rows as they arrive, and keeps the first arrival of a repeated row. So it
   records the order across all consumers, and counts the repetitions.
2. The proof compares the legs with the flights that the first scene has proven to be in the same
   database.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .flights import NAMES
from .proof import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from asyncpg import Connection, Record

    from .flights import Flight

LEG = ("line", "tailnum", "number", "flight", "origin", "dest")
"""The fields of a leg; `number` is its position in the aircraft's history, from 1."""
_TABLES = """
DROP TABLE IF EXISTS {schema}.legs, {schema}.leg_letters;
CREATE TABLE {schema}.legs (line bigint PRIMARY KEY CHECK (line > 0), tailnum text NOT NULL, number integer NOT NULL, flight integer NOT NULL,
    origin text NOT NULL, dest text NOT NULL, consumer text NOT NULL, arrived bigint GENERATED ALWAYS AS IDENTITY, repeated integer NOT NULL DEFAULT 0);
CREATE OR REPLACE FUNCTION {schema}.keep_first() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    OLD.repeated := OLD.repeated + 1;
    RETURN OLD;
END $$;
CREATE TRIGGER keep_first BEFORE UPDATE ON {schema}.legs FOR EACH ROW EXECUTE FUNCTION {schema}.keep_first();
CREATE TABLE {schema}.leg_letters (line bigint PRIMARY KEY, tailnum text NOT NULL, why text NOT NULL);
"""
_STORED = "SELECT (SELECT count(*) FROM {schema}.legs), (SELECT count(*) FROM {schema}.leg_letters)"
_PRODUCED = (
    "SELECT line, tailnum, flight, origin, dest FROM {schema}.flights WHERE tailnum IS NOT "
    "NULL AND line <= $1"
)
_ARRIVED = "SELECT line, tailnum, flight, origin, dest FROM {schema}.legs"
_DIFFERENT = (
    f"SELECT count(*) FROM (({_PRODUCED} EXCEPT ALL {_ARRIVED}) UNION ALL "
    f"({_ARRIVED} EXCEPT ALL {_PRODUCED})) AS rows"
)
_OUT_OF_ORDER = """
SELECT count(*) FROM (SELECT number - lag(number, 1, 0) OVER (PARTITION BY tailnum ORDER BY arrived) AS step FROM {schema}.legs) AS steps
WHERE step <> 1
"""
_LETTERS = "SELECT coalesce(array_agg(line), '{{}}') FROM {schema}.leg_letters"
_REPEATED = "SELECT coalesce(sum(repeated), 0), count(DISTINCT consumer) FROM {schema}.legs"

Leg = dict[str, Any]
"""The fields by name; a spoiled leg has a negative line, and no position of its own."""


def legs_of(flights: Iterable[Flight]) -> Iterator[Leg]:
    """Make legs of the flights with an aircraft, including spoiled ones."""
    places = {name: NAMES.index(name) for name in LEG if name in NAMES}
    seen: Counter[str] = Counter()
    for flight in flights:
        leg: Leg = {name: flight[place] for name, place in places.items()}
        if leg["tailnum"] is not None:
            seen[leg["tailnum"]] += leg["line"] > 0
            yield {**leg, "number": seen[leg["tailnum"]]}


def tailnum_of(leg: Leg) -> str:
    """Return the aircraft, which is the key."""
    tailnum: str = leg["tailnum"]
    return tailnum


def as_value(leg: Leg) -> str:
    """Encode a leg as JSON, every second spoiled one as invalid JSON."""
    return (
        f"{leg['line']} is not a flight" if leg["line"] < 0 and leg["line"] % 2 else json.dumps(leg)
    )


async def create_legs(connection: Connection[Record], schema: str) -> None:
    """Create the tables of legs and of their dead letters; drop those of an earlier scene."""
    await connection.execute(_TABLES.format(schema=schema))


async def count_stored(connection: Connection[Record], schema: str) -> tuple[int, int]:
    """Count the stored legs and the dead letters."""
    return await _two(connection, _STORED.format(schema=schema))


@dataclass(frozen=True, slots=True)
class ProvenLegs:
    """The findings from the tables."""

    findings: list[Finding]
    repeated: int
    """Number of writes of legs that were already stored."""
    consumers: int
    """Number of consumers that have stored a leg."""


async def prove_legs(connection: Connection[Record], schema: str, legs: list[Leg]) -> ProvenLegs:
    """Compare the tables with the legs that were produced."""

    async def ask(query: str, *arguments: object) -> Any:
        return await connection.fetchval(query.format(schema=schema), *arguments)

    spoiled = {leg["line"] for leg in legs if leg["line"] < 0}
    last = max((leg["line"] for leg in legs), default=0)
    stored, _ = await count_stored(connection, schema)
    letters = set(await ask(_LETTERS))
    findings = [
        Finding("flights stored", len(legs) - len(spoiled), stored),
        Finding("flights missing, changed or stored twice", 0, await ask(_DIFFERENT, last)),
        Finding("flights out of their aircraft's order", 0, await ask(_OUT_OF_ORDER)),
        Finding("spoiled records among the dead letters", len(spoiled), len(spoiled & letters)),
        Finding("other records among the dead letters", 0, len(letters - spoiled)),
    ]
    return ProvenLegs(findings, *await _two(connection, _REPEATED.format(schema=schema)))


async def _two(connection: Connection[Record], query: str) -> tuple[int, int]:
    row = await connection.fetchrow(query)
    assert row is not None
    return row[0], row[1]
