"""Logs for successive tests: an emptied log is reused if it is indistinguishable from a new one.

An installation takes a tenth of a second and creates a hundred files, which stay for the lifetime
of the server. A log is reused under these conditions; otherwise it is dropped and another one is
installed.

1. No session of the previous test is left.
2. The schema is as it was installed: its objects, owners and permissions, and its own records. A
   test that adds tables drops them at its end.
3. Nothing is known about its tables' contents: planners would use statistics.

`TRUNCATE` gives tables and indexes new files, and sequences begin again.

White box: an installation on an open connection.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from tests.postgres.streams.log_help import Log, fresh_name

from sluicegate.postgres.schema.installation import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sluicegate.testing import EmbeddedPostgres

_SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_STATE = """
WITH relation AS (SELECT * FROM pg_class WHERE relnamespace = $1::regnamespace)
SELECT md5(string_agg(part, E'\\n' ORDER BY part)) FROM (
  SELECT format('schema %s', t) AS part FROM pg_namespace t WHERE oid = $1::regnamespace
  UNION ALL SELECT format('relation %s', (oid, relname, relowner, relacl, reloptions, relnatts,
    relchecks, relhasrules, relhastriggers, relrowsecurity, relforcerowsecurity, relreplident))
    FROM relation
  UNION ALL SELECT format('column %s %s %s', attrelid, attnum, t.xmin)
    FROM pg_attribute t JOIN relation ON attrelid = relation.oid
  UNION ALL SELECT format('function %s %s', oid, xmin) FROM pg_proc
    WHERE pronamespace = $1::regnamespace
  UNION ALL SELECT format('type %s %s', oid, xmin) FROM pg_type WHERE typnamespace = $1::regnamespace
  UNION ALL SELECT format('constraint %s %s', oid, xmin) FROM pg_constraint
    WHERE connamespace = $1::regnamespace
  UNION ALL SELECT format('trigger %s %s', t.oid, t.xmin)
    FROM pg_trigger t JOIN relation ON tgrelid = relation.oid
  UNION ALL SELECT format('sequence %s %s', seqrelid, t.xmin)
    FROM pg_sequence t JOIN relation ON seqrelid = relation.oid
  UNION ALL SELECT format('statistics %s', starelid)
    FROM pg_statistic JOIN relation ON starelid = relation.oid
  UNION ALL SELECT format('migration %s', t) FROM {schema}.migration t
  UNION ALL SELECT format('meta %s', t) FROM {schema}.meta t
  UNION ALL SELECT format('grantee %s', t) FROM {schema}.grantee t
) AS parts
"""
_FILLED = """
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = $1::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
AND relname <> ALL ('{migration,meta,grantee}')
"""
_REWIND = """
SELECT setval(seqrelid, seqstart, false) FROM pg_sequence
JOIN pg_class ON oid = seqrelid WHERE relnamespace = $1::regnamespace
"""
_FORGET = """
SELECT pg_stat_reset_single_table_counters(oid) FROM pg_class
WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'i')
"""


@dataclass(frozen=True)
class _Used:
    log: Log
    state: str
    """The state after installation."""
    others: frozenset[int]
    """The sessions that existed before the test that used it."""


_used: defaultdict[str, list[_Used]] = defaultdict(list)
"""The logs of earlier tests, by the server's DSN."""


@pytest.fixture
def log(embedded_postgres: EmbeddedPostgres) -> Iterator[Log]:
    """A log with streams and queues, without contents."""
    with lent(embedded_postgres.dsn) as log:
        yield log


@contextmanager
def lent(dsn: str) -> Iterator[Log]:
    """A log in its state after installation. Not for use on a running loop."""
    taken = asyncio.run(_taken(dsn))
    yield taken.log
    _used[dsn].append(taken)


@asynccontextmanager
async def borrowed(dsn: str) -> AsyncIterator[Log]:
    """A log in its state after installation, on a running loop."""
    taken = await _taken(dsn)
    yield taken.log
    _used[dsn].append(taken)


async def _taken(dsn: str) -> _Used:
    con = await asyncpg.connect(dsn)
    try:
        others = frozenset(await _column(con, _SESSIONS))
        if _used[dsn]:
            used = _used[dsn].pop()
            if others <= used.others and await _state(con, used.log) == used.state:
                await _empty(con, used.log)
                return used
            await con.execute(f"DROP SCHEMA IF EXISTS {used.log.sql} CASCADE")
        log = Log(dsn, fresh_name())
        await install(con, log.schema, library="test")
        return _Used(log, await _state(con, log), others)
    finally:
        await con.close()


async def _state(con: Any, log: Log) -> str:
    if not await con.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{log.sql}.grantee"):
        return ""
    return str(await con.fetchval(_STATE.format(schema=log.sql), log.sql))


async def _empty(con: Any, log: Log) -> None:
    filled = await _column(con, _FILLED, log.sql)
    if filled:
        await con.execute(f"TRUNCATE {', '.join(filled)} CASCADE")
    await con.fetch(_REWIND, log.sql)
    await con.fetch(_FORGET, log.sql)


async def _column(con: Any, query: str, *arguments: Any) -> list[Any]:
    return [row[0] for row in await con.fetch(query, *arguments)]
