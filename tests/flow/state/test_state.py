"""State in PostgreSQL, stored in the transaction of the position."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from state_counting import Counting, expected, key_of
from state_help import state_tables

from penstock._core.source import Record
from penstock.consumer import Consumer
from penstock.sources.memory import MemoryLog, MemorySource

if TYPE_CHECKING:
    from penstock.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")


def log_of(count: int) -> MemoryLog:
    """A log of so many records."""
    return MemoryLog([Record("t", 0, at, key_of(at), b"") for at in range(count)])


async def test_a_whole_log(embedded_postgres: EmbeddedPostgres) -> None:
    """G28: the state is that of all events, with jobs and finalisers that share a key."""
    counting = Counting(0)
    async with state_tables(embedded_postgres.dsn) as tables:
        async with (
            tables.state() as state,
            Consumer(
                state.attach(MemorySource(log_of(3000), ends=True)),
                ordering="partition",
                commit_every=0.01,
            ) as consumer,
        ):
            report = await consumer.run_events(counting.handle, jobs=[counting.jobs], state=state)
        assert report.complete
        assert await tables.stored() == (3000, expected(range(3000)))
