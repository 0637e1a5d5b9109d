"""A later version of the schema, installed while sinks, sources and flows of this release run.

White box: upgrades with migrations of the test.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import asyncpg
import pytest
from tests.clusters.postgres_parts import Parts
from tests.clusters.test_postgres import SETTINGS, assert_kept, finished
from tests.kafka.source.storm_help import log_lines

from sluicegate import ConfigError, Consumer
from sluicegate.postgres import (
    PostgresQueueSink,
    PostgresQueueSource,
    PostgresStreamSource,
    QueueAdmin,
    install_streams,
)
from sluicegate.postgres.schema.installation import upgrade
from sluicegate.postgres.schema.opened import Migration, migrations, newest
from sluicegate.testing import embedded_postgres
from sluicegate.testing.servers.require import there_or_skip

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sluicegate import Message
    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

COMPATIBLE = """
ALTER TABLE {schema}.job ADD COLUMN note text NOT NULL DEFAULT '';
ALTER TABLE {schema}.lane ADD COLUMN note text NOT NULL DEFAULT '';
ALTER TABLE {schema}.schedule ADD COLUMN note text NOT NULL DEFAULT '';
ALTER TABLE {schema}.message ADD COLUMN note text NOT NULL DEFAULT '';
ALTER TABLE {schema}.subscription_slot ADD COLUMN note text NOT NULL DEFAULT '';
CREATE INDEX message_note ON {schema}.message (note, position);
CREATE INDEX job_note ON {schema}.job (note, place);
CREATE OR REPLACE FUNCTION {schema}.schedule_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
  SELECT statement_timestamp()
$$;
CREATE OR REPLACE FUNCTION {schema}.lost_too_often() RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT 'lost'
$$;
CREATE FUNCTION {schema}.claim_more(p_queue text) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT count(*) FROM {schema}.job j WHERE j.queue = p_queue AND j.note = ''
$$;
"""
INCOMPATIBLE = """
ALTER FUNCTION {schema}.claim_jobs RENAME TO claim_jobs_again;
INSERT INTO {schema}.meta VALUES ('needs', '%d');
"""


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    with there_or_skip("postgres", embedded_postgres(SETTINGS)) as found:
        yield found


async def upgraded(dsn: str, text: str) -> None:
    con = await asyncpg.connect(dsn)
    history = (*migrations(), Migration(newest() + 1, "next", text))
    try:
        assert await upgrade(con, "sluicegate", library="9.9", history=history)
    finally:
        await con.close()


async def test_a_compatible_version_is_installed_under_load(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    """No part of this release fails, or stops for longer than the migration takes."""
    parts = Parts(server.dsn, tmp_path)
    async with log_lines() as log, asyncio.timeout(200):
        await parts.run(lambda: upgraded(server.dsn, COMPATIBLE))
    results = await finished(parts)
    assert_kept(results)
    assert not [part for part, each in results.items() if each.twice]
    assert not [line for line in log.lines() if "lost" in line or "cached plan" in line]


async def test_an_incompatible_version_is_refused_at_the_start_and_reported_by_what_runs(
    server: EmbeddedPostgres,
) -> None:
    await install_streams(server.dsn)
    async with QueueAdmin(server.dsn) as admin:
        await admin.create("jobs")

    async def handle(message: Message) -> None:
        raise AssertionError(message)

    source = PostgresQueueSource(server.dsn, queue="jobs", poll=0.2)
    async with (
        log_lines() as log,
        asyncio.timeout(100),
        Consumer(source, name="jobs") as consumer,
    ):
        running = asyncio.create_task(consumer.run(handle))
        await consumer.wait_ready()
        await upgraded(server.dsn, INCOMPATIBLE % (newest() + 1))
        await log.wait(r"claiming jobs failed .*claim_jobs\(.* does not exist", logging.WARNING)
        assert not consumer.ready
        assert "claim_jobs" in str(consumer.explain())
        consumer.stop()
        await running
    rule = f"at version {newest() + 1}, which releases .* that know only version {newest()} cannot"
    for part in (
        PostgresQueueSink(server.dsn, queue="jobs"),
        QueueAdmin(server.dsn),
    ):
        with pytest.raises(ConfigError, match=rule):
            async with part:
                pass
    for other in (
        PostgresQueueSource(server.dsn, queue="jobs"),
        PostgresStreamSource(server.dsn, subscription="all"),
    ):
        with pytest.raises(ConfigError, match=rule):
            async with Consumer(other, name="again") as consumer:
                await consumer.run(handle)
