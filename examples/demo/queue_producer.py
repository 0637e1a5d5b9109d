"""Flights and their jobs for the scene on the queue, inserted in the user's own transactions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from .queue_proof import Planned
from .queue_worker import QUEUE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpg import Connection, Record

    from .legs import Leg
    from .queue_worker import QueuePlace

PRODUCERS = 2
TOGETHER = 40
"""Flights per transaction."""
ROLLED_BACK = 10
"""One transaction in this many is rolled back."""
_FLIGHTS = """
INSERT INTO {schema}.flight (line, tailnum, number) SELECT * FROM unnest($1::bigint[], $2::text[], $3::int[])
"""
_JOBS = f"""
INSERT INTO {{queues}}.job (queue, key, payload)
SELECT '{QUEUE}', tailnum, jsonb_build_object('line', line, 'tailnum', tailnum, 'number', number)
FROM unnest($1::bigint[], $2::text[], $3::int[]) AS flight (line, tailnum, number)
"""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The flights of a transaction."""

    legs: list[Leg]
    commits: bool
    """Whether it is committed; otherwise it is rolled back."""


def shares_of(legs: Iterable[Leg]) -> list[list[Bundle]]:
    """Divide the flights into transactions of each producer. A producer has its own aircraft, so
    their flights are enqueued in order although the producers' transactions overlap.
    """
    shares: defaultdict[int, list[Leg]] = defaultdict(list)
    for leg in legs:
        shares[crc32(leg["tailnum"].encode()) % PRODUCERS].append(leg)
    return [
        [
            Bundle(share[at : at + TOGETHER], (at // TOGETHER + 1) % ROLLED_BACK != 0)
            for at in range(0, len(share), TOGETHER)
        ]
        for share in shares.values()
    ]


def planned(shares: list[list[Bundle]]) -> Planned:
    """Count the flights that are enqueued, rolled back and spoiled."""
    bundles = [each for share in shares for each in share]
    committed = [leg for each in bundles if each.commits for leg in each.legs]
    return Planned(
        committed=len(committed),
        rolled_back=sum(len(each.legs) for each in bundles if not each.commits),
        spoiled=sum(leg["line"] < 0 for leg in committed),
    )


async def enqueue(
    connection: Connection[Record], place: QueuePlace, bundles: Iterable[Bundle]
) -> None:
    """Insert flights and their jobs, and commit both or roll both back."""
    flights = _FLIGHTS.format(schema=place.schema)
    jobs = _JOBS.format(queues=place.queues)
    for each in bundles:
        columns = [[leg[name] for leg in each.legs] for name in ("line", "tailnum", "number")]
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(flights, *columns)
        await connection.execute(jobs, *columns)
        await (transaction.commit() if each.commits else transaction.rollback())
