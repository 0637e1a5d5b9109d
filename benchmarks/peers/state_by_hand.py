"""Counts per key that survive a crash, by hand: a dict, and an occasional transaction."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERY = 4_000
"""Number of events per transaction."""

SCHEMA = """
DROP TABLE IF EXISTS counts, counted;
CREATE TABLE counts (key text PRIMARY KEY, value json NOT NULL);
CREATE TABLE counted (position bigint NOT NULL);
INSERT INTO counted VALUES (0)
"""
UPSERT = """
INSERT INTO counts SELECT * FROM unnest($1::text[], $2::json[])
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""


async def into_postgres(con: Any, given: Sequence[Any]) -> None:
    """Count the records of each key, and store changes and position together."""
    counts = Counter[str]()
    changed = set[str]()
    for at, record in enumerate(given, start=1):
        key = record.key.decode()
        counts[key] += 1
        changed.add(key)
        if at % EVERY == 0 or at == len(given):
            async with con.transaction():
                await con.execute(
                    UPSERT, [*changed], [json.dumps(counts[each]) for each in changed]
                )
                await con.execute("UPDATE counted SET position = $1", at)
            changed.clear()


async def into_kafka(consumer: Any, producer: Any, group: str, topic: str, count: int) -> None:
    """Do the same from a topic, with the offsets in the transactions of a producer."""
    counts = Counter[str]()
    done = 0
    while done < count:
        changed, offsets = set[str](), {}
        inside = 0
        while inside < EVERY and done + inside < count:
            for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                for record in records:
                    key = record.key.decode()
                    counts[key] += 1
                    changed.add(key)
                inside += len(records)
                offsets[partition] = records[-1].offset + 1
        async with producer.transaction():
            for key in changed:
                value = json.dumps(counts[key]).encode()
                await producer.send(topic, value, key=key.encode(), partition=0)
            await producer.send_offsets_to_transaction(offsets, group)
        done += inside
