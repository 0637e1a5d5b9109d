"""Retention that passes a subscription: it continues behind the deleted messages, and reports
them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tests.kafka.source.storm_help import log_lines
from tests.postgres.streams.log_help import Log
from tests.postgres.streams.source.test_failures import WITHIN, fetched, source

from sluicegate.postgres import StreamRetention
from sluicegate.testing.conformance.source.subject import RecordingHost

if TYPE_CHECKING:
    from sluicegate.batcher import LoopClock


async def test_deleted_messages_are_told_with_their_count_while_running_and_at_the_start(
    log: Log, real_clock: LoopClock
) -> None:
    """Once for each process, and again whenever more are deleted. The others are delivered."""
    async with log.connected() as con, asyncio.timeout(WITHIN), log_lines() as lines:
        reader, host = source(log), RecordingHost()
        async with reader.open(host):
            pass
        retention = StreamRetention(log.schema)
        first = await log.append(con, "a", *range(5))
        await retention.delete(con, before=first[3], force=True)
        async with reader.open(host):
            told = await lines.wait("deleted before", logging.ERROR)
            assert "s: 3 messages were deleted before the subscription had handled them" in told
            await retention.delete_stream(con, "a", force=True)
            await lines.wait(r"s: 2 messages .*\(5 in all", logging.ERROR)
            (last,) = await log.append(con, "a", 5)
            await host.wait_for_claims(256)
            assert await fetched(reader, host) == [last]
        assert len(lines.lines(logging.ERROR)) == 2
