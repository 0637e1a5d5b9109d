"""Jobs enqueued without the sink: by `INSERT`, by `COPY`, and by the SQL function."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg
import pytest
from tests.postgres.queues.sink.queue_help import create_queue, stored
from tests.postgres.streams.log_help import Log, role

from sluicegate.postgres import install_streams

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock


async def enqueue(con: Any, log: Log, numbers: list[int], **more: Any) -> list[str]:
    """Call the function for jobs with these numbers; return their states."""
    names = "".join(f", {name} => ${place}" for place, name in enumerate(more, 3))
    rows = await con.fetch(
        f"SELECT r_n, r_state, r_place IS NULL AS is_left FROM {log.sql}.enqueue('jobs', $1::text[], "
        f"$2::text[]{names})",
        [None] * len(numbers),
        [f'{{"n": {number}}}' for number in numbers],
        *more.values(),
    )
    assert [row["r_n"] for row in rows] == [*range(len(numbers))]
    assert [row["is_left"] for row in rows] == [row["r_state"] != "new" for row in rows]
    return [row["r_state"] for row in rows]


async def test_a_replay_of_a_clients_numbers_enqueues_only_new_ones(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T14: the replayed number is omitted, and the new one has its place."""
    await create_queue(log)
    async with log.connected() as con:
        send = [1, 2], [2, 3], [3], [7]
        found = [
            await enqueue(con, log, numbers, p_client="a", p_numbers=numbers) for numbers in send
        ]
        assert found == [["new", "new"], ["known", "new"], ["known"], ["new"]]
        assert await enqueue(con, log, [1], p_client="b", p_numbers=[1]) == ["new"]
        for bad in ([3, 3], [9, 8], [None, 10], None):
            with pytest.raises(asyncpg.PostgresError, match="must rise") as caught:
                await enqueue(con, log, [0, 0], p_client="a", p_numbers=bad)
            assert caught.value.sqlstate == "PS012"
    assert [row.n for row in await stored(log)] == [1, 2, 3, 7, 1]


async def test_calls_of_a_client_at_once_enqueue_each_number_once(
    log: Log, real_clock: LoopClock
) -> None:
    """Q-T14: the second call waits for the first, and is omitted if that one commits."""
    await create_queue(log)
    async with log.connected() as one, log.connected() as two, log.connected() as third:
        pid = await two.fetchval("SELECT pg_backend_pid()")
        for end, states in (("ROLLBACK", ["new", "new"]), ("COMMIT", ["known", "known"])):
            await one.execute("BEGIN")
            await enqueue(one, log, [1, 2], p_client="a", p_numbers=[1, 2])
            second = asyncio.create_task(enqueue(two, log, [1, 2], p_client="a", p_numbers=[1, 2]))
            while not await third.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", pid):
                pass  # waits for the first one
            await one.execute(end)
            assert await second == states
            if end == "ROLLBACK":
                await two.execute(f"TRUNCATE {log.sql}.queue_client; DELETE FROM {log.sql}.job")
    assert [row.n for row in await stored(log)] == [1, 2]


async def test_an_insert_and_a_copy_commit_with_their_transaction(
    log: Log, real_clock: LoopClock
) -> None:
    """By a role whose only permission is to enqueue."""
    await create_queue(log)
    async with role(log) as app:
        await install_streams(log.dsn, schema=log.schema, enqueue=app.name)
        con = await asyncpg.connect(app.dsn)
        for end in ("ROLLBACK", "COMMIT"):
            await con.execute(
                f"BEGIN; INSERT INTO {log.sql}.job (queue, key, payload) "
                """VALUES ('jobs', 'a', '{"n": 1}'), ('jobs', NULL, '{"n": 2}')"""
            )
            await con.copy_records_to_table(
                "job",
                schema_name=log.schema,
                columns=["queue", "key", "payload"],
                records=[("jobs", "a", f'{{"n": {n}}}') for n in range(3, 6)],
            )
            await con.execute(end)
        await con.close()
    assert await stored(log) == [("a", 1), (None, 2), ("a", 3), ("a", 4), ("a", 5)]


INSERT = "INSERT INTO {s}.job (queue, key, payload, id, queueing_lock, slot) VALUES "
ONE = str(UUID(int=1))


@pytest.mark.parametrize(
    ("row", "state", "constraint"),
    [
        ("('nowhere', NULL, '1', NULL, NULL, NULL)", "PS010", None),
        ("('full', NULL, '1', NULL, NULL, NULL)", "PS011", None),
        ("('blake', 'a', '1', NULL, NULL, NULL)", "PS012", None),
        (f"('jobs', NULL, '1', '{ONE}', NULL, NULL)", "23505", "job_id_pkey"),
        ("('jobs', NULL, '1', NULL, 'lock', NULL)", "23505", "queueing_lock_pkey"),
    ],
)
async def test_an_insert_that_a_queue_does_not_take_is_an_error_of_its_own(
    log: Log, real_clock: LoopClock, row: str, state: str, constraint: str | None
) -> None:
    """The states and constraints documented on the page about enqueueing."""
    await create_queue(log)
    await create_queue(log, "full", max_depth=1)
    await create_queue(log, "blake", slot_function="blake3")
    async with log.connected() as con:
        insert = INSERT.format(s=log.sql)
        await con.execute(
            f"{insert} ('jobs', 'a', '1', '{ONE}', 'lock', NULL), ('full', NULL, '1', '{ONE}', "
            "'lock', NULL), ('blake', 'a', '1', NULL, NULL, 17)"
        )
        with pytest.raises(asyncpg.PostgresError) as caught:
            await con.execute(insert + row)
        assert caught.value.sqlstate == state
        assert getattr(caught.value, "constraint_name", None) == constraint
