"""Advisory locks of a source whose consumer or session fails, and an older schema.

White box: more attempts to extend locks before they count as lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres.streams.source.claims_help import PlainLocks, partition_of, plain
from tests.postgres.streams.source.test_failures import WITHIN, fetched, source

from sluicegate import ConfigError
from sluicegate.consumer import Position
from sluicegate.postgres import PostgresAdvisoryLocks, PostgresSubscriptions
from sluicegate.postgres.streams import holding
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.consumer import SubscriptionLocks
    from sluicegate.postgres import PostgresStreamSource

pytestmark = pytest.mark.usefixtures("real_clock")

HELD = "FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"


def advisory_locks(log: Log) -> PostgresAdvisoryLocks:
    return PostgresAdvisoryLocks(log.dsn, schema=log.schema)


def advisory(log: Log, locks: SubscriptionLocks | None = None) -> PostgresStreamSource:
    """A source that locks its slots in its own session."""
    state = PostgresSubscriptions(log.dsn, schema=log.schema)
    return plain(log, state, locks=locks or advisory_locks(log), slots_at_once=256)


async def held(con: Any) -> int:
    """The number of session-level advisory locks at the server."""
    return int(await con.fetchval(f"SELECT count(*) {HELD}"))


@pytest.mark.parametrize("error", [RuntimeError("a handler"), asyncio.CancelledError()])
async def test_no_advisory_lock_stays_behind_an_error(log: Log, error: BaseException) -> None:
    """S-T8: after neither an exception in the consumer nor its cancellation."""
    host = RecordingHost()
    async with log.connected() as con:
        with pytest.raises(type(error)):
            async with asyncio.timeout(WITHIN), advisory(log).open(host):
                await host.wait_for_claims(256)
                assert await held(con) == 256
                raise error
        assert await held(con) == 0


async def test_the_end_of_a_session_loses_its_slots_to_another_process(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-T8, S-T11: its late store is refused, and it claims slots again when they become free."""
    first, second = RecordingHost(), RecordingHost()
    advisory_ones = advisory_locks(log)
    locks = PlainLocks(advisory_ones, keep_every=0.2)
    monkeypatch.setattr(holding, "KEEPS", 100)
    left, right = advisory(log, locks), advisory(log)
    partition = partition_of(log, "a")
    async with asyncio.timeout(WITHIN), log.connected() as con, advisory_ones:
        await log.append(con, "a", 1, 2)
        async with left.open(first):
            claims = await first.wait_for_claims(256)
            assert await fetched(left, first) == [1, 2]
            claim = first.claim_of(partition)
            async with right.open(second):
                locks.may_go.clear()  # it notices the loss, but requests none of them yet
                assert await con.fetchval(
                    f"SELECT bool_and(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid {HELD}) p"
                )
                await second.wait_for_claims(256)
                locks.may_go.set()
                assert await fetched(right, second) == [1, 2]
                await right.commit({second.claim_of(partition): Position(3)})
                assert not await left.commit({claim: Position(2)})
                await first.news.wait_for(lambda: all(each.is_closed for each in claims))
                assert not first.within, "a loss stores nothing"
                assert await held(con) == 256
            await first.wait_for_claims(256)
            assert first.claim_of(partition).start == Position(3)
        assert await held(con) == 0


async def test_an_older_schema_is_named_at_the_opening(log: Log) -> None:
    """The error contains the command that upgrades it."""
    host = RecordingHost()
    async with log.connected() as con:
        await con.execute(f"DELETE FROM {log.sql}.migration")
        with pytest.raises(ConfigError, match=f"sluicegate pg upgrade .*{log.schema}"):
            async with source(log).open(host):
                pass
    assert not host.claims
