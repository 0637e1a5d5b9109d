"""The server's time and the plans of pages of jobs, however many there are, with and without statistics.

White box: the statements of pages.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.queue_help import Queue, queue

from sluicegate.postgres.queues.jobs import BY_INDEX, CLASSES, finished_query, open_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres.streams.log_help import Log


pytestmark = pytest.mark.usefixtures("real_clock")
LIMIT = 100
COUNTED = 100
MOST_MS = 50.0
MOST_BUFFERS = 20 * LIMIT
FINISHED = """
INSERT INTO {s}.finished_job
  (queue, place, outcome, key, payload, headers, at, priority, error, finished_at)
SELECT $1::text, nextval('{s}.job_place'), CASE WHEN n % 100 = 0 THEN 'dead'
    WHEN n % 100 = 1 THEN 'cancelled' ELSE 'done' END,
  CASE WHEN n % 200 < 100 THEN 'hot' WHEN n % 10 < 9 THEN 'k' || n % 10000 END, to_jsonb(n), '{{}}', now(), 0,
  CASE WHEN n % 100 = 0 THEN 'Error' || n % 7 END, now() - make_interval(secs => n / 1000)
FROM generate_series(1, $2::int) n
"""
OPEN = """
INSERT INTO {s}.job (queue, key, payload, due, state) SELECT $1::text,
  CASE WHEN n % 10 < 4 THEN 'k' || n % 10000 WHEN n % 10 < 8 THEN 'hot' END, '1',
  CASE WHEN n % 5 = 0 THEN '2100-01-01'::timestamptz END,
  CASE WHEN n % 10 = 8 THEN 1 + n / 10 % 2 ELSE 0 END
FROM generate_series(1, $2::int) n
"""
STOPPED = (
    "UPDATE {s}.lane SET state = 1 + substr(key, 2)::int % 2 WHERE queue = $1 AND key LIKE 'k1%'"
)
LEASED = """
UPDATE {s}.lane l SET lease = 1, owner = 'me', lease_until = now() + interval '1 h', attempts = 1, head = (
  SELECT min(j.place) FROM {s}.job j WHERE j.queue = $1 AND j.key = l.key AND j.due IS NULL)
WHERE queue = $1 AND state = 0 AND key LIKE 'k2%'
"""
START: dict[str, list[object]] = {
    "open": [0],
    "open of a key": [0, "hot"],
    "delayed": ["-infinity", 0],
    "delayed of a key": [0, "hot"],
    "leased": [0],
    "stopped keys": ["", 1, None],
    "stopped": [0, 2],
}
FILTERS: list[tuple[str, str | None, str | None]] = [
    *((state, None, None) for state in ("done", "dead", "cancelled")),
    ("done", "hot", None),
    ("dead", "hot", None),
    ("dead", None, "Error3"),
]


async def explained(con: Any, query: str, *values: Any) -> tuple[float, int, int, list[Any]]:
    """The server's milliseconds, the buffers, the rows, and the tables read as a whole."""
    (found,) = json.loads(
        await con.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", *values)
    )
    plan, whole = found["Plan"], list[Any]()
    nodes = [plan]
    for node in nodes:
        nodes += node.get("Plans", [])
        if node["Node Type"] == "Seq Scan":
            whole.append(node["Relation Name"])
    time = found["Planning Time"] + found["Execution Time"]
    return time, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], plan["Actual Rows"], whole


def statements(q: Queue) -> Iterator[tuple[str, str, list[Any]]]:
    """Each statement of a page, with the values of the first page."""
    for source in START:
        yield source, open_query(source, is_one=False), [q.name, False, LIMIT, *START[source]]
    for state, key, error in FILTERS:
        only = [each for each in (error, key) if each is not None]
        start = [q.name, False, LIMIT, "infinity", 2**63 - 1]
        yield f"{state} {only}", finished_query(state, key, error), [*start, *only]


async def filled(con: Any, log: Log, finished: int, waiting: int) -> Queue:
    """A queue of this many jobs of 10,000 keys, some of them leased and stopped."""
    for table in ("job", "lane", "finished_job"):
        await con.execute(f"ALTER TABLE {log.sql}.{table} SET (autovacuum_enabled = off)")
    q = await queue(con, log)
    await con.execute(FINISHED.format(s=log.sql), q.name, finished)
    await con.execute(OPEN.format(s=log.sql), q.name, waiting)
    while await q.count(con, "bell"):
        await con.execute(f"SELECT {log.sql}.merge_bells($1, 100000, now())", q.name)
    for change in (STOPPED, LEASED):
        await con.execute(change.format(s=log.sql), q.name)
    return q


@pytest.mark.parametrize(
    "finished",
    [100_000, pytest.param(10_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])],
)
async def test_a_page_takes_as_long_however_many_jobs_there_are(log: Log, finished: int) -> None:
    """The first page and the second, of jobs with these statistics and without any."""
    async with log.connected() as con:
        await con.execute("SET statement_timeout = 0")
        q = await filled(con, log, finished, 100_000)
        await con.execute(BY_INDEX.replace("true", "false"))
        for statistics in ("none", "ANALYZE"):
            if statistics == "ANALYZE":
                await con.execute(f"ANALYZE {q.sql}.job, {q.sql}.lane, {q.sql}.finished_job")
            for name, text, values in statements(q):
                query = text.replace("{schema}", q.sql)
                rows = await con.fetch(query, *values)
                assert len(rows) == LIMIT, name
                cursor = json.loads(rows[-1][-1])
                behind = [*values[:3], *cursor, *values[3 + len(cursor) :]]
                if name == "stopped keys":
                    behind[-1] = cursor[0]
                for given in (values, behind):
                    time, buffers, _, whole = await explained(con, query, *given)
                    told = (statistics, name, time, buffers, whole)
                    assert not whole, told
                    assert buffers < MOST_BUFFERS, told
                    assert finished == 100_000 or time < MOST_MS, told
            query = CLASSES.replace("{schema}", q.sql)
            time, buffers, rows, whole = await explained(con, query, q.name, COUNTED)
            assert (rows, whole) == (7, []), (statistics, time)
            assert buffers < 7 * 3 * COUNTED, (statistics, buffers)
            assert finished == 100_000 or time < MOST_MS, (statistics, time)
