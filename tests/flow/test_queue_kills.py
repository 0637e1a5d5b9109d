"""Flows from a queue that are killed and frozen at random moments; the destination's rows are
counted.

`SLUICEGATE_KILLS=100 pytest -m soak tests/flow/test_queue_kills.py` does so 100 times.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from queue_flows import FlowQueue, flow_queue
from tests.postgres.queues.source.kills_help import stop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluicegate.testing import EmbeddedPostgres

pytestmark = pytest.mark.usefixtures("real_clock")

KILLS = int(os.environ.get("SLUICEGATE_KILLS", "50"))
JOBS = 60
"""Jobs before each kill."""
SLOW = """
CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.01); RETURN NULL; END $$;
CREATE TRIGGER slow AFTER INSERT ON {schema}.effect
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.slow()
"""
"""Slows down every statement, so that most moments are within transactions."""
EXACT = ("rows", "effects", "rows")


async def kill_at_random(
    made: FlowQueue, kinds: Sequence[str], kills: int, chance: random.Random
) -> None:
    """Kill one of the processes at random moments, or freeze it until others have its leases."""
    await made.con.execute(SLOW.format(schema=made.log.sql))
    members = [await made.worker(kind) for kind in kinds]
    for number in range(kills):
        await made.produce(JOBS, chance)
        await made.handled(but=chance.randrange(JOBS // 2))
        await made.produce(JOBS // 2, chance)
        place = chance.randrange(len(kinds))
        if number % 2:
            members[place].freeze()
            await made.without_lease(members[place])
            members[place].thaw()
            continue
        members[place].process.kill()
        members[place] = await made.worker(kinds[place])
    await made.handled()
    await stop(*members)


@pytest.mark.long
async def test_kills_and_frozen_processes_repeat_no_job_and_lose_none(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """Q-T2, Q-T11, Q-T13, R6: half of the faults are a SIGSTOP; rows and effects side by side."""
    async with flow_queue(embedded_postgres.dsn) as made:
        await kill_at_random(made, EXACT, 6, random.Random(0))
        await made.assert_exact()


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("ordered", [False, True])
async def test_many_kills_and_frozen_processes(
    embedded_postgres: EmbeddedPostgres, ordered: bool
) -> None:
    """Q-T2, Q-T11, Q-T13, R6: `SLUICEGATE_KILLS` faults, half of them a SIGSTOP that outlasts the
    lease.
    """
    options = {"ordering_required": True, "poison": "block"} if ordered else {}
    async with flow_queue(embedded_postgres.dsn, within=None, **options) as made:
        await kill_at_random(made, EXACT, KILLS, random.Random(1))
        await made.assert_exact()


@pytest.mark.long
async def test_a_pipe_that_is_killed_loses_no_job(embedded_postgres: EmbeddedPostgres) -> None:
    """Q-T2, Q-T11: rows may be repeated; the first ones of each key are in order."""
    async with flow_queue(embedded_postgres.dsn) as made:
        await kill_at_random(made, ("pipe", "pipe"), 4, random.Random(2))
        await made.assert_in_order()


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_a_pipe_that_is_killed_many_times_loses_no_job(
    embedded_postgres: EmbeddedPostgres,
) -> None:
    """Q-T2, Q-T11: `SLUICEGATE_KILLS` faults, half of them a SIGSTOP that outlasts the lease."""
    async with flow_queue(embedded_postgres.dsn, within=None) as made:
        await kill_at_random(made, ("pipe", "pipe"), KILLS, random.Random(3))
        await made.assert_in_order()
