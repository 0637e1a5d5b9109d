"""The tables of the scene on the queue, and the proof by SQL that the flights were handled.

1. A worker inserts a row each time it handles a flight, and changes none. So the rows are numbered
   in the order of handling, and a flight that was handled again has several rows.
2. The sequence also advances for rows that are rolled back, and never goes back. So the gaps in it
   count the rolled-back flights, which leave no other trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .proof import Finding

if TYPE_CHECKING:
    from asyncpg import Connection, Record

_TABLES = """
CREATE TABLE {schema}.flight (line bigint PRIMARY KEY, tailnum text NOT NULL, number integer NOT NULL, inserted bigint GENERATED ALWAYS AS IDENTITY);
CREATE TABLE {schema}.handled (handled bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, line bigint NOT NULL CHECK (line > 0),
    tailnum text NOT NULL, number integer NOT NULL, worker text NOT NULL);
"""
_DEAD = (
    "SELECT (payload->>'line')::bigint AS line FROM {queues}.finished_job WHERE outcome = 'dead'"
)
_ENDED = f"SELECT line FROM {{schema}}.handled UNION ALL ({_DEAD})"
_LEFT = "(SELECT count(*) FROM {queues}.job), (SELECT count(*) FROM {queues}.lane), (SELECT count(*) FROM {queues}.bell)"
_COUNTED = (
    "SELECT count(DISTINCT line), count(*) - count(DISTINCT line), "
    f"(SELECT count(*) FROM ({_DEAD}) AS dead), {_LEFT} FROM {{schema}}.handled"
)
_COMMITTED = "SELECT count(*), count(*) FILTER (WHERE line < 0) FROM {schema}.flight"
_ROLLED_BACK = """
SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('{schema}.flight', 'inserted')::regclass), 0) - count(*)
FROM {schema}.flight
"""
_LOST = f"SELECT count(*) FROM (SELECT line FROM {{schema}}.flight EXCEPT ({_ENDED})) AS lost"
_UNCOMMITTED = (
    f"SELECT count(*) FROM (({_ENDED}) EXCEPT SELECT line FROM {{schema}}.flight) AS others"
)
_OUT_OF_ORDER = """
SELECT count(*) FROM (
    SELECT number - lag(number) OVER (PARTITION BY tailnum ORDER BY first) AS step
    FROM (SELECT tailnum, number, min(handled) AS first FROM {schema}.handled GROUP BY tailnum, number) AS firsts
) AS steps WHERE step <= 0
"""
_LETTERS = f"SELECT count(*) FILTER (WHERE line < 0), count(*) FILTER (WHERE line > 0) FROM ({_DEAD}) AS dead"
_WORKERS = "SELECT count(DISTINCT worker) FROM {schema}.handled"


class QueueCounts(NamedTuple):
    """The current counts of the tables."""

    handled: int = 0
    repeated: int = 0
    """Number of times that a flight was handled again."""
    dead: int = 0
    jobs: int = 0
    keys: int = 0
    bells: int = 0

    @property
    def ended(self) -> int:
        """Number of flights that are handled or dead letters."""
        return self.handled + self.dead


@dataclass(frozen=True, slots=True)
class Planned:
    """The numbers of flights that were enqueued."""

    committed: int
    rolled_back: int
    spoiled: int
    """Number of spoiled flights among the committed ones."""


@dataclass(frozen=True, slots=True)
class QueueTables:
    """The tables of a run, on a separate connection."""

    connection: Connection[Record]
    schema: str
    queues: str

    async def create(self) -> None:
        """Create the tables of flights and of handled flights."""
        await self.connection.execute(_TABLES.format(schema=self.schema))

    async def count(self) -> QueueCounts:
        """Count the rows of the tables."""
        return QueueCounts(*await self._row(_COUNTED))

    async def workers(self) -> int:
        """The number of workers that have handled a flight."""
        return int((await self._row(_WORKERS))[0])

    async def prove(self, planned: Planned) -> list[Finding]:
        """Compare the tables with the flights that were enqueued."""

        async def ask(query: str) -> Any:
            return (await self._row(query))[0]

        committed, spoiled = await self._row(_COMMITTED)
        return [
            Finding("flights committed together with their jobs", planned.committed, committed),
            Finding(
                "flights rolled back together with their jobs",
                planned.rolled_back,
                await ask(_ROLLED_BACK),
            ),
            Finding("committed flights whose job was lost", 0, await ask(_LOST)),
            Finding("flights handled without being committed", 0, await ask(_UNCOMMITTED)),
            Finding("flights handled out of their aircraft's order", 0, await ask(_OUT_OF_ORDER)),
            Finding("spoiled flights committed", planned.spoiled, spoiled),
            Finding(
                "dead letters of the queue: spoiled flights, others",
                (spoiled, 0),
                await self._row(_LETTERS),
            ),
            Finding(
                "jobs, keys and bells left in the queue",
                (0, 0, 0),
                await self._row(f"SELECT {_LEFT}"),
            ),
        ]

    async def _row(self, query: str) -> tuple[Any, ...]:
        row = await self.connection.fetchrow(query.format(schema=self.schema, queues=self.queues))
        return () if row is None else tuple(row)
