"""Jobs enqueued through a PgBouncer in transaction mode: nothing is prepared or duplicated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.queues.sink.queue_help import create_queue, item, sink, stored
from tests.postgres.sink.postgres_help import outcomes, proxied
from tests.postgres.streams.log_help import Log, fresh_name, install_log

from sluicegate import Outcome, PermanentError, RowBatch, UnknownOutcomeError, send

if TYPE_CHECKING:
    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


async def a_queue(server: EmbeddedPostgres, **options: Any) -> Log:
    log = Log(server.dsn, fresh_name())
    await install_log(log)
    await create_queue(log, **options)
    return log


@pytest.mark.parametrize("function", ["sha256", pytest.param("blake3", marks=pytest.mark.long)])
async def test_simultaneous_writes_share_the_servers_of_a_pooler(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock, function: str
) -> None:
    """Q-T14: refused items are also found by halves, and their neighbours are enqueued once."""
    log = await a_queue(embedded_postgres, slot_function=function)
    async with log.connected() as con:
        await con.execute(f"ALTER TABLE {log.sql}.job ADD CHECK ((payload -> 'n')::int % 10 <> 3)")
    async with sink(log, dsn=bouncer.dsn, key="key", pool_size=8) as it:
        batches = [RowBatch([item(f"k{b}", 20 * b + n) for n in range(20)]) for b in range(12)]
        answers = await asyncio.gather(*(send(it, batch) for batch in batches))
    for errors in answers:
        assert {n: type(error) for n, error in errors.items()} == dict.fromkeys(
            (3, 13), PermanentError
        )
    found = sorted(row.n for row in await stored(log))
    assert found == [n for n in range(240) if n % 10 != 3]


async def test_a_lost_commit_through_a_pooler_is_found_by_a_retry(
    embedded_postgres: EmbeddedPostgres, bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    """Q-T14"""
    log = await a_queue(embedded_postgres)
    async with proxied(bouncer.dsn) as (proxy, through), sink(log, dsn=through, key="key") as it:
        batch = RowBatch([item("a", n) for n in range(10)])
        proxy.cut_answer = "COMMIT"
        errors = await send(it, batch)
        assert {type(error) for error in errors.values()} == {UnknownOutcomeError}
        assert await send(it, batch) == {}
        assert set(outcomes(batch)) == {Outcome.DUPLICATE}
    assert [row.n for row in await stored(log)] == [*range(10)]
