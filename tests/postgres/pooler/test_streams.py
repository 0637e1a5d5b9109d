from __future__ import annotations

from typing import TYPE_CHECKING

from tests.postgres.streams.log_help import Log, fresh_name

from sluicegate.postgres import check_streams, install_streams, upgrade_streams

if TYPE_CHECKING:
    from tests.postgres.pooler.pgbouncer import PgBouncer

    from sluicegate.batcher import LoopClock


async def test_a_log_is_installed_and_checked_through_a_pooler(
    bouncer: PgBouncer, real_clock: LoopClock
) -> None:
    log = Log(bouncer.dsn, fresh_name())
    assert await install_streams(log.dsn, schema=log.schema)
    assert await upgrade_streams(log.dsn, schema=log.schema) == []
    assert await check_streams(log.dsn, schema=log.schema) == []
