"""Parked records in the schema of the log in PostgreSQL.

1. A key's queue and a record's place in its topic are indexed by digests, so names may have any
   length.
2. A request to unpark a key is a row of another group (`requests_of`), with the place of the record
   at which the key has stopped. A request that comes too late for that record has no effect.
3. Texts are stored as JSON, which can escape every character: PostgreSQL's `text` cannot hold NUL.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..._core.checks import bad
from ..._core.park_store import ParkedRecord
from ...letters.items import restored, stored
from ..client.names import quoted
from ..records.access import SchemaObject
from ..schema.opened import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AsyncExitStack

    from ..client.access import PostgresAccess

REQUESTS = " (unpark)"
_MAY_PARK = """
SELECT bool_and(has_table_privilege($1::text, p)) AS may, current_user::text AS role
FROM unnest('{SELECT,INSERT,DELETE}'::text[]) AS p
"""
_PARK = """
INSERT INTO {schema}.parked (consumer, key, queue, place, record)
SELECT $1, $2::text::json, $3, r.place, r.record::json
FROM unnest($4::bytea[], $5::text[]) WITH ORDINALITY AS r (place, record, number)
ORDER BY r.number
ON CONFLICT (queue, place) DO NOTHING
"""
_KEYS = """
SELECT min(key::text) AS key, count(*) AS records FROM {schema}.parked
WHERE consumer = $1 GROUP BY queue
"""
_FIRST = "SELECT record::text FROM {schema}.parked WHERE queue = $1 ORDER BY id LIMIT $2"
_REMOVE = "DELETE FROM {schema}.parked WHERE queue = $1 AND place = ANY ($2::bytea[])"
_TAKE = """
WITH gone AS (DELETE FROM {schema}.parked WHERE queue = $2 RETURNING place)
SELECT EXISTS (SELECT FROM gone g WHERE g.place = (
  SELECT p.place FROM {schema}.parked p WHERE p.queue = $1 ORDER BY p.queue, p.id LIMIT 1))
"""
AS_THEY_ARE = ("topic", "partition", "offset", "timestamp", "reason", "error_type", "message", "attempts", "is_poison")  # fmt: skip


class PostgresParkStore(SchemaObject):
    """A durable store of parked records, in the schema that `sluicegate pg install` creates.

    A consumer of any source may use it: `Consumer(source, name=...,
    poison=Poison(parked=PostgresParkStore(dsn)))`. Keys and values must be bytes, text, `None`, or plain JSON.
    Works behind a pooler.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown. The role needs the right to subscribe.
        schema: the schema of the log; default `"sluicegate"`.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. The constructor does
    not connect. Opening connects, and raises `ConfigError` if the schema is missing or older, or
    the role lacks the right. Each method is one statement, and therefore atomic; a cancelled call
    may have taken effect. Methods raise asyncpg's errors, and `UnavailableError` without a
    connection.
    """

    is_durable = True

    def __init__(
        self,
        dsn: str | PostgresAccess,
        *,
        schema: str = DEFAULT_SCHEMA,
    ) -> None:
        super().__init__(dsn, schema=schema, size=2)

    async def _open(self, stack: AsyncExitStack) -> None:
        await super()._open(stack)
        ((may_park, role),) = await self._ask(_MAY_PARK, f"{quoted(self._schema)}.parked")
        if not may_park:
            rule = (
                f"has a table of parked records that the role {role!r} may not use; run "
                f"`sluicegate pg install DSN --schema {self._schema} --subscribe {role}`"
            )
            raise bad("schema", self._schema, rule)

    async def park(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        """Append records to a key's queue; records already in it are unchanged.

        Raises `ValueError` for a record whose key or value cannot be stored exactly.
        """
        if records:
            places, texts = [_place(each) for each in records], [_text(each) for each in records]
            await self._ask(_PARK, group, json.dumps(key), queue_of(group, key), places, texts)

    async def keys(self, group: str) -> frozenset[str]:
        """Return the keys with parked records."""
        return frozenset(await self.counts(group))

    async def first(self, group: str, key: str, most: int) -> Sequence[ParkedRecord]:
        """Return the first `most` records of a key's queue."""
        rows = await self._ask(_FIRST, queue_of(group, key), most)
        return [record_of(json.loads(row["record"])) for row in rows]

    async def remove(self, group: str, key: str, records: Sequence[ParkedRecord]) -> None:
        """Remove records from a key's queue; records that are not in it are ignored."""
        if records:
            places = [_place(each) for each in records]
            await self._ask(_REMOVE, queue_of(group, key), places)

    async def counts(self, group: str) -> Mapping[str, int]:
        """Return the number of parked records by key."""
        rows = await self._ask(_KEYS, group)
        return {json.loads(row["key"]): row["records"] for row in rows}

    async def requests(self, group: str) -> frozenset[str]:
        """Return the keys that `ParkAdmin.unpark` has requested to unpark."""
        return await self.keys(requests_of(group))

    async def take_request(self, group: str, key: str) -> bool:
        """Remove the requests to unpark a key; return whether one is for its first record."""
        queues = queue_of(group, key), queue_of(requests_of(group), key)
        ((is_current,),) = await self._ask(_TAKE, *queues)
        return bool(is_current)

    async def _ask(self, statement: str, *arguments: object) -> list[Any]:
        statement = statement.replace("{schema}", quoted(self._schema))
        return await self._opened.fetch(statement, *arguments)


def requests_of(group: str) -> str:
    """Return the name of the group of the requests to unpark keys of a group."""
    return f"{group}{REQUESTS}"


def queue_of(group: str, key: str) -> bytes:
    """Return the digest of a key's queue."""
    return _digest(group, key)


def _place(record: ParkedRecord) -> bytes:
    return _digest(record.topic, record.partition, record.offset)


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _text(record: ParkedRecord) -> str:
    """Return the record as JSON. Raises `ValueError` for values other than JSON and bytes."""
    made: dict[str, Any] = {name: getattr(record, name) for name in AS_THEY_ARE}
    for name in ("key", "value"):
        made[name] = stored(getattr(record, name)).value
        if restored(made[name]) != getattr(record, name):
            kind = type(getattr(record, name)).__name__
            raise ValueError(
                f"the {name} of {record.coordinates} is a {kind}, which JSON cannot hold"
            )
    made["headers"] = [stored([*header]).value for header in record.headers or ()]
    return json.dumps({**made, "parked_at": record.parked_at.isoformat()})


def record_of(found: dict[str, Any]) -> ParkedRecord:
    """Return the record of its decoded JSON, in which the value and the headers may be missing."""
    return ParkedRecord(
        **{name: found[name] for name in AS_THEY_ARE},
        key=restored(found["key"]),
        value=restored(found.get("value")),
        headers=[(name, value) for name, value in map(restored, found.get("headers", ()))],
        parked_at=datetime.fromisoformat(found["parked_at"]),
    )
