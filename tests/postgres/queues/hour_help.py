"""An operator's hour: a queue of 100,000 jobs in which something went wrong, and its repair judged.

1. Consumers have failed 300 jobs with several errors, and parked 40 keys, before two of them died
   with a lease.
2. The destination is a table with a row for each job that was handled. After the repair it has each
   job once, and the jobs of each key in their order, except for the dead ones, which follow the
   others.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from sluicegate import Consumer, RetryPolicy
from sluicegate.postgres import PostgresQueueSource, QueueAdmin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from tests.postgres.streams.log_help import Log

    from sluicegate import Message

QUEUE = "mails"
JOBS, KEYS = 100_000, 20_000
ERRORS = {"TimeoutError": 150, "BadAddress": 100, "QuotaError": 50}
DEAD = sum(ERRORS.values())
PARKED = [f"parked {number}" for number in range(40)]
LEASES = {"mailer-1": -60.0, "mailer-2": 600.0}
"""The consumers that died, and the seconds until their leases end."""
WHY = {
    "mailer-1": "the lease of mailer-1 expired .* ago: the next claim may take it",
    "mailer-2": "leased by mailer-2 .* left",
}
"""Why their keys wait."""


class BadAddress(Exception):
    pass


class QuotaError(Exception):
    pass


_FILL = """
INSERT INTO {s}.job (queue, key, payload)
SELECT $1::text, 'k' || n % $3, jsonb_build_object('n', n, 'kind', 'usual') FROM generate_series(1, $2::int) n
"""
_CLAIM = "SELECT r_key FROM {s}.claim_jobs($1, 'default', $2, 1, 10, 0, 600)"
_END = "UPDATE {s}.lane SET lease_until = clock_timestamp() + make_interval(secs => $2) WHERE owner = $1"


async def _insert(con: Any, log: Log, kind: str, keys: Sequence[str]) -> None:
    await con.execute(
        f"INSERT INTO {log.sql}.job (queue, key, payload) SELECT $1::text, k, "
        "jsonb_build_object('n', n, 'kind', $3::text) "
        "FROM unnest($2::text[]) WITH ORDINALITY AS u (k, n)",
        *(QUEUE, list(keys), kind),
    )


def _source(log: Log) -> PostgresQueueSource:
    return PostgresQueueSource(log.dsn, queue=QUEUE, schema=log.schema, ends=True)


async def _fail(message: Message) -> None:
    kind = json.loads(message.value)["kind"]
    raise {"TimeoutError": TimeoutError, "BadAddress": BadAddress}.get(kind, QuotaError)(
        "no answer"
    )


async def _run(log: Log) -> None:
    once = RetryPolicy(attempts=1)
    async with Consumer(_source(log), concurrency=50, retry=once) as consumer:
        await consumer.run(_fail)


@asynccontextmanager
async def broken_down(log: Log) -> AsyncGenerator[None]:
    """The queue, with all that went wrong in it. At the end, fail unless all was repaired."""
    async with log.connected() as con:
        await con.execute("CREATE TABLE mail (place bigint, key text, n int, kind text)")
        try:
            await _break_down(log, con)
            yield
            await _check_destination(con)
        finally:
            await con.execute("DROP TABLE mail")


async def _break_down(log: Log, con: Any) -> None:
    async with QueueAdmin(log.dsn, schema=log.schema) as admin:
        await admin.create(QUEUE, poison="skip")
        for kind, count in ERRORS.items():
            await _insert(con, log, kind, [f"dead {number}" for number in range(count)])
        await _run(log)
        await admin.alter(QUEUE, poison="park_key")
        await _insert(con, log, "QuotaError", PARKED)
        await _run(log)
        await _insert(con, log, "parked", PARKED)
    await _insert(con, log, "leased", [*LEASES])
    for name in LEASES:
        assert await con.fetchval(_CLAIM.format(s=log.sql), QUEUE, name) in LEASES
    await con.execute(_FILL.format(s=log.sql), QUEUE, JOBS, KEYS)
    while await con.fetchval(f"SELECT count(*) FROM {log.sql}.bell"):
        await con.execute(f"SELECT {log.sql}.merge_bells($1, 100000, clock_timestamp())", QUEUE)
    for name, seconds in LEASES.items():
        await con.execute(_END.format(s=log.sql), name, seconds)


async def handle_all(log: Log) -> None:
    """Handle the jobs by a real consumer, until none is ready, after the leases have ended."""
    async with log.connected() as con:
        for name in LEASES:
            await con.execute(_END.format(s=log.sql), name, -1.0)
    pool = await asyncpg.create_pool(log.dsn, min_size=1, max_size=4)

    async def handle(messages: Sequence[Message]) -> None:
        rows = [
            (each.offset, each.key, *(json.loads(each.value)[name] for name in ("n", "kind")))
            for each in messages
        ]
        await pool.copy_records_to_table("mail", records=rows)

    async with pool, Consumer(_source(log), concurrency=4) as consumer:
        await consumer.run_batch(handle, size=2_000, max_wait=0.2)


async def _check_destination(con: Any) -> None:
    rows = await con.fetch(
        "SELECT kind, count(*), count(DISTINCT (key, n)) FROM mail GROUP BY kind"
    )
    assert {row[0]: (row[1], row[2]) for row in rows} == {
        "usual": (JOBS, JOBS),
        **{kind: (count, count) for kind, count in ERRORS.items() if kind != "QuotaError"},
        "QuotaError": (ERRORS["QuotaError"] + len(PARKED),) * 2,
        "parked": (len(PARKED), len(PARKED)),
        "leased": (len(LEASES), len(LEASES)),
    }
    crossed = await con.fetchval(
        "SELECT count(*) FROM mail one JOIN mail two USING (key) "
        "WHERE one.kind = 'QuotaError' AND two.kind = 'parked' AND one.place > two.place"
    )
    assert crossed == 0
