"""The source of streams through a PgBouncer in transaction mode: by polling only."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tests.postgres.streams.log_help import Log, fresh_name, install_log

from sluicegate.postgres import PostgresAccess, PostgresStreamSource
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    import pytest
    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.batcher import LoopClock
    from sluicegate.testing import EmbeddedPostgres


async def test_the_poll_alone_delivers(
    embedded_postgres: EmbeddedPostgres,
    bouncer: PgBouncer,
    real_clock: LoopClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S-T12: it does not listen for notifications, and the log says so."""
    caplog.set_level(logging.INFO)
    log = Log(embedded_postgres.dsn, fresh_name())
    await install_log(log)
    host = RecordingHost()
    reader = PostgresStreamSource(
        PostgresAccess(bouncer.dsn, close_timeout=2.0),
        subscription="s",
        schema=log.schema,
        poll=0.05,
    )
    async with asyncio.timeout(60), log.connected() as con, reader.open(host):
        claims = await host.wait_for_claims(256)
        waiting = asyncio.create_task(reader.fetch(claims, 10))
        await asyncio.sleep(0)
        assert await log.append(con, "s-1", 1) == [1]
        found = await waiting
        assert found is not None
        assert [record.offset for each in found for record in each.records] == [1]
    assert "the source polls only, since it is behind a pooler" in caplog.text
    assert [trouble for trouble in host.reports if trouble] == []
