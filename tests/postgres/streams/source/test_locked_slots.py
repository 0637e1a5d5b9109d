"""A slot that another session keeps locked, such as an operator's, beside the others of a process.

White box: the slot of a stream, and the time after which a lock counts as lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.postgres.streams.source.stream_help import claim_on, source_of
from tests.postgres.streams.source.test_failures import StreamHost, locked

from sluicegate.consumer import Position
from sluicegate.postgres import PostgresSubscriptions
from sluicegate.postgres.streams import holding
from sluicegate.postgres.streams.selection import slot_of

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.consumer import SourceClaim

pytestmark = pytest.mark.usefixtures("real_clock")

WITHIN = 45.0
LOCK = "SELECT FROM {s}.subscription_slot WHERE slot = $1 FOR UPDATE"
STORED = "SELECT position FROM {s}.subscription_slot WHERE slot = $1"


async def test_positions_of_other_slots_are_stored_and_that_of_the_locked_one_after_it(
    log: Log,
) -> None:
    """S-T4: the claim of the locked slot stays, and nothing of it is stored."""
    host, source = StreamHost(), source_of(log)
    async with asyncio.timeout(WITHIN), log.connected() as con, log.connected() as operator:
        await log.append(con, "s-1", 1)
        await log.append(con, "s-2", 1)
        async with source.open(host):
            await host.wait_for_claims(256)
            one, other = (claim_on(host, each) for each in ("s-1", "s-2"))
            slot = slot_of("s-1")
            async with operator.transaction():
                await operator.fetch(LOCK.format(s=log.sql), slot)
                wanted: dict[SourceClaim, Position] = {one: Position(2), other: Position(3)}
                assert [*await source.commit(wanted)] == [other]
                stored = STORED.format(s=log.sql)
                assert await con.fetchval(stored, slot_of("s-2")) == 3
                assert not one.is_closed
            assert [*await source.commit({one: Position(2)})] == [one]
            assert await con.fetchval(stored, slot) == 2
            await operator.execute(
                f"UPDATE {log.sql}.subscription_slot SET position = 1 WHERE slot = $1", slot
            )
            assert [*await source.commit({one: Position(3)})] == []
            assert one.is_closed, "S-T11: the position was moved, and its row is not locked"
    assert await locked(log) == 0


async def test_locks_of_other_slots_are_extended_and_the_locked_one_alone_is_lost(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-T8, S-T4: it is claimed again when it is free."""
    monkeypatch.setattr(PostgresSubscriptions, "keep_every", 0.05)
    monkeypatch.setattr(holding, "KEEPS", 20)
    host, source = StreamHost(), source_of(log)
    async with asyncio.timeout(WITHIN), log.connected() as con, log.connected() as operator:
        async with source.open(host):
            claims = await host.wait_for_claims(256)
            one = claim_on(host, "s-1")
            async with operator.transaction():
                await operator.fetch(LOCK.format(s=log.sql), slot_of("s-1"))
                await host.news.wait_for(lambda: one.is_closed)
                live = "lease_until > clock_timestamp() AND owner IS NOT NULL AND slot <> $1"
                query = f"SELECT count(*) FROM {log.sql}.subscription_slot WHERE {live}"
                assert await con.fetchval(query, slot_of("s-1")) == 255
            await host.wait_for_claims(256)
            assert [each for each in claims if each.is_closed] == [one]
    assert await locked(log) == 0


async def test_a_process_that_ends_releases_the_other_slots(log: Log) -> None:
    """S-T8: the lease of the locked one expires."""
    host, source = StreamHost(), source_of(log)
    async with asyncio.timeout(WITHIN), log.connected() as operator:
        async with source.open(host):
            await host.wait_for_claims(256)
            await operator.execute("BEGIN")
            await operator.fetch(LOCK.format(s=log.sql), slot_of("s-1"))
        assert await locked(log) == 1
        await operator.execute("ROLLBACK")
