"""Consumers of a queue that are killed and frozen at random moments.

Checked by separate queries on the effects of the handlers. `PENSTOCK_KILLS=500 pytest -m soak
tests/sources/postgres_queue/test_kills.py` does so 500 times.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from tests.sources.postgres_queue.kills_help import Queue, queue, stop

if TYPE_CHECKING:
    from tests.streams.log_help import Log

pytestmark = pytest.mark.usefixtures("real_clock")

KILLS = int(os.environ.get("PENSTOCK_KILLS", "500"))
WORKERS = 3
JOBS = 60
"""Jobs before each kill."""


async def kill_at_random(made: Queue, kills: int, chance: random.Random) -> None:
    """Kill one of the processes at random moments, or freeze it until others have its leases."""
    members = [await made.member() for _ in range(WORKERS)]
    for number in range(kills):
        await made.produce(JOBS, chance)
        await made.handled(but=chance.randrange(JOBS))
        place = chance.randrange(WORKERS)
        if number % 2:
            members[place].freeze()
            await made.without_lease(members[place])
            members[place].thaw()
            continue
        members[place].process.kill()
        members[place] = await made.member()
    await made.handled()
    await stop(*members)
    await made.assert_exact()


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.long)])
async def test_kills_and_frozen_processes_lose_no_job_and_keep_the_order_of_keys(
    log: Log, kills: int
) -> None:
    """Q-T2, Q-T11, Q-T13, R6: half of the faults are a SIGSTOP."""
    async with queue(log) as made:
        await kill_at_random(made, kills, random.Random(0))


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_many_kills_and_frozen_processes(log: Log) -> None:
    """Q-T2, Q-T11, Q-T13, R6: `PENSTOCK_KILLS` faults, half of them a SIGSTOP that outlasts the
    lease.
    """
    async with queue(log) as made:
        await kill_at_random(made, KILLS, random.Random(1))
