r"""Parked keys for operators: lists in pages, and one key with its records.

1. A page costs the same however many records are parked: each statement finds the next keys by
   their digests in an index, and then the first record of each. Plans are not left to estimates
   (`BY_INDEX`). A filter by group reads at most `LOOKS` times as many keys as the page may have.
2. Values and headers, which may be large and secret, leave the server only on request.
3. The server's operators refuse a whole document if a text in it has a NUL or half of a surrogate
   pair. So they are given documents without escapes of characters (`_SAFE`): `\u` is written as
   `\/u`, and `\/` as `\//`, which `_document` turns back.
"""

# ruff: noqa: S608  # fragments of the library itself

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._core import checks
from ..._core.checks import bad
from ..._core.keywords import known_arguments
from ..client.access import PostgresAccess
from ..queues.jobs import BY_INDEX
from ..records.access import SchemaObject
from ..schema.opened import DEFAULT_SCHEMA
from .parked import AS_THEY_ARE, REQUESTS, queue_of, record_of, requests_of

if TYPE_CHECKING:
    import builtins
    from datetime import datetime
    from typing import Any

    from ..._core.park_store import ParkedRecord

COUNT_TO = 10_000
"""Maximum number of records of a key that are counted."""
LOOKS = 10

_NEXT = "SELECT p.queue FROM {schema}.parked p WHERE p.queue > %s ORDER BY p.queue LIMIT 1"
_SHOWN = "json_build_object(" + ", ".join(
    f"'{name}', f.safe -> '{name}'" for name in (*AS_THEY_ARE, "key", "parked_at")
) + ")"  # fmt: skip
_SAFE = r"replace(replace(p.record::text, '\/', '\//'), '\u', '\/u')::json AS safe"
_ESCAPED = re.compile(r"\\/([/u])")
_KEY = f"""
SELECT f.consumer, f.key::text, ({_SHOWN})::text, c.count, q.queue FROM (%s) q (queue, n)
CROSS JOIN LATERAL (SELECT *, {_SAFE} FROM {{schema}}.parked p
  WHERE p.queue = q.queue ORDER BY p.queue, p.id LIMIT 1 OFFSET 0) f
LEFT JOIN LATERAL (SELECT count(*) FROM (SELECT FROM {{schema}}.parked p
  WHERE p.queue = q.queue ORDER BY p.queue, p.id LIMIT {COUNT_TO}) r) c
  ON $2::text IS NULL OR f.consumer = $2 ORDER BY q.n
"""
KEYS = f"""
WITH RECURSIVE q AS (
  ({_NEXT % "$1::bytea"}) UNION ALL
  SELECT n.queue FROM q CROSS JOIN LATERAL ({_NEXT % "q.queue"}) n)
{_KEY % "SELECT q.queue, row_number() OVER () FROM q LIMIT $3"}
"""
_ONE = _KEY % "SELECT $1::bytea, 1"
RECORDS = f"""
SELECT f.id, (CASE WHEN $4 THEN f.safe ELSE {_SHOWN} END)::text FROM (
  SELECT *, {_SAFE} FROM {{schema}}.parked p
  WHERE p.queue = $1 AND p.id > $2 ORDER BY p.queue, p.id LIMIT $3) f ORDER BY f.id
"""
_REQUEST = """
WITH first AS (SELECT p.key, p.place FROM {schema}.parked p
  WHERE p.queue = $1 ORDER BY p.queue, p.id LIMIT 1),
made AS (INSERT INTO {schema}.parked (consumer, key, queue, place, record)
  SELECT $2, f.key, $3, f.place, '{}' FROM first f ON CONFLICT (queue, place) DO NOTHING)
SELECT count(*) FROM first
"""


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """A parked key of a group, and its first record."""

    group: str
    """The name of the consumer or pipe in the park store."""
    key: str
    """The key's name in the park store: its scope and its text, such as `orders/3 customer-7`."""
    records: int
    """The number of its records; at most `COUNT_TO`, 10,000, are counted."""
    since: datetime
    """When the first record was parked."""
    topic: str
    partition: int
    offset: int
    attempts: int
    reason: str
    error_type: str
    """Empty for a record that waited behind one that has been handled since."""


@dataclass(frozen=True, slots=True)
class ParkedPage:
    """A page of a list of parked keys."""

    items: tuple[ParkedKey, ...]
    next: str | None
    """The cursor of the next page; `None` if this page is the last one."""


@dataclass(frozen=True, slots=True)
class ParkedDetail:
    """A parked key and a page of its records."""

    key: ParkedKey
    records: tuple[ParkedRecord, ...]
    """In the order in which they are handled. Without payload, `value` is `None`, and there are no
    headers.
    """
    next: str | None
    """The cursor of the next records; `None` after the last one."""


@known_arguments(access=PostgresAccess)
class ParkAdmin(SchemaObject):
    """Shows the parked keys of all groups in a schema of streams and queues, and requests their
    consumers to continue them.

    Args:
        dsn: `postgresql://user:password@host:port/database`, or a `PostgresAccess`. Never
            shown. The role needs the right to subscribe.
        schema: the schema of the park store; default `"sluicegate"`.

    Raises `ConfigError` for a bad argument and `MissingExtra` without asyncpg. Opening connects,
    and raises `ConfigError` if the schema is missing or older. Methods suspend for a statement or
    two, and raise `RefusedError` if the role lacks a right, and `UnavailableError`
    without a connection.
    """

    def __init__(self, dsn: str | PostgresAccess, *, schema: str = DEFAULT_SCHEMA) -> None:
        super().__init__(dsn, schema=schema, size=1)

    async def list(
        self, group: str | None = None, *, after: str | None = None, limit: int = 100
    ) -> ParkedPage:
        """Return a page of parked keys, in an order that does not change.

        Args:
            group: only keys of this consumer or pipe; default: of all.
            after: the `next` of the previous page.
            limit: the size of the page; default 100. A page may be smaller although there are more.
        """
        most = checks.count("limit", limit)
        looks = most * (1 if group is None else LOOKS)
        rows = await self._rows(KEYS, _cursor(after), group, looks)
        found = [row for row in rows if row[3] is not None and not row[0].endswith(REQUESTS)][:most]
        end = found[-1] if len(found) == most else rows[-1] if len(rows) == looks else None
        return ParkedPage(
            tuple([_key_of(row) for row in found]), None if end is None else end[4].hex()
        )

    async def show(
        self,
        group: str,
        key: str,
        *,
        after: str | None = None,
        limit: int = 100,
        payload: bool = False,
    ) -> ParkedDetail | None:
        """Return a parked key with a page of its records; `None` if it is not parked.

        Args:
            group: the name of the consumer or pipe.
            key: the key's name, as in a list.
            after: the `next` of the previous records.
            limit: the maximum number of records; default 100.
            payload: whether the records have their values and headers.
        """
        most, queue = checks.count("limit", limit), queue_of(group, key)
        has_payload = checks.flag("payload", payload)
        start = _number(after)
        keys = await self._rows(_ONE, queue, None)
        if not keys:
            return None
        rows = await self._rows(RECORDS, queue, start, most, has_payload)
        records = tuple([record_of(_document(row[1])) for row in rows])
        return ParkedDetail(
            _key_of(keys[0]), records, str(rows[-1][0]) if len(rows) == most else None
        )

    async def unpark(self, group: str, key: str) -> bool:
        """Ask the consumer that owns a key to unpark it; return whether it is parked.

        The consumer handles the records as `Consumer.unpark` does, within a few seconds if it runs
        and owns the partition of the key, else when it does. If a record fails for good, it stays
        parked with those behind it, which needs another request. A request is not repeated if the
        consumer dies, and has no effect once the key has stopped at another record. A cancelled
        call may have made it.

        Args:
            group: the name of the consumer or pipe.
            key: the key's name, as in a list.
        """
        asked = requests_of(group)
        values = queue_of(group, key), asked, queue_of(asked, key)
        ((count,),) = await self._rows(_REQUEST, *values)
        return bool(count)

    async def _rows(self, query: str, *values: object) -> builtins.list[Any]:
        async with self._access_to("log").transaction() as statements:
            await statements.rows(BY_INDEX)
            return await statements.rows(query, *values)


def _key_of(row: Any) -> ParkedKey:
    first = record_of(_document(row[2]))
    place = (first.topic, first.partition, first.offset)
    why = (first.attempts, first.reason, first.error_type)
    return ParkedKey(row[0], json.loads(row[1]), row[3], first.parked_at, *place, *why)


def _document(text: str) -> Any:
    return json.loads(_ESCAPED.sub(r"\\\1", text))


def _cursor(after: str | None) -> bytes:
    if after is None:
        return b""
    if not re.fullmatch("[0-9a-f]{64}", after):
        raise bad("after", after, "must be the `next` of a page")
    return bytes.fromhex(after)


def _number(after: str | None) -> int:
    if after is None:
        return 0
    if not (after.isascii() and after.isdecimal() and len(after) < 19):
        raise bad("after", after, "must be the `next` of the previous records")
    return int(after)
