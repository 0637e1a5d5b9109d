"""Results of handlers under a lease that has ended on the server only."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.postgres.queues.source.kills_help import WITHIN, queue
from tests.postgres.queues.source.outages_help import running

from sluicegate import Ack, Nak, PermanentError, Terminate

if TYPE_CHECKING:
    from tests.postgres.streams.log_help import Log

    from sluicegate.consumer import Result

pytestmark = pytest.mark.usefixtures("real_clock")

LONG = 60.0
EXPIRE = "UPDATE {schema}.{table} SET lease_until = clock_timestamp() WHERE lease IS NOT NULL"
ANSWERS = [Ack(), Nak(delay=LONG), Terminate("no"), PermanentError("never")]


@pytest.mark.parametrize(
    ("answer", "key"),
    [
        pytest.param(answer, key, marks=pytest.mark.long if (number + turn) % 2 else ())
        for number, answer in enumerate(ANSWERS)
        for turn, key in enumerate(("k", None))
    ],
)
async def test_an_answer_under_a_lost_lease_has_no_effect(
    log: Log, answer: Result | Exception, key: str | None
) -> None:
    """Q-T13, Q-T12: whatever the result is, the process that has the lease handles the job again as
    its second attempt.
    """
    table = "job" if key is None else "lane"
    row = f"SELECT * FROM {log.sql}.{table}"
    async with asyncio.timeout(WITHIN), queue(log) as made:
        (place,) = await made.enqueue(key, 1)
        async with running(log, lease=LONG, most=1) as here:  # it claims nothing else
            here.gate.clear()
            here.answer = answer
            await here.until(lambda: len(here.began) == 1)
            await made.con.execute(EXPIRE.format(schema=log.sql, table=table))
            async with running(log, lease=LONG) as other:
                other.gate.clear()
                await other.until(lambda: len(other.began) == 1)
                before = await made.con.fetchrow(row)
                here.consumer.stop()
                here.gate.set()
                await here.run
                assert here.ended == [place]
                assert await made.con.fetchrow(row) == before
                assert await made.ask("SELECT count(*) FROM {schema}.job") == 1
                other.gate.set()
                await made.handled()
        assert other.began == [(place, 2)]
        assert await made.ask("SELECT count(*) FROM {schema}.finished_job") == 0
